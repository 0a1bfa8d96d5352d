"""A server is killed during a run and during its re-run: viewers miss no event and receive none twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import cast

import pytest

from store import open_store
from store.client import HTTPStore
from store.models import AttemptedRollout, RunEvent, RunFrame, apply_frames
from tests.client.server_process import ServerProcess
from tests.runs.following import last_of
from tests.runs.trading import MARKET
from tests.runs.trading_runs import begin, ended, seen
from tests.torture import Rounds

BETWEEN_KILLS = 12
"""How many calls are answered between two kills."""
RETRY_SECONDS = 120
HANG = 120


class Viewer:
    """Whoever follows a run all the time, whatever becomes of the server.

    Attributes:
        frames: all that was told.
    """

    def __init__(self, store: HTTPStore, rollout_id: str, view: str) -> None:
        self.frames: list[RunFrame] = []
        self._progress = asyncio.Condition()
        self.task = asyncio.ensure_future(self._follow(store, rollout_id, view))

    async def _follow(self, store: HTTPStore, rollout_id: str, view: str) -> None:
        stream = cast("AsyncGenerator[RunFrame]", store.runs.follow(rollout_id, view=view))
        async with aclosing(stream) as frames:
            async for frame in frames:
                async with self._progress:
                    self.frames.append(frame)
                    self._progress.notify_all()

    async def until(self, seq: int) -> None:
        """Return once all up to a version was told."""
        async with asyncio.timeout(HANG), self._progress:
            await self._progress.wait_for(lambda: bool(self.frames) and self.frames[-1].seq >= seq)

    async def leave(self) -> None:
        """Follow no more."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


class Teller:
    """Whoever runs the run: tells of it call by call, each under a key of its own."""

    def __init__(self, store: HTTPStore) -> None:
        self._store = store
        self._calls = 0
        self.answered: list[int] = []
        self.progress = asyncio.Condition()

    async def tell(self, run: AttemptedRollout, calls: int) -> None:
        """Make so many calls."""
        for _ in range(calls):
            self._calls += 1
            node = f"macro_synthesis {self._calls}"
            events = [RunEvent(kind=kind, node_id=node, scope=MARKET, phase="scan") for kind in ("thought", "result")]
            where = (run.rollout_id, run.attempt.attempt_id)
            versions = await self._store.runs.append_events(*where, events, key=str(self._calls))
            async with self.progress:
                self.answered += versions
                self.progress.notify_all()

    async def wait_for_acknowledged(self, count: int) -> None:
        """Return once so many events were acknowledged."""
        async with asyncio.timeout(HANG), self.progress:
            await self.progress.wait_for(lambda: len(self.answered) >= count)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_viewers_of_a_server_that_is_killed_in_a_run_and_its_rerun_see_the_log(
    durable_url: str, rounds: Rounds
) -> None:
    server = ServerProcess(durable_url)
    await asyncio.to_thread(server.start)
    kills = rounds(20, few=1)
    try:
        async with (
            HTTPStore(server.url, retry_seconds=RETRY_SECONDS) as store,
            HTTPStore(server.url, retry_seconds=RETRY_SECONDS) as watching,
        ):
            run = await begin(store)
            viewers = [Viewer(watching, run.rollout_id, view) for view in ("raw", "head")]
            # A viewer that connects for the first time after the fork gets the whole view instead of a `fork` frame.
            for viewer in viewers:
                await viewer.until(1)
            teller = Teller(store)
            await _run_while_killed(server, kills, teller, run)
            await ended(store, run)
            again = await store.runs.fork(run.rollout_id, phase="scan", request_id="again")
            await _run_while_killed(server, kills, teller, again.rollout)
            await ended(store, again.rollout)
            last = await last_of(store, run)
            for viewer in viewers:
                await viewer.until(last)
                await viewer.leave()
    finally:
        await asyncio.to_thread(server.kill)
    await _see_the_log(durable_url, run, teller, *(viewer.frames for viewer in viewers))


async def _run_while_killed(server: ServerProcess, kills: int, teller: Teller, run: AttemptedRollout) -> None:
    telling = asyncio.ensure_future(teller.tell(run, (kills + 1) * BETWEEN_KILLS))
    for _ in range(kills):
        await teller.wait_for_acknowledged(len(teller.answered) + 2 * BETWEEN_KILLS)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await telling


async def _see_the_log(
    url: str, run: AttemptedRollout, teller: Teller, raw: list[RunFrame], head: list[RunFrame]
) -> None:
    async with await open_store(url) as store:
        everything = (await seen(store, run, "raw")).items
        assert [event.version for event in everything] == teller.answered
        told = [frame.event for frame in raw if frame.event is not None]
        assert told == everything
        assert apply_frames([], head) == (await seen(store, run)).items
        assert [frame.attempt for frame in head if frame.kind == "fork"] == [2]
        connections = sum(frame.kind == "hello" for frame in raw)
        assert connections > 1
        assert (await store.log.verify()).ok
        print(f"\n{len(everything)} events told over {connections} connections")
