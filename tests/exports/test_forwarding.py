"""Forwarding of spans from the log to a collector: nothing is lost, and what arrives again is equal."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.client import HTTPStore
from store.errors import Conflict, Incompatible, Invalid, Unavailable
from store.exports import CollectorOptions, forward_spans
from store.exports.otlp import collector as collectors
from store.exports.otlp.cursor_file import CursorFile
from store.interface.store import Store
from store.models import Attempt, Span
from store.operations import copy_store
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE
from tests.exports.agents import conversation
from tests.exports.collector import Answer, CollectorServer, collecting
from tests.exports.work import forward
from tests.faults import processes
from tests.torture import rounds


@pytest.fixture
def collector() -> Iterator[CollectorServer]:
    with collecting() as server:
        yield server


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "_SHORTEST_PAUSE", 0.01)
    monkeypatch.setattr(collectors, "_LONGEST_PAUSE", 0.02)


@pytest.fixture(params=[SQLITE, POSTGRES, pytest.param("http", id="http")])
async def source(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store on each database, and on SQLite behind a server."""
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if is_postgres else f"sqlite:///{tmp_path / 'source.db'}"
    async with await open_store(url) as store:
        if request.param != "http":
            yield store
            return
        with request.getfixturevalue("server").serving(store) as address:
            async with HTTPStore(address) as client:
                yield client


