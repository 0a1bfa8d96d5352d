"""Malicious input is refused in bounded memory, without effect on other clients."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from store.interface.store import Store
from store.server.process.connection import MAX_HEAD_BYTES
from tests.server.api import Api
from tests.server.test_serving import serving

ENQUEUE = b"/v1/agl/queues/rollouts/enqueue"
BODY = b'{"rollouts":[{"input":1}]}'
CHUNKED = b"1a\r\n" + BODY + b"\r\n0\r\n\r\n"
assert len(BODY) == 0x1A
MEBIBYTE = 1024 * 1024


@pytest.fixture
def store_url() -> str:
    """What is refused never reaches the database."""
    return "memory://"


def _posted(*headers: bytes, body: bytes = BODY) -> bytes:
    head = [b"POST %b HTTP/1.1" % ENQUEUE, b"Host: 127.0.0.1", b"Content-Type: application/json", *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def _got(*headers: bytes, line: bytes = b"GET /v1/agl/health HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: 127.0.0.1", *headers]) + b"\r\n\r\n"


async def _exchange(api: Api, sent: bytes, *, hangs_up: bool = False) -> tuple[list[int], bytes]:
    """Send bytes; return the statuses that came back until the server closed, and all that it said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    said = bytearray()
    try:
        async with asyncio.timeout(60):
            # A server that refuses early may be gone before all is sent.
            try:
                writer.write(sent)
                if hangs_up:
                    writer.write_eof()
                await writer.drain()
                while part := await reader.read(65536):
                    said += part
            except ConnectionError:
                pass
    finally:
        writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d\d\d) ", said)], bytes(said)


