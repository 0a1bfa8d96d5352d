"""Calls that wait, and clients that disconnect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from store.domain.idempotency import Repeat
from store.domain.views import ATTEMPT_COLUMNS, ClaimView
from store.interface.store import Store
from store.models import AttemptedRollout
from store.server import response_spool
from store.server.app import build_app
from store.server.partitions import Partitions
from store.server.process import connection
from store.server.process.serve import Server
from store.sql.queue import SQLQueue
from store.sql.store import SQLStore
from store.wire.listener import bind
from tests.server.api import ON_BOTH_DATABASES, Api, speaking_to
from tests.torture import Rounds

HANG = 60
# Makes the databases known.
import_module("store.opening")
DEQUEUE = "/v1/agl/queues/rollouts/dequeue"


class Leaver:
    """A client on a bare socket, which can leave at any instant."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port))

    def post(self, path: str, body: bytes) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)

    def leave(self) -> None:
        self.socket.close()


async def test_a_client_that_leaves_no_longer_waits(api: Api) -> None:
    leaver = Leaver(api.url)
    leaver.post(DEQUEUE, b'{"wait_seconds": 600}')
    async with asyncio.timeout(HANG):
        await api.until_parked()
        leaver.leave()
        await api.until_parked(0)
        (created,) = await api.enqueue()
        (claimed,) = await api.dequeue()
    assert claimed["rollout_id"] == created["rollout_id"]
    assert claimed["attempt"]["sequence_id"] == 1


async def test_a_client_that_leaves_an_unbounded_wait_leaves_nothing_behind(api: Api) -> None:
    (created,) = await api.enqueue()
    leaver = Leaver(api.url)
    leaver.post("/v1/agl/waits/rollouts", b'{"rollout_ids": ["%s"]}' % created["rollout_id"].encode())
    async with asyncio.timeout(HANG):
        await api.until_parked()
        leaver.leave()
        await api.until_parked(0)


class GivesBack(SQLStore):
    """A store that can undo claims after it has handed them out."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = Remembering(self.core)


class Remembering(SQLQueue):
    """The queue of such a store."""

    handed_out: ClassVar[dict[str, ClaimView]] = {}

    async def claim(self, limit: int, worker_id: str | None, wait_seconds: float) -> list[ClaimView] | Repeat:
        answer = await super().claim(limit, worker_id, wait_seconds)
        for claim in answer if isinstance(answer, list) else ():
            if claim.rollout.attempt is not None:
                self.handed_out[claim.rollout.attempt.row[ATTEMPT_COLUMNS.index("attempt_id")]] = claim
        return answer

    async def release_claims(self, claimed: Sequence[AttemptedRollout]) -> None:
        claims = [self.handed_out.pop(rollout.attempt.attempt_id) for rollout in claimed]
        self.core.thread.call_soon(self._give_back, claims, claimed[0].attempt.worker_id)


@ON_BOTH_DATABASES
@pytest.mark.torture
@pytest.mark.slow
async def test_a_client_that_leaves_at_the_instant_of_the_claim_takes_nothing_with_it(
    store_url: str, rounds: Rounds
) -> None:
    read = unread = 0
    turns = rounds(1000, few=12)
    async with await GivesBack.open(store_url) as store, speaking_to(Partitions(store)) as api:
        for turn in count():
            # A busy machine may need longer instants to see both kinds.
            if turn >= turns and read and unread:
                break
            leaver = Leaver(api.url)
            leaver.post(DEQUEUE, b'{"wait_seconds": 600}')
            async with asyncio.timeout(HANG):
                await api.until_parked()
                enqueueing = asyncio.ensure_future(store.enqueue_rollout(turn))
                # Before, at and after the claim, as often as not when its answer is on the way or has come.
                await asyncio.sleep(turn % 25 / 1000 * (1 + turn // turns))
                leaver.leave()
                created = await enqueueing
                claimed = await store.dequeue_rollout(wait_seconds=HANG)
            assert claimed is not None
            assert claimed.rollout_id == created.rollout_id
            history = [event.type for event in await store.log.history(claimed.rollout_id)]
            unread += "claim.released" in history
            read += "claim.released" not in history
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


async def test_a_client_that_never_reads_is_let_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_spool, "STALL_SECONDS", 1.0)
    for _ in range(20):
        await store.enqueue_rollout("x" * 1_000_000)
    listener = bind("127.0.0.1", 0)
    started = asyncio.Event()
    server = Server(build_app(Partitions(store)), started.set, idle_seconds=0.1)
    port = listener.getsockname()[1]
    serving = asyncio.ensure_future(server.serve([listener]))
    await started.wait()
    never = Leaver(f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(HANG):
            never.socket.sendall(b"GET /v1/agl/rollouts HTTP/1.1\r\nHost: x\r\n\r\n")
            while not server.server_state.connections:  # noqa: ASYNC110 - nothing there tells of it
                await asyncio.sleep(0)
            while server.server_state.connections:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
    finally:
        never.leave()
        server.should_exit = True
        await serving


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/agl/spa", b"POST /v1/agl/spans HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"]
)
async def test_a_request_that_never_comes_to_its_end_is_let_go(
    store: Store, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "READ_SECONDS", 0.05)
    async with speaking_to(Partitions(store)) as api:
        slow = Leaver(api.url)
        slow.socket.settimeout(HANG)
        slow.socket.sendall(sent)
        assert await asyncio.to_thread(slow.socket.recv, 1) == b""
        slow.leave()
        monkeypatch.undo()
        assert len(await api.enqueue()) == 1


async def test_a_request_without_end_is_cut_off(api: Api) -> None:
    endless = Leaver(api.url)
    async with asyncio.timeout(HANG):
        endless.socket.sendall(b"GET /v1/agl/health HTTP/1.1\r\nHost: x\r\n")
        while not await _is_cut_off(endless.socket, b"X-More: " + b"x" * 8192 + b"\r\n"):
            pass
        assert (await api.get("/health")).status == 200
    endless.leave()


async def _is_cut_off(sender: socket.socket, more: bytes) -> bool:
    await asyncio.sleep(0)
    try:
        sender.sendall(more)
    except ConnectionError:
        return True
    return False


async def test_a_large_body_that_comes_with_its_head_is_taken(api: Api) -> None:
    text = "x" * 300_000
    (created,) = await api.enqueue(text)
    assert (await api.get(f"/rollouts/{created['rollout_id']}")).ok()["input"] == text


async def test_incomplete_requests_do_not_block_other_clients(api: Api) -> None:
    half = Leaver(api.url)
    half.socket.sendall(b"POST /v1/agl/spans HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    never = Leaver(api.url)
    never.socket.sendall(b"POST /v1/agl/spa")
    async with asyncio.timeout(HANG):
        assert len(await api.enqueue()) == 1
    half.leave()
    never.leave()
    async with asyncio.timeout(HANG):
        assert len(await api.dequeue()) == 1