@pytest.fixture
async def sqlite_source(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store on SQLite."""
    async with await open_store(f"sqlite:///{tmp_path / 'source.db'}") as store:
        yield store


async def start(store: Store, count: int = 1) -> list[Attempt]:
    return [(await store.start_rollout({"number": number})).attempt for number in range(count)]


async def spans_of(store: Store) -> list[dict[str, Any]]:
    rollouts = await store.query_rollouts(sort_by="rollout_id")
    return [span.model_dump() for rollout in rollouts for span in await store.query_spans(rollout.rollout_id)]


def ids(spans: list[Span]) -> list[str]:
    return [span.span_id for span in spans]


def received(collector: CollectorServer) -> list[Span]:
    return [span for request in collector.requests for span in request.spans]


async def until(collector: CollectorServer, count: int) -> None:
    """Wait until the collector has taken this many different spans."""
    async with asyncio.timeout(30):
        while len(collector.copies) < count:
            await asyncio.to_thread(collector.has_request.wait, 0.05)
            collector.has_request.clear()


async def test_new_spans_are_forwarded_until_the_stop_and_then_from_the_cursor(
    source: Store, collector: CollectorServer, tmp_path: Path
) -> None:
    cursor, stop = tmp_path / "cursor.json", asyncio.Event()
    first, second, third = await start(source, 3)
    await source.add_many_spans(conversation(first, 0))
    forwarding = asyncio.ensure_future(forward_spans(source, collector.url, cursor, stop=stop))
    await until(collector, 4)
    await source.add_many_spans(conversation(second, 1))
    await until(collector, 8)
    stop.set()
    report = await forwarding
    assert (report.spans, report.requests, report.refused) == (8, 2, 0)
    state = orjson.loads(cursor.read_bytes())
    assert state == {
        "version": 1,
        "to": f"{collector.url}/v1/traces",
        "cursor": report.cursor,
        "spans": 8,
        "refused": 0,
    }
    await source.add_many_spans(conversation(third, 2))
    again = await forward_spans(source, collector.url, cursor, follow=False)
    assert (again.spans, orjson.loads(cursor.read_bytes())["spans"]) == (4, 12)
    assert sorted((span.model_dump() for span in received(collector)), key=str) == sorted(
        await spans_of(source), key=str
    )
    nothing = await forward_spans(source, collector.url, cursor, follow=False)
    assert (nothing.spans, nothing.cursor) == (0, again.cursor)


async def test_spans_wait_in_the_log_while_the_collector_is_down(
    sqlite_source: Store, collector: CollectorServer, tmp_path: Path
) -> None:
    (attempt,) = await start(sqlite_source)
    many = [
        Span.from_attributes(rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, attributes={"n": number})
        for number in range(1300)
    ]
    await sqlite_source.add_many_spans(many)
    collector.answers = [Answer(503)] * 10_000
    notices: list[str] = []
    stop, cursor = asyncio.Event(), tmp_path / "cursor.json"
    arguments: Any = {"on_notice": notices.append, "stop": stop}
    forwarding = asyncio.ensure_future(forward_spans(sqlite_source, collector.url, cursor, **arguments))
    await asyncio.to_thread(collector.wait, 20)
    # Only one batch is in memory.
    assert {tuple(ids(request.spans)) for request in collector.requests} == {tuple(ids(many[:512]))}
    collector.answers = []
    await until(collector, 1300)
    assert len(notices) == 2
    collector.answers = [Answer(503)] * 10_000
    collector.has_request.clear()
    await sqlite_source.add_many_spans(conversation(attempt, 0))
    await asyncio.to_thread(collector.has_request.wait, 30)
    stop.set()
    report = await forwarding
    assert (report.spans, len(notices)) == (1300, 3)
    collector.answers = []
    again = await forward_spans(sqlite_source, collector.url, cursor, follow=False)
    assert again.spans == 4
    assert {len(copies) for copies in collector.copies.values()} == {1}


async def test_redacted_attributes_are_not_forwarded(
    sqlite_source: Store, collector: CollectorServer, tmp_path: Path
) -> None:
    (attempt,) = await start(sqlite_source)
    await sqlite_source.add_many_spans(conversation(attempt, 0))
    await forward_spans(sqlite_source, collector.url, tmp_path / "c", follow=False, redact=["attributes.gen_ai.*"])
    names = {name for span in received(collector) for name in span.attributes}
    assert "prompt_token_ids" in names
    assert not any(name.startswith("gen_ai.") for name in names)


async def test_refused_spans_are_counted_and_not_sent_again(
    sqlite_source: Store, collector: CollectorServer, tmp_path: Path
) -> None:
    (attempt,) = await start(sqlite_source)
    await sqlite_source.add_many_spans(conversation(attempt, 0))
    partial = b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}'
    collector.answers = [Answer(body=partial, headers={"Content-Type": "application/json"})]
    notices: list[str] = []
    report = await forward_spans(sqlite_source, collector.url, tmp_path / "c", follow=False, on_notice=notices.append)
    assert (report.refused, report.refusal, notices) == (3, "too old", ["the collector has refused 3 spans: too old"])
    assert orjson.loads((tmp_path / "c").read_bytes())["refused"] == 3
    assert (await forward_spans(sqlite_source, collector.url, tmp_path / "c", follow=False)).spans == 0


async def test_a_cursor_of_another_kind_is_refused(
    sqlite_source: Store, collector: CollectorServer, tmp_path: Path
) -> None:
    cursor = tmp_path / "cursor.json"
    (attempt,) = await start(sqlite_source)
    await sqlite_source.add_many_spans(conversation(attempt, 0))
    await forward_spans(sqlite_source, collector.url, cursor, follow=False)
    content = cursor.read_bytes()
    with pytest.raises(Conflict, match=r"is the cursor for http.* a file of its own"):
        await forward_spans(sqlite_source, "http://other:4318", cursor, follow=False)
    async with await open_store("memory://") as other:
        with pytest.raises(Incompatible, match="the cursor belongs to store"):
            await forward_spans(other, collector.url, cursor, follow=False)
    for wrong in (
        b"{}",
        b"\xff",
        content.replace(b'"version":1', b'"version":2').replace(b'"version": 1', b'"version": 2'),
    ):
        cursor.write_bytes(wrong)
        with pytest.raises(Incompatible, match="is not the cursor of a forwarder"):
            await forward_spans(sqlite_source, collector.url, cursor, follow=False)
    cursor.write_bytes(content)
    with CursorFile(cursor, "").locked(), pytest.raises(Conflict, match="another process forwards spans"):
        await forward_spans(sqlite_source, collector.url, cursor, follow=False)
    with pytest.raises(FileNotFoundError):
        await forward_spans(sqlite_source, collector.url, tmp_path / "no" / "cursor.json", follow=False)
    with pytest.raises(Invalid, match="redact"):
        await forward_spans(sqlite_source, collector.url, cursor, follow=False, redact=["x"])
    collector.answers = [Answer(500)] * 1000
    await sqlite_source.add_many_spans(conversation((await start(sqlite_source))[0], 1))
    with pytest.raises(Unavailable, match="has not taken spans"):
        await forward_spans(
            sqlite_source, collector.url, cursor, follow=False, options=CollectorOptions(retry_seconds=0.1)
        )
    assert cursor.read_bytes() == content


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("receiver", ["collector", "rollbook"])
async def test_every_span_arrives_once_although_the_forwarder_is_killed(
    receiver: str, durable_url: str, server: Served, collector: CollectorServer, tmp_path: Path
) -> None:
    cursor = tmp_path / "cursor.json"
    async with await open_store(durable_url) as source:
        attempts = await start(source, rounds(40, few=3))
        target_url = f"sqlite:///{tmp_path / 'target.db'}"
        await copy_store(durable_url, target_url)
        async with await open_store(target_url) as target:
            with server.serving(target) as address:
                to = address if receiver == "rollbook" else collector.url
                for number, attempt in enumerate(attempts):
                    before = _content(cursor)
                    with processes.running(forward, (durable_url, to, str(cursor))):
                        adding = asyncio.ensure_future(_add_slowly(source, attempt, number))
                        await asyncio.to_thread(_wait_for_change, cursor, before)
                        # The process is killed at the end of the block.
                        await asyncio.sleep(random.uniform(0, 0.05))
                    await adding
                report = await forward_spans(source, to, cursor, follow=False)
                assert report.refused == 0
                expected = await spans_of(source)
                if receiver == "rollbook":
                    assert _by_key(await spans_of(target)) == _by_key(expected)
                    return
        assert collector.copies.keys() == {(span["attempt_id"], span["span_id"]) for span in expected}
        # A span that arrives again has the same content, so its id is enough to recognise it.
        assert {len(set(copies)) for copies in collector.copies.values()} == {1}
        copies = sum(len(copies) for copies in collector.copies.values())
        assert copies <= len(expected) + 7 * len(attempts)


async def _add_slowly(source: Store, attempt: Attempt, number: int) -> None:
    for part in range(10):
        await source.add_many_spans(_work(attempt, number, part))
        await asyncio.sleep(random.uniform(0, 0.03))


def _content(cursor: Path) -> bytes | None:
    return cursor.read_bytes() if cursor.exists() else None


def _wait_for_change(cursor: Path, before: bytes | None) -> None:
    """Wait until a forwarder has stored its place."""
    end = time.monotonic() + 30
    while _content(cursor) == before:
        assert time.monotonic() < end
        time.sleep(0.005)


def _work(attempt: Attempt, number: int, part: int) -> list[Span]:
    return [
        span.model_copy(update={"span_id": f"{number:04x}{part:04x}{place:08x}", "sequence_id": 10 * part + place})
        for place, span in enumerate(conversation(attempt, number), 1)
    ]


def _by_key(spans: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {(span["attempt_id"], span["span_id"]): span for span in spans}


def test_a_signal_stops_the_command_after_its_request(collector: CollectorServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'source.db'}"

    async def fill() -> None:
        async with await open_store(url) as store:
            (attempt,) = await start(store)
            await store.add_many_spans(conversation(attempt, 0))

    asyncio.run(fill())
    command = [sys.executable, "-m", "store", "export", "otlp", "--db", url]
    options = ["--to", collector.url, "--cursor", str(tmp_path / "c"), "--forward"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        collector.wait(1)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=30)[0].decode()
    assert process.returncode == 0
    assert output.startswith(f"sent to {collector.url}/v1/traces: 4 spans; 1 requests")
    assert orjson.loads((tmp_path / "c").read_bytes())["spans"] == 4