MALFORMED: dict[str, bytes] = {
    "two lengths": _posted(b"Content-Length: 26", b"Content-Length: 10"),
    "a length and chunks": _posted(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=CHUNKED),
    "chunks and a length": _posted(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=CHUNKED),
    "a negative length": _posted(b"Content-Length: -5"),
    "a length with a sign": _posted(b"Content-Length: +26"),
    "a length in words": _posted(b"Content-Length: many"),
    "a length beyond 64 bits": _posted(b"Content-Length: 99999999999999999999999"),
    "chunks twice": _posted(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKED),
    "an unknown transfer coding": _posted(b"Transfer-Encoding: xchunked", body=CHUNKED),
    "chunks that are not last": _posted(b"Transfer-Encoding: chunked, identity", body=CHUNKED),
    "a size that is none": _posted(b"Transfer-Encoding: chunked", body=b"zz\r\n" + BODY),
    "a negative size": _posted(b"Transfer-Encoding: chunked", body=b"-1\r\n" + BODY),
    "a size beyond 64 bits": _posted(b"Transfer-Encoding: chunked", body=b"ffffffffffffffffff\r\n" + BODY),
    "a nul in a header": _got(b"X: a\0b"),
    "a space before a colon": _got(b"X : a"),
    "a folded header": _got(b"X: a", b" b"),
    "bare newlines": b"GET /v1/agl/health HTTP/1.1\nHost: a\n\n",
    "a nul in the path": _got(line=b"GET /v1/agl/workers/a\0b HTTP/1.1"),
    "a path that is not ASCII": _got(line="GET /v1/agl/workers/é HTTP/1.1".encode()),
    "an unknown method": _got(line=b"BREW /v1/agl/health HTTP/1.1"),
    "a method in small letters": _got(line=b"get /v1/agl/health HTTP/1.1"),
    "a tunnel": _got(line=b"CONNECT example.test:80 HTTP/1.1"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown version": _got(line=b"GET /v1/agl/health HTTP/3.7"),
    "the hello of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
}


async def test_malformed_request_is_refused_and_the_connection_closed(
    api: Api, store: Store, subtests: pytest.Subtests
) -> None:
    for name, sent in MALFORMED.items():
        with subtests.test(name):
            statuses, said = await _exchange(api, sent)
            assert statuses == [400]
            assert b"connection: close" in said
            assert (await store.statistics()).get("total_rollouts") == 0
            assert (await api.get("/health")).status == 200


async def test_a_method_that_no_route_supports_is_refused(api: Api) -> None:
    for method in ("PATCH", "TRACE", "PROPFIND", "MKCOL", "SUBSCRIBE"):
        assert (await api.send(method, "/rollouts")).detail == "Method Not Allowed", method


async def test_bytes_beyond_the_announced_length_are_not_read_as_a_second_request(api: Api, store: Store) -> None:
    smuggled = BODY + _posted(b"Content-Length: 26")
    statuses, _ = await _exchange(api, _posted(b"Content-Length: 10", body=smuggled))
    assert 201 not in statuses
    assert (await store.statistics()).get("total_rollouts") == 0


async def test_a_body_shorter_than_announced_does_nothing(api: Api, store: Store) -> None:
    statuses, _ = await _exchange(api, _posted(b"Content-Length: 100"), hangs_up=True)
    assert 201 not in statuses
    assert (await store.statistics()).get("total_rollouts") == 0
    assert (await api.get("/health")).status == 200


async def test_requests_sent_at_once_are_answered_one_by_one(api: Api, store: Store) -> None:
    statuses, said = await _exchange(api, _posted(b"Content-Length: 26") * 50 + _got(b"Connection: close"))
    assert statuses == [201] * 50 + [200]
    assert said.endswith(b'{"status":"ok"}')
    assert (await store.statistics()).get("total_rollouts") == 50


@pytest.mark.parametrize("line", [b"GET /v1/agl/health HTTP/1.0", b"GET http://other.test/v1/agl/health HTTP/1.1"])
async def test_older_clients_and_proxies_are_served(api: Api, line: bytes) -> None:
    statuses, said = await _exchange(api, _got(b"Connection: close", line=line))
    assert (statuses, said.endswith(b'{"status":"ok"}')) == ([200], True)


async def test_a_compressed_body_is_not_decompressed(api: Api) -> None:
    bomb = gzip.compress(b'{"rollouts":[' + b" " * (8 * MEBIBYTE) + b"]}")
    answer = await api.post("/queues/rollouts/enqueue", bomb, headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.detail[0]["type"]) == (422, "json_invalid")


FLOODS: dict[str, Callable[[], bytes]] = {
    "a megabyte of a header": lambda: _got(b"X: " + b"y" * MEBIBYTE),
    "many headers": lambda: _got(*(b"x-%d: y" % number for number in range(20_000))),
    "a megabyte of a path": lambda: _got(line=b"GET /v1/agl/%b HTTP/1.1" % (b"y" * MEBIBYTE)),
    "a megabyte of a query": lambda: _got(line=b"GET /v1/agl/rollouts?a=%b HTTP/1.1" % (b"y" * MEBIBYTE)),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_head_that_is_too_long_is_refused(api: Api, name: str) -> None:
    statuses, said = await _exchange(api, FLOODS[name]())
    assert statuses == [400]
    assert (b"POST /v1/agl/rollouts/search." in said) == ("query" in name)
    assert (await api.get("/health")).status == 200


async def test_a_head_up_to_the_limit_is_taken(api: Api) -> None:
    sent = _got(b"X: " + b"y" * (MAX_HEAD_BYTES - 200), b"Connection: close")
    assert (await _exchange(api, sent))[0] == [200]


@pytest.mark.parametrize("last", [1, 2, 3, 4, 20])
async def test_end_of_the_head_may_arrive_with_a_large_body(api: Api, store: Store, last: int) -> None:
    body = b'{"rollouts":[{"input":"%b"}]}' % (b"y" * 4 * MAX_HEAD_BYTES)
    sent = _posted(b"Content-Length: %d" % len(body), b"Connection: close", body=body)
    border = sent.index(b"\r\n\r\n") + 4 - last
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    writer.write(sent[:border])
    await asyncio.sleep(0.05)
    writer.write(sent[border:])
    assert (await reader.read()).startswith(b"HTTP/1.1 201 ")
    writer.close()
    assert (await store.statistics()).get("total_rollouts") == 1


@pytest.mark.slow
def test_trailers_and_chunk_extensions_are_discarded() -> None:
    with serving("serve", "--db", "memory://", "--port", "0", "--log-level", "error") as (process, url):
        port = int(url.rpartition(":")[2])
        begin = _posted(b"Transfer-Encoding: chunked", body=b"1a;" + b"e" * MEBIBYTE + b"\r\n" + BODY + b"\r\n0\r\n")
        trailers = b"".join(b"x-%06d: %b\r\n" % (number, b"y" * 100) for number in range(10_000))
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(begin)
            before = _resident(process.pid)
            for _ in range(20):
                client.sendall(trailers)
            grown = _resident(process.pid) - before
            client.sendall(b"\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 201")
    print(f"{20 * len(trailers) / MEBIBYTE:.0f} MiB of trailers: the server grew by {grown / MEBIBYTE:.1f} MiB")
    assert grown < 16 * MEBIBYTE


def _resident(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match
    return int(match[1]) * 1024


ODD_IDS = {
    "a slash": "a%2Fb",
    "steps upwards": "..%2F..%2Fhealth",
    "two dots": "%2E%2E",
    "a percent sign": "100%25",
    "an escape that is none": "%zz",
    "half an escape": "a%2",
    "a nul": "a%00b",
    "a surrogate": "%ED%A0%80",
    "no UTF-8": "%FF%FE",
    "the longest": quote("é" * 256),
    "too long": "x" * 513,
    "far too long": "x" * 8_000,
    "a newline": "a%0D%0AX-Injected:%201",
    "a word of the protocol": "%6Catest",
}


async def test_an_odd_id_finds_nothing_or_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for name, odd in ODD_IDS.items():
        with subtests.test(name):
            for noun in ("rollouts", "workers", "resources"):
                answer = await api.get(f"/{noun}/{odd}")
                assert answer.status in {200, 400}, answer
                assert answer.json is None or answer.json["error_type"] in {"Invalid", "TooLarge"}
                assert "x-injected" not in answer.headers
            for path in (f"/rollouts/{odd}", f"/rollouts/{odd}/attempts", f"/rollouts/{odd}/attempts/{odd}"):
                answer = await api.post(path, {})
                assert answer.status == 400, answer
                assert answer.json["error_type"] in {"NotFound", "Invalid", "TooLarge"}, answer


@pytest.mark.parametrize("name", ["a slash", "steps upwards", "two dots", "a percent sign", "the longest"])
async def test_an_odd_id_identifies_exactly_one_worker(api: Api, name: str) -> None:
    worker = (await api.post(f"/workers/{ODD_IDS[name]}")).ok()
    assert (await api.get(f"/workers/{ODD_IDS[name]}")).ok() == worker
    assert [entry["worker_id"] for entry in (await api.get("/workers")).ok()["items"]] == [worker["worker_id"]]


async def test_a_path_with_an_empty_id_does_not_exist(api: Api) -> None:
    for path in ("/rollouts/", "/rollouts//attempts", "/workers/", "/resources/", "/rollouts//history"):
        assert (await api.get(path)).status == 404, path
        assert (await api.post(path, {})).status == 405, path


@pytest.mark.parametrize("field", ["limit", "offset"])
async def test_a_limit_or_offset_beyond_64_bits_is_refused(api: Api, field: str) -> None:
    for number in (2**63, 10**40):
        assert (await api.get(f"/workers?{field}={number}")).status == 422
        assert (await api.post("/rollouts/search", {field: 2**63})).status == 422
    assert (await api.get(f"/workers?{field}={2**63 - 1}")).ok()["items"] == []


async def test_the_last_value_of_a_repeated_parameter_is_used(api: Api) -> None:
    await api.enqueue(1, 2, 3)
    page = (await api.get("/rollouts?" + "&".join(["limit=3"] * 1000 + ["limit=2"]))).ok()
    assert (len(page["items"]), page["limit"]) == (2, 2)


async def test_dequeue_with_a_huge_limit_claims_all_queued_rollouts(api: Api) -> None:
    await api.enqueue(1, 2)
    assert len((await api.post("/queues/rollouts/dequeue", b'{"limit":%d}' % 10**30)).ok()) == 2
