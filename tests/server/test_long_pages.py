"""Pages of any length: the JSON of the models, in bounded memory, without effects of slow clients."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from store import open_store
from store.errors import Unavailable
from store.interface.store import Store
from store.models import RolloutConfig
from store.models.queries import RolloutQuery, SpanQuery
from store.server import cached_pages, response_spool
from store.server.partitions import Partitions
from store.server.response_spool import Spool
from store.sql.json_pages import JSONPages
from store.sql.store import SQLStore
from store.testing.samples import make_span
from store.wire.encoding import decode_span_page, dumps
from tests.server.api import Api, speaking_to
from tests.server.test_serving import serving

MEBIBYTE = 1024 * 1024


@pytest.fixture
def store_url(durable_url: str) -> str:
    return durable_url


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shortest body be a long one."""
    monkeypatch.setattr(response_spool, "IN_MEMORY", 100)


async def _various_spans(store: Store) -> str:
    rollout = await store.start_rollout({"q": 1})
    context: dict[str, Any] = {"trace_id": "a" * 32, "span_id": "b" * 16, "is_remote": False, "trace_state": {"k": "v"}}
    usual: dict[str, Any] = {**context, "trace_state": {}}
    link: dict[str, Any] = {"context": context, "attributes": None, "own": 1}
    cases: list[dict[str, Any]] = [
        {},
        {"attributes": {"a": 1, "b": 1.0, "c": True, "d": ["é", ""], "e": 1e300}},
        {"attributes": {"text": '"context":null,"status":{},"parent":1'}},
        {"context": context},
        {"context": context, "parent": {**context, "own": [None]}, "kind": {"x": None}},
        {"status": {"status_code": "ERROR", "description": "short"}},
        {"status": {"status_code": "ERROR", "description": "long" * 100}},
        {"status": {"status_code": "UNSET", "description": None, "own": 1}},
        {"events": [{"name": "e", "attributes": {"k": [1]}, "timestamp": 1.5}], "links": [link]},
        {"start_time": None, "end_time": None, "parent_id": "p", "name": 'quoted "\\ \u2028'},
        {"attributes": {"text": "compressed " * 1000}, "resource": {"attributes": {"s": "x"}, "schema_url": "u"}},
        {"context": usual},
        {"context": usual, "parent": usual},
        {"parent": usual, "resource": {"attributes": {"s": 'a"},"b', "brace": "{", "list": ["x"]}, "schema_url": "{"}},
        {"context": usual, "own": {"resource": {"attributes": {}, "schema_url": ""}, "context": {"a": "{", "b": 1}}},
        {"own": {"resource": {"attributes": {}, "schema_url": ""}}},
    ]
    await store.add_many_spans([make_span(rollout.attempt, 1 + i, **fields) for i, fields in enumerate(cases)])
    return rollout.rollout_id


async def _various_rollouts(store: Store) -> None:
    await store.enqueue_rollout(None)
    await store.enqueue_rollout({"é": [1, 1.0, None]}, "train", "rs", RolloutConfig(timeout_seconds=5.5), {"m": {}})
    for worker_id in (None, "w"):
        started = await store.start_rollout("text" * 2000, metadata={"k": None}, worker_id=worker_id)
        await store.add_span(make_span(started.attempt))
        await store.update_attempt(started.rollout_id, "latest", metadata={"a": [1]})
    amended = await store.enqueue_rollout(1)
    await store.update_rollout(amended.rollout_id, input=[2])
    both = await store.start_rollout(1)
    await store.update_rollout(both.rollout_id, input=3, metadata=None, status="cancelled")
    await store.update_rollout(amended.rollout_id, metadata={"only": "this"}, mode="val")


async def test_span_page_equals_the_json_of_the_models(api: Api, store: Store, in_files: None) -> None:
    ro = await _various_spans(store)
    position = (await store.log.history(ro))[-1].position
    queries: list[dict[str, Any]] = [
        {},
        {"sort_by": "name", "sort_order": "desc", "limit": 4, "offset": 2},
        {"name_contains": "ste", "offset": 1},
        {"filter_logic": "or"},
        {"attempt_id": "latest", "as_at": position, "limit": 500},
        {"at": 5},
        {"name": "nothing"},
    ]
    for query in queries:
        modelled = orjson.loads(dumps(await store.query_spans(ro, **query)))
        written = (await api.post("/spans/search", {"rollout_id": ro, **query})).ok()
        assert written == modelled, query
        asked = "".join(f"&{name}={value}" for name, value in query.items())
        assert (await api.get(f"/spans?rollout_id={ro}{asked}")).ok() == modelled


async def test_no_key_of_a_written_span_stands_twice(api: Api, store: Store) -> None:
    ro = await _various_spans(store)
    body = (await api.get(f"/spans?rollout_id={ro}")).body
    assert len(decode_span_page(body)) == 16

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    json.loads(body, object_pairs_hook=once)


