"""POST /v1/traces as HTTP: encodings, compression, limits, and requests with wrong headers."""

from __future__ import annotations

import asyncio
import gzip
import os
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.models import Attempt
from store.server.decompress import Broken, TooLong, expand
from tests.otel.otlp_messages import as_json, group, ids_of, request, span
from tests.server.otlp_exporter import JSON, PROTOBUF, Exporter, exporting, message_of, stored

MIB = 1024 * 1024
LIMIT = 4 * MIB
"""The limit of a server that bombs are sent to. They hold ten times as much."""


@cache
def bomb_of(wbits: int) -> bytes:
    """Return 40 MiB of zeros, packed. They are packed in a test, since each test process collects all tests."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    packed = [packer.compress(bytes(MIB)) for _ in range(40)]
    return b"".join(packed) + packer.flush()


# The coding and zlib's window bits of each format.
BOMBS = [("gzip", 31), ("deflate", 15), ("deflate", -15)]


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with await open_store("memory://") as opened:
        yield opened


@pytest.fixture
async def exporter(store: Store) -> AsyncIterator[Exporter]:
    async with exporting(store) as ready:
        yield ready


@pytest.fixture
async def attempt(store: Store) -> Attempt:
    return (await store.start_rollout({"question": 1})).attempt


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml; charset=utf-8", "application/octet-stream"])
async def test_another_content_type_is_refused_by_name(exporter: Exporter, content_type: str) -> None:
    status, body, headers = await exporter.post(b"", content_type)
    assert (status, headers["content-type"]) == (400, PROTOBUF)
    assert message_of(body, PROTOBUF).startswith(
        f"Unsupported Content-Type '{content_type}', expected 'application/x-protobuf'"
    )


@pytest.mark.parametrize("content_type", ["application/x-protobuf; charset=utf-8", "application/json;charset=UTF-8"])
async def test_parameters_of_the_content_type_are_ignored(
    store: Store, exporter: Exporter, attempt: Attempt, content_type: str
) -> None:
    message = request(group(span(), resource=ids_of(attempt)))
    body = as_json(message) if "json" in content_type else message.SerializeToString()
    status, _, _ = await exporter.post(body, content_type)
    assert status == 200
    assert len(await stored(store, attempt)) == 1


@pytest.mark.parametrize("content_type,body", [(PROTOBUF, b"\xff\xff"), (JSON, b'{"resourceSpans": '), (JSON, b"[]")])
async def test_unreadable_payload_is_refused_in_the_encoding_of_the_request(
    exporter: Exporter, content_type: str, body: bytes
) -> None:
    for coding, packed in (
        ("identity", body),
        ("gzip", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
    ):
        status, answer, headers = await exporter.post(packed, content_type, **{"Content-Encoding": coding})
        assert (status, headers["content-type"]) == (400, content_type), coding
        assert message_of(answer, content_type).startswith("Unable to parse OTLP traces payload: "), coding


async def test_broken_compression_is_refused_in_the_encoding_of_the_request(exporter: Exporter) -> None:
    for content_type in (PROTOBUF, JSON):
        for coding in ("gzip", "deflate"):
            for body in (b"plain", gzip.compress(b"x" * 100)[:-9], b"\x1f\x8b"):
                status, answer, headers = await exporter.post(body, content_type, **{"Content-Encoding": coding})
                assert (status, headers["content-type"]) == (400, content_type), (coding, body)
                assert coding in message_of(answer, content_type), (coding, body)


async def test_an_unknown_coding_is_refused_by_name(exporter: Exporter) -> None:
    status, answer, _ = await exporter.post(b"", PROTOBUF, **{"Content-Encoding": "br"})
    assert (status, message_of(answer, PROTOBUF)) == (
        400,
        "Unsupported Content-Encoding 'br', expected 'gzip', 'deflate' or 'identity'",
    )


async def test_an_empty_body_is_an_empty_success(exporter: Exporter) -> None:
    status, answer, headers = await exporter.post(b"")
    assert (status, answer, headers["content-type"], headers["content-length"]) == (200, b"", PROTOBUF, "0")
    assert "content-encoding" not in headers
    assert (await exporter.post(b"{}", JSON))[:2] == (200, b"{}")


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate", "deflate;q=1, gzip;q=0.5"])
async def test_the_answer_is_compressed_when_asked_for(exporter: Exporter, accepted: str) -> None:
    status, answer, headers = await exporter.post(b"", **{"Accept-Encoding": accepted})
    assert (status, headers["content-encoding"], len(answer)) == (200, "gzip", 20)
    assert gzip.decompress(answer) == b""
    status, answer, headers = await exporter.post(b"{", JSON, **{"Accept-Encoding": accepted})
    assert (status, headers["content-encoding"]) == (400, "gzip")
    assert message_of(gzip.decompress(answer), JSON).startswith("Unable to parse")


@pytest.mark.parametrize("accepted", ["identity", "gzip;q=0", "deflate", "*"])
async def test_the_answer_is_plain_when_not_asked_for(exporter: Exporter, accepted: str) -> None:
    assert "content-encoding" not in (await exporter.post(b"", **{"Accept-Encoding": accepted}))[2]


def _raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def _two_members(body: bytes) -> bytes:
    return gzip.compress(body[:10]) + gzip.compress(body[10:])


# 1,000 spans are decompressed in several pieces, and 5,000 that are not compressed are decoded in a thread.
@pytest.mark.parametrize(
    "coding,pack,most",
    [
        ("gzip", gzip.compress, 1000),
        ("GZIP", gzip.compress, 1),
        ("gzip", _two_members, 1000),
        ("deflate", zlib.compress, 1000),
        ("deflate", _raw_deflate, 1000),
        ("identity", bytes, 5000),
    ],
)
async def test_a_compressed_request_is_taken(
    store: Store, exporter: Exporter, coding: str, pack: Any, most: int
) -> None:
    for spans in {1, most}:
        attempt = (await store.start_rollout({"question": 1})).attempt
        sent = group(*(span({"text": "x" * 300}) for _ in range(spans)), resource=ids_of(attempt))
        body = pack(request(sent).SerializeToString())
        status, answer, _ = await exporter.post(body, PROTOBUF, **{"Content-Encoding": coding})
        assert (status, answer) == (200, b"")
        assert (await store.query_spans(attempt.rollout_id, limit=0)).total == spans


async def test_other_methods_are_refused(exporter: Exporter) -> None:
    async with exporter.session.get(exporter.url) as answer:
        assert answer.status == 405


@pytest.mark.parametrize("coding,wbits", BOMBS)
@pytest.mark.parametrize("limit", [0, 1000, LIMIT])
def test_a_bomb_is_never_opened_further_than_the_limit(coding: str, wbits: int, limit: int) -> None:
    bomb = bomb_of(wbits)
    tracemalloc.start()
    try:
        with pytest.raises(TooLong):
            expand(bomb, coding, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The pieces, and room in which zlib doubles its buffer. The bomb holds more.
    assert 3 * limit + 4 * MIB < 40 * MIB
    assert peak < 3 * limit + 4 * MIB


@pytest.mark.parametrize(
    "coding,pack", [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", _raw_deflate)]
)
@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_body_of_exactly_the_limit_is_expanded(coding: str, pack: Any, size: int) -> None:
    body = os.urandom(size)
    assert expand(pack(body), coding, 1000) == body


def test_a_limit_counts_all_members_together() -> None:
    with pytest.raises(TooLong):
        expand(gzip.compress(b"x" * 600) * 2, "gzip", 1000)
    with pytest.raises(Broken):
        expand(gzip.compress(b"x" * 600) + b"tail", "gzip", 1000)
    with pytest.raises(Broken):
        expand(zlib.compress(b"x") + b"tail", "deflate", 1000)


def test_the_work_for_many_members_grows_with_the_body_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies what follows a member. If that is the whole rest of the body, the work is quadratic."""
    copied = 0
    decompressor = zlib.decompressobj

    class Counted:
        def __init__(self, window: int) -> None:
            self._inflater = decompressor(window)

        @property
        def eof(self) -> bool:
            return self._inflater.eof

        @property
        def unused_data(self) -> bytes:
            return self._inflater.unused_data

        def decompress(self, piece: bytes, longest: int) -> bytes:
            nonlocal copied
            output = self._inflater.decompress(piece, longest)
            copied += len(self._inflater.unused_data)
            return output

    monkeypatch.setattr("store.server.decompress.zlib.decompressobj", Counted)
    for members in (2_000, 8_000):
        copied = 0
        body = gzip.compress(os.urandom(500)) * members
        assert len(expand(body, "gzip", 8 * MIB)) == 500 * members
        assert copied < 40 * len(body)
    with pytest.raises(Broken, match="more than 10,000 members; compress it as one"):
        expand(gzip.compress(b"") * 10_001, "gzip", 1000)
    assert expand(gzip.compress(b"") * 10_000, "gzip", 1000) == b""


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_a_bomb_is_refused_and_others_are_served(store: Store, attempt: Attempt, content_type: str) -> None:
    sent = request(group(span(), resource=ids_of(attempt)))
    async with exporting(store, max_otlp_bytes=LIMIT) as exporter:
        bombs = [
            exporter.post(bomb_of(wbits), content_type, **{"Content-Encoding": coding})
            for coding, wbits in BOMBS
            for _ in range(2)
        ]
        *refused, taken = await asyncio.gather(*bombs, exporter.post(sent.SerializeToString()))
    for status, answer, headers in refused:
        assert (status, headers["content-type"]) == (413, content_type)
        assert "export fewer spans at once" in message_of(answer, content_type)
    assert taken[0] == 200
    assert len(await stored(store, attempt)) == 1


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_beyond_the_limit_is_refused_unread(store: Store, attempt: Attempt, is_chunked: bool) -> None:
    body = request(group(span({"text": "x" * 5000}), resource=ids_of(attempt))).SerializeToString()
    async with exporting(store, max_otlp_bytes=4096) as exporter:
        status, answer, _ = await exporter.post(chunked(body) if is_chunked else body)
        assert status == 413
        assert "4,096 bytes" in message_of(answer, PROTOBUF)
        assert (await exporter.post(b""))[0] == 200
    assert await stored(store, attempt) == []


async def chunked(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 1000):
        yield body[start : start + 1000]


@pytest.mark.parametrize("announced", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
async def test_incomplete_request_stores_no_spans(
    store: Store, exporter: Exporter, attempt: Attempt, announced: str
) -> None:
    body = request(group(span(), resource=ids_of(attempt))).SerializeToString()
    half = body if "Length" in announced else f"{len(body):x}\r\n".encode() + body + b"\r\n"
    head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n{announced}\r\n\r\n"
    for _ in range(20):
        _, sender = await asyncio.open_connection("127.0.0.1", exporter.port)
        sender.write(head.encode() + half)
        await sender.drain()
        sender.close()
        await sender.wait_closed()
    assert (await exporter.post(b""))[0] == 200
    assert await stored(store, attempt) == []
