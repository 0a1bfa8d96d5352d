"""The fast path answers ordinary calls without the application, with the same answers."""

from __future__ import annotations

import asyncio
import re
import socket
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from store.runtime.clock import system_clock
from store.server.app import FAST_PATH, build_app
from store.server.auth.keyring import FRESH_SECONDS, STALE_SECONDS, KeyRing
from store.server.partitions import Partitions
from store.server.process.serve import Server
from store.sql.api_keys import Key, Keys, Role
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.wire.listener import bind
from tests.server.api import PREFIX, a_span
from tests.server.keyed import Steps

_STATUS = re.compile(rb"HTTP/1.1 (\d+)")
_LENGTH = re.compile(rb"content-length: (\d+)")
# What differs between two answers to the same: when, which request, what they are about, and so their length.
_VARYING = re.compile(rb"date: .*|content-length: .*|x-request-id: .*|ro-[0-9a-f]{12}|at-[0-9a-f]{8}|_time\":[0-9.]+")
_NEVER = 1e6
"""The seconds until overdue attempts are looked for again, which only the application does."""
_UNUSUAL = b"x-unusual: 1\r\n"
# What both ways are asked; the last two of them are refused.
_CALLS: tuple[tuple[str, Any], ...] = (
    ("/queues/rollouts/enqueue", {"rollouts": [{"input": "é", "metadata": {"b": None}}]}),
    ("/queues/rollouts/dequeue", {"limit": 1, "worker_id": "w"}),
    ("/queues/rollouts/dequeue", {"limit": 3}),
    ("/spans", a_span("{rollout}", "{attempt}", attributes={"a": 1.5}, more="kept")),
    ("/spans", a_span("{rollout}", "{attempt}", attributes={"a": 2.5})),
    (
        "/spans/batch",
        {
            "spans": [a_span("{rollout}", "{attempt}", span_id=name) for name in ("c", "d", "c")],
            "number": True,
        },
    ),
    ("/spans/batch", {"spans": [a_span("{rollout}", "{attempt}", span_id="c", name="other")]}),
    ("/spans/batch", {"spans": [a_span("{rollout}", "{attempt}", span_id="c", trace_id="e" * 32)]}),
    ("/spans/next", {"rollout_id": "{rollout}", "attempt_id": "{attempt}"}),
    ("/rollouts/{rollout}/attempts/{attempt}/events", {"events": [{"kind": "log", "own": None}, {"kind": "result"}]}),
    ("/rollouts/{rollout}/attempts/{attempt}", {"status": "succeeded"}),
    (
        "/rollouts/{rollout}/attempts/{attempt}/finish",
        {"status": "failed", "spans": [a_span("{rollout}", "{attempt}", span_id="b")], "number": True, "claim_as": "w"},
    ),
    ("/rollouts/{rollout}/attempts/at-unknown/finish", {"status": "succeeded"}),
    ("/rollouts/{rollout}/attempts/latest", {"last_heartbeat_time": 1.5}),
    ("/rollouts/{rollout}/attempts/at-unknown/events", {"events": [{"kind": "log"}]}),
    ("/spans", a_span("{rollout}", "at-unknown")),
)