async def test_rollout_page_equals_the_json_of_the_models(api: Api, store: Store, in_files: None) -> None:
    await _various_rollouts(store)
    queries: list[dict[str, Any]] = [
        {},
        {"status_in": ["queuing"]},
        {"rollout_id_contains": "ro-", "sort_by": "rollout_id", "sort_order": "desc", "limit": 3, "offset": 1},
        {"status_in": []},
        {"as_at": 4},
        {"as_at": 2, "sort_by": "status"},
    ]
    for query in queries:
        modelled = orjson.loads(dumps(await store.query_rollouts(**query)))
        assert (await api.post("/rollouts/search", query)).ok() == modelled, query


async def test_a_long_page_announces_its_length_and_comes_whole(api: Api, store: Store, in_files: None) -> None:
    ro = await _various_spans(store)
    answer = await api.get(f"/spans?rollout_id={ro}")
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.headers["content-type"] == "application/json"
    assert "transfer-encoding" not in answer.headers


class _WithoutModels(SQLStore):
    """A store that makes no models of what its queries find."""

    async def find_rollouts(self, query: RolloutQuery) -> Any:
        raise NotImplementedError

    async def find_spans(self, query: SpanQuery) -> Any:
        raise NotImplementedError


async def test_a_database_writes_its_pages_itself() -> None:
    async with await _WithoutModels.open("memory://") as store, speaking_to(Partitions(store)) as api:
        ro = await _various_spans(store)
        assert (await api.get("/rollouts")).ok()["total"] == 1
        assert (await api.get(f"/spans?rollout_id={ro}")).ok()["total"] > 1


class _FailingPages(JSONPages):
    """Pages whose database goes away in the middle of one."""

    async def write_spans(self, write: Callable[[bytes], object], query: SpanQuery) -> int:
        def fail_later(text: bytes) -> None:
            write(text)
            raise Unavailable("the database is gone")

        return await super().write_spans(fail_later, query)


async def test_an_error_in_the_middle_of_a_page_has_its_status(
    durable_url: str, in_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_pages, "JSONPages", _FailingPages)
    async with await SQLStore.open(durable_url, create=True) as store, speaking_to(Partitions(store)) as api:
        ro = await _various_spans(store)
        answer = await api.get(f"/spans?rollout_id={ro}")
        assert (answer.status, answer.json["error_type"]) == (503, "Unavailable")
        assert (await api.get("/health")).status == 200


def test_spool_on_a_full_disk_raises_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    body = Spool()
    with pytest.raises(Unavailable, match="no temporary file can store"):
        body.write(bytes(response_spool.IN_MEMORY + 1))
    body.close()


async def test_a_client_that_reads_nothing_is_cut_off_and_keeps_nothing(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(response_spool, "STALL_SECONDS", 0.2)
    rollout = await store.start_rollout(1)
    for _ in range(3):
        await store.add_span(make_span(rollout.attempt, attributes={"text": "x" * (8 * MEBIBYTE)}))
    port = int(api.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /v1/agl/spans?rollout_id=%s HTTP/1.1\r\nHost: a\r\n\r\n" % rollout.rollout_id.encode())
        await _until(lambda: _established(port) == 1)
        await _until(lambda: _established(port) == 0)
    assert (await api.get("/health")).status == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.005)


def _established(port: int) -> int:
    """Return how many connections to a port its server has."""
    local, established = f":{port:04X}", "01"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for row in rows if row[1].endswith(local) and row[3] == established)


@pytest.mark.slow
@pytest.mark.parametrize("count,length", [(5_000, 6_000), pytest.param(50_000, 1_500, marks=pytest.mark.torture_only)])
async def test_a_long_trace_is_answered_in_bounded_memory(durable_url: str, count: int, length: int) -> None:
    async with await open_store(durable_url) as store:
        rollout = await store.start_rollout(1)
        for start in range(1, count, 2_500):
            spans = [make_span(rollout.attempt, start + i, attributes={"text": "x" * length}) for i in range(2_500)]
            await store.add_many_spans(spans)
    with serving("serve", "--db", durable_url, "--port", "0") as (process, address):
        async with aiohttp.ClientSession() as session:
            ask = f"{address}/v1/agl/spans?rollout_id={rollout.rollout_id}"
            assert (await _read(session, ask + "&limit=100"))[0] > 100 * length
            before = _peak(process.pid)
            size, end = await _read(session, ask)
            grown = _peak(process.pid) - before
    assert re.search(rb'\],"limit":-1,"offset":0,"total":%d\}$' % count, end)
    print(f"{size / MEBIBYTE:.0f} MiB of {count:,} spans: the server grew by {grown / MEBIBYTE:.1f} MiB")
    assert size > count * length > 28 * MEBIBYTE
    assert grown < 16 * MEBIBYTE


async def _read(session: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    """Return how long an answer is, and its end."""
    size, end = 0, b""
    async with session.get(url) as answer:
        assert answer.status == 200
        async for part in answer.content.iter_chunked(MEBIBYTE):
            size += len(part)
            end = (end + part)[-100:]
    return size, end


def _peak(pid: int) -> int:
    """Return the most memory that a process ever had, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match
    return int(match[1]) * 1024