class Line:
    """A connection on which requests are written as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *requests: bytes) -> None:
        self.writer.write(b"".join(requests))

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Return status, head and body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status, length = _STATUS.match(head), _LENGTH.search(head)
        assert status is not None, head
        assert length is not None, head
        return int(status[1]), head, await self.reader.readexactly(int(length[1]))

    async def ask(self, path: str, body: Any, more: bytes = b"") -> tuple[int, bytes, bytes]:
        self.send(posted(path, body, more))
        return await self.answer()


class Served:
    """A server, and which requests its application saw."""

    def __init__(self, server: Server, app: Any, address: tuple[str, int]) -> None:
        self.server = server
        self.metrics = app.state.metrics
        self.seen: list[str] = []
        self.address = address
        application = app.build_middleware_stack()

        async def seen(scope: Scope, receive: Receive, send: Send) -> None:
            self.seen.append(scope["path"])
            await application(scope, receive, send)

        app.middleware_stack = seen

    @asynccontextmanager
    async def line(self) -> AsyncGenerator[Line]:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            async with asyncio.timeout(60):
                yield Line(reader, writer)
        finally:
            writer.close()
            # It was perhaps closed by the server already.
            with suppress(OSError):
                await writer.wait_closed()


def posted(path: str, body: Any, more: bytes = b"") -> bytes:
    """Return a request as an ordinary client writes it, with further headers."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    head = f"POST {PREFIX}{path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head.encode() + more + b"content-length: %d\r\n\r\n" % len(raw) + raw


@asynccontextmanager
async def serving(store: SQLStore, **settings: Any) -> AsyncGenerator[Served]:
    started = asyncio.Event()
    app = build_app(Partitions(store), **settings)
    server = Server(app, started.set)
    with bind("127.0.0.1", 0) as listener:
        running = asyncio.ensure_future(server.serve([listener]))
        await started.wait()
        try:
            yield Served(server, app, listener.getsockname())
        finally:
            server.should_exit = True
            await running


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[SQLStore]:
    async with await SQLStore.open(store_url, scan_debounce_seconds=_NEVER) as store:
        # Which looks for overdue attempts now, and not again.
        await store.enqueue_rollout("first")
        await store.dequeue_rollout()
        yield store


@pytest.fixture
async def served(store: SQLStore) -> AsyncIterator[Served]:
    async with serving(store) as served:
        yield served


async def _story(served: Served, more: bytes = b"") -> list[bytes]:
    """Return the answers to all calls, without what no two answers share."""
    answers: list[bytes] = []
    ids = {"rollout": "", "attempt": ""}
    async with served.line() as line:
        for path, body in _CALLS:
            text = orjson.dumps(body).decode()
            for name, value in ids.items():
                path, text = path.replace(f"{{{name}}}", value), text.replace(f"{{{name}}}", value)  # noqa: PLW2901
            _, head, answer = await line.ask(path, text.encode(), more)
            answers.append(_VARYING.sub(b"", head + answer))
            for claimed in orjson.loads(answer) if path.endswith("dequeue") else ():
                ids = {"rollout": claimed["rollout_id"], "attempt": claimed["attempt"]["attempt_id"]}
    return answers


async def test_both_ways_lead_to_the_same_answers(served: Served) -> None:
    ordinary = await _story(served)
    # But for a span that was there already, of which the store tells its log.
    assert served.seen == [f"{PREFIX}/spans"]
    served.seen.clear()
    assert await _story(served, _UNUSUAL) == ordinary
    assert len(served.seen) == len(_CALLS)


@pytest.mark.parametrize("by_environment", [True, False])
async def test_switched_off_it_leaves_every_call_to_the_application_with_the_same_answers(
    store: SQLStore, served: Served, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    ordinary = await _story(served)
    if by_environment:
        monkeypatch.setenv(FAST_PATH, "0")
    async with serving(store, has_fast_path=by_environment) as plain:
        assert await _story(plain) == ordinary
        assert len(plain.seen) == len(_CALLS)


@pytest.mark.parametrize("has_fast_path", [True, False])
async def test_a_claim_that_its_client_does_not_read_is_released(store: SQLStore, has_fast_path: bool) -> None:
    created = await store.enqueue_rollout("second")
    async with serving(store, has_fast_path=has_fast_path) as served:
        with socket.create_connection(served.address) as leaver:
            leaver.sendall(posted("/queues/rollouts/dequeue", {}))
        await _once(lambda: served.metrics.families()[0].samples)
        claimed = await store.dequeue_rollout(wait_seconds=60)
        assert claimed is not None
        assert claimed.rollout_id == created.rollout_id
        assert "claim.released" in [event.type for event in await store.log.history(created.rollout_id)]
        assert len(served.seen) == (not has_fast_path)


@pytest.mark.parametrize("has_fast_path", [True, False])
async def test_a_claim_at_the_end_of_an_attempt_is_released_if_it_is_not_read(
    store: SQLStore, has_fast_path: bool
) -> None:
    for number in range(2):
        await store.enqueue_rollout(number)
    first = await store.dequeue_rollout("w")
    assert first is not None
    path = f"/rollouts/{first.rollout_id}/attempts/{first.attempt.attempt_id}/finish"
    async with serving(store, has_fast_path=has_fast_path) as served:
        with socket.create_connection(served.address) as leaver:
            leaver.sendall(posted(path, {"status": "succeeded", "claim_as": "w"}))
        await _once(lambda: served.metrics.families()[0].samples)
        claimed = await store.dequeue_rollout(wait_seconds=60)
        assert claimed is not None
        assert (claimed.input, claimed.attempt.sequence_id) == (1, 1)
        assert "claim.released" in [event.type for event in await store.log.history(claimed.rollout_id)]
        assert len(served.seen) == (not has_fast_path)


@pytest.mark.parametrize(
    "path, body, more",
    [
        ("/queues/rollouts/dequeue", b'{"wait_seconds": 0.01}', b""),
        ("/queues/rollouts/dequeue", b"", b""),
        ("/queues/rollouts/dequeue", b'{"limit": 0}', b""),
        ("/queues/rollouts/dequeue", b"{}", b"origin: http://127.0.0.1\r\n"),
        ("/queues/rollouts/dequeue", b"{}", b"accept: */*\r\naccept: text/plain\r\n"),
        ("/queues/rollouts/dequeue", b"{}", b"connection: close\r\n"),
        ("/queues/rollouts/dequeue", b"{}", b"upgrade: h2c\r\n"),
        ("/queues/rollouts/dequeue?limit=2", b"{}", b""),
        ("/queues/rollouts/enqueue", b'{"rollouts": []}', b""),
        ("/queues/rollouts/enqueue", orjson.dumps({"rollouts": [{"input": "x" * 70_000}]}), b""),
        ("/queues/rollouts/enqueue", b"{", b""),
        ("/queues/rollouts/enqueue", b'{"rollouts": [{"input": 1e400}]}', b""),
        ("/queues/rollouts/enqueue", b'{"rollouts": [{"input": 1}]}', b"idempotency-key: no key\r\n"),
        ("/rollouts/ro-1/attempts/%6catest", b"{}", b""),
        ("/rollouts/ro-1/attempts/search", b"{}", b""),
        ("/rollouts/ro-1/attempts/at-1", b'{"status": null}', b""),
        ("/rollouts/ro-1/attempts/at-1/events", b'{"events": []}', b""),
        ("/rollouts/ro-1/attempts/at-1/events", b'{"events": [{"kind": "phase.started"}]}', b""),
        ("/rollouts/ro-1", b"{}", b""),
        ("/statistics", b"{}", b""),
    ],
)
async def test_unusual_requests_go_to_the_application(served: Served, path: str, body: bytes, more: bytes) -> None:
    async with served.line() as line:
        await line.ask(path, body, more)
    assert served.seen == [f"{PREFIX}{path.partition('?')[0].replace('%6c', 'l')}"]


async def test_a_repeated_call_is_answered_again(served: Served, store: SQLStore) -> None:
    key = b"idempotency-key: 0123456789abcdef\r\n"
    async with served.line() as line:
        first = await line.ask("/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]}, key)
        again = await line.ask("/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]}, key)
        assert served.seen == [f"{PREFIX}/queues/rollouts/enqueue"]
        status, _, body = await line.ask("/queues/rollouts/enqueue", {"rollouts": [{"input": 2}]}, key)
    assert (again[0], again[2]) == (201, first[2])
    assert (status, orjson.loads(body)["error_type"]) == (400, "Conflict")
    assert len(await store.query_rollouts()) == 2


async def test_requests_sent_at_once_are_answered_in_their_order(served: Served) -> None:
    def enqueue(number: int, more: bytes = b"") -> bytes:
        return posted("/queues/rollouts/enqueue", {"rollouts": [{"input": number}]}, more)

    async with served.line() as line:
        for _ in range(3):
            line.send(enqueue(1), enqueue(2), enqueue(3, _UNUSUAL), enqueue(4))
            for number in (1, 2, 3, 4):
                _, _, body = await line.answer()
                assert orjson.loads(body)[0]["input"] == number


async def test_a_request_in_pieces_is_put_together(served: Served) -> None:
    request = posted("/queues/rollouts/enqueue", {"rollouts": [{"input": "in pieces"}]})
    async with served.line() as line:
        for part in (request[:30], request[30:-20], request[-20:-10], request[-10:]):
            line.send(part)
            await line.writer.drain()
            # A turn of the server, which runs in this loop, so that the pieces arrive one by one.
            await asyncio.sleep(0.01)
        status, _, body = await line.answer()
    assert (status, orjson.loads(body)[0]["input"]) == (201, "in pieces")
    assert served.seen == []


async def test_a_name_that_is_not_this_machines_is_refused_each_time(store: SQLStore) -> None:
    body = {"rollouts": [{"input": 1}]}
    stranger = posted("/queues/rollouts/enqueue", body).replace(b"127.0.0.1", b"evil.example")
    async with serving(store, is_local=True) as served, served.line() as line:
        assert [(await line.ask("/queues/rollouts/enqueue", body))[0] for _ in range(2)] == [201, 201]
        # A name is known to be this machine's once it was let in.
        assert len(served.seen) == 1
        for _ in range(2):
            async with served.line() as other:
                other.send(stranger)
                assert (await other.answer())[0] == 403


@dataclass(slots=True)
class Keyed:
    """A server that asks for keys, once there are any."""

    served: Served
    keys: Keys
    steps: Steps
    clock: ManualClock

    async def key(self, role: Role, **details: Any) -> tuple[Key, bytes]:
        """Make a key that the server knows of; return it, and the header that sends it."""
        key, text = await self.keys.create(role, **details)
        await self.keys.enforce()
        await self.grow_old()
        return key, b"authorization: Bearer %b\r\n" % text.encode()

    async def grow_old(self) -> None:
        """Let the server read its keys again, which the application does."""
        self.steps.now += STALE_SECONDS
        await self.claim()
        self.served.seen.clear()

    async def claim(self, header: bytes = b"") -> int:
        """Return the status of an ordinary request, on a line of its own: a refusal ends it."""
        async with self.served.line() as line:
            return (await line.ask("/queues/rollouts/dequeue", {}, header))[0]


@pytest.fixture
async def keyed(store_url: str) -> AsyncIterator[Keyed]:
    steps, clock = Steps(), ManualClock(system_clock())
    async with await SQLStore.open(store_url, scan_debounce_seconds=_NEVER) as store, AsyncExitStack() as stack:
        ring, keys = KeyRing(store_url, clock=clock, monotonic=steps), await Keys.open(store_url, create=True)
        stack.push_async_callback(keys.close)
        stack.push_async_callback(ring.close)
        await store.enqueue_rollout("first")
        await store.dequeue_rollout()
        served = await stack.enter_async_context(serving(store, ring=ring))
        yield Keyed(served, keys, steps, clock)


async def test_without_keys_the_fast_path_is_taken_once_they_were_looked_for(keyed: Keyed) -> None:
    assert [await keyed.claim(), await keyed.claim()] == [200, 200]
    assert len(keyed.served.seen) == 1
    await keyed.key("admin")
    assert await keyed.claim() == 401


async def test_with_a_key_that_may_the_fast_path_is_taken(keyed: Keyed) -> None:
    _, header = await keyed.key("runner")
    assert await keyed.claim(header) == 200
    assert await keyed.claim(header.replace(b"authorization: Bearer", b"x-api-key:")) == 200
    assert keyed.served.seen == []
    # It is still the key of both ways.
    assert await keyed.claim(header + _UNUSUAL) == 200


async def test_with_a_key_both_ways_lead_to_the_same_answers(keyed: Keyed) -> None:
    _, header = await keyed.key("admin")
    ordinary = await _story(keyed.served, header)
    assert keyed.served.seen == [f"{PREFIX}/spans"]
    assert await _story(keyed.served, header + _UNUSUAL) == ordinary


async def test_the_fast_path_does_not_lead_past_a_key(keyed: Keyed) -> None:
    key, header = await keyed.key("runner")
    _, reader = await keyed.key("reader")
    _, elsewhere = await keyed.key("runner", partition="elsewhere")
    _, short_lived = await keyed.key("runner", expires_seconds=100)
    assert await keyed.claim() == 401
    assert await keyed.claim(b"authorization: Bearer nonsense\r\n") == 401
    assert await keyed.claim(header[:-4] + b"xx\r\n") == 401
    assert await keyed.claim(header + reader) == 401
    assert await keyed.claim(reader) == 403
    assert await keyed.claim(elsewhere) == 403
    assert await keyed.claim(short_lived) == 200
    keyed.clock.advance(200)
    assert await keyed.claim(short_lived) == 401
    assert await keyed.claim(header) == 200
    await keyed.keys.revoke(key.key_id)
    await keyed.grow_old()
    assert await keyed.claim(header) == 401


async def test_keys_that_grew_old_are_read_again_by_the_application(keyed: Keyed) -> None:
    _, header = await keyed.key("runner")
    keyed.steps.now += FRESH_SECONDS
    assert await keyed.claim(header) == 200
    assert len(keyed.served.seen) == 1


async def test_fast_path_separates_idempotency_keys_by_api_key(keyed: Keyed) -> None:
    (_, one), (_, other) = await keyed.key("admin"), await keyed.key("admin")
    call, body = b"idempotency-key: 0123456789abcdef\r\n", {"rollouts": [{"input": 1}]}
    async with keyed.served.line() as line:
        answers = [await line.ask("/queues/rollouts/enqueue", body, header + call) for header in (one, other, one)]
    first, second, again = (orjson.loads(answer)[0]["rollout_id"] for _, _, answer in answers)
    assert first == again != second


async def test_each_answer_is_counted_by_its_route(served: Served) -> None:
    async with served.line() as line:
        await line.ask("/queues/rollouts/dequeue", {})
        await line.ask("/rollouts/ro-1/attempts/at-1", {"status": "failed"})
    (requests, _) = served.metrics.families()
    assert {(labels["route"], labels["status"]): count for _, labels, count in requests.samples} == {
        (f"{PREFIX}/queues/rollouts/dequeue", "200"): 1,
        (f"{PREFIX}/rollouts/{{rollout_id}}/attempts/{{attempt_id}}", "400"): 1,
    }
    assert served.seen == []


async def test_client_that_leaves_before_its_body_has_arrived_is_counted(served: Served) -> None:
    async with served.line() as line:
        line.send(posted("/queues/rollouts/dequeue", b"{}")[:-1])
        await line.writer.drain()
    samples = await _once(lambda: served.metrics.families()[0].samples)
    assert [(labels["status"], count) for _, labels, count in samples] == [("0", 1)]


async def test_request_in_progress_is_answered_before_the_server_stops(tmp_path: Path) -> None:
    path = tmp_path / "stopping.db"
    async with await SQLStore.open(f"sqlite:///{path}", scan_debounce_seconds=_NEVER) as store:
        await store.enqueue_rollout("first")
        async with serving(store) as served, served.line() as line:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                line.send(posted("/queues/rollouts/dequeue", {}))
                (connection,) = await _once(lambda: list(served.server.server_state.connections))
                await _once(lambda: connection.cycle is not None)
                served.server.should_exit = True
                await _once(lambda: not connection.cycle.keep_alive)
                other.execute("ROLLBACK")
            status, head, body = await line.answer()
            assert (status, len(orjson.loads(body))) == (200, 1)
            assert b"\r\nconnection: close\r\n" in head
            assert await line.reader.read() == b""
            assert served.seen == []


async def _once(condition: Any) -> Any:
    """Return what holds once it does."""
    async with asyncio.timeout(60):
        while not (result := condition()):  # noqa: ASYNC110 - nothing there tells of it
            await asyncio.sleep(0.01)
    return result
