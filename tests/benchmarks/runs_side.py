"""Runs in the benchmark: writers and viewers, each in its own process."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from store import open_store
from store.interface.store import Store
from store.models import AttemptedRollout, RunEvent
from store.run_folders.folder_phases import FUND, MARKET, TA
from store.wire.paths import RUN_EVENTS
from tests.benchmarks.protocol import serve
from tests.benchmarks.rollbook_side import Rollbook
from tests.benchmarks.workload import cpu_seconds, percentiles

_TICKERS = ("RIG", "TSDD", "ACME", "OILY")
_PROMPT = "What of it? " * 16
_RESPONSE = "It may go up, and it may go down. " * 12
_SENT = re.compile(rb'"message":"sent ([0-9.]+)"')
_PER_CALL = 100

NAMES = [
    (phase.name, node, scope)
    for phase in TA.phases
    for scope in {"market": (MARKET,), "ticker": _TICKERS, "portfolio": (FUND,)}[phase.scope_kind]
    for node in phase.nodes
]


def events_of(number: int, sent: str | None = None) -> list[RunEvent]:
    """Return what a pipeline says in one call: thoughts, and results with prompt, response and metrics."""
    events: list[RunEvent] = []
    for index in range(_PER_CALL if sent is None else 10):
        phase, node, scope = NAMES[(number + index) % len(NAMES)]
        about: dict[str, Any] = {"node_id": node, "scope": scope, "phase": phase}
        if index % 2:
            metrics = {"model": "stub", "tokens_in": 300 + index, "tokens_out": 60}
            text = f"{index} {_RESPONSE}"
            events.append(
                RunEvent(kind="result", prompt=_PROMPT, response=text, metrics=metrics, message=sent, **about)
            )
        else:
            events.append(RunEvent(kind="thought", message=sent or f"{node} thinks of {scope}", **about))
    return events


class Runs(Rollbook):
    """Commands on runs of the store that was opened last."""

    async def append(self, callers: int, calls: int) -> dict[str, float]:
        """Append so many calls of 100 events, by callers that each have a run."""
        runs = [await self._begun() for _ in range(callers)]
        told = [events_of(number) for number in range(16)]
        begun, cpu = time.perf_counter(), cpu_seconds()

        async def one(run: AttemptedRollout) -> None:
            for number in range(calls // callers):
                await self._live.runs.append_events(run.rollout_id, run.attempt.attempt_id, told[number % len(told)])

        await asyncio.gather(*map(one, runs))
        seconds, events = time.perf_counter() - begun, calls // callers * callers * _PER_CALL
        return {"per_second": events / seconds, "cpu_us": (cpu_seconds() - cpu) * 1e6 / events}

    async def _begun(self) -> AttemptedRollout:
        await self._live.add_resources({"phases": TA})
        return await self._live.start_rollout({"date": "2026-11-20"})

    async def long_run(self, events: int, reruns: int) -> dict[str, Any]:
        """Make a run of so many events with so many re-runs in it; return its id, and what each fork took, in ms."""
        store, run = self._live, await self._begun()
        rollout_id, calls, numbers = run.rollout_id, events // _PER_CALL, count()

        async def say(attempt_id: str, times: int) -> None:
            for _ in range(times):
                await store.runs.append_events(rollout_id, attempt_id, events_of(next(numbers) * 7))

        attempt = run.attempt.attempt_id
        await say(attempt, calls // 2)
        for ticker in _TICKERS:
            await store.runs.save_checkpoint(
                rollout_id, attempt, scope=ticker, name="analysts_checkpoint", state={"market_report": "up"}
            )
        forks: list[float] = []
        for number in range(reruns):
            await store.update_attempt(rollout_id, attempt, status="succeeded")
            begun = time.perf_counter()
            fork = await store.runs.fork(
                rollout_id,
                phase="debate_and_trader",
                scopes=[_TICKERS[number % len(_TICKERS)]],
                confirm_side_effects=True,
            )
            forks.append(time.perf_counter() - begun)
            attempt = fork.attempt.attempt_id
            await say(attempt, calls // 2 // reruns)
        return {"rollout_id": rollout_id, "forks": percentiles(forks)}

    async def short_forks(self, times: int) -> dict[str, float]:
        """Fork runs of an ordinary size, of 400 events; what a fork took, in ms."""
        taken: list[float] = []
        for _ in range(times):
            run = await self.long_run(800, 1)
            taken.append(run["forks"]["p50"] / 1000)
        return percentiles(taken)

    async def first_pages(self, rollout_id: str, times: int) -> dict[str, float]:
        """Read the first 500 events of the head view, again and again; what it took, in ms."""
        taken: list[float] = []
        for _ in range(times):
            begun = time.perf_counter()
            page = await self._live.runs.query_events(rollout_id)
            taken.append(time.perf_counter() - begun)
            assert len(page.items) == 500, len(page.items)
        return percentiles(taken)

    # Watched, over HTTP.

    async def begin(self, url: str) -> list[str]:
        """Start a run at a server; return its id and its attempt's."""
        async with await open_store(url) as store:
            run = await store.start_rollout({"date": "2026-11-20"})
            return [run.rollout_id, run.attempt.attempt_id]

    async def say_at(self, url: str, run: list[str], rate: int, seconds: float) -> int:
        """Append so many events a second, ten in a call, each with the moment its call was made; how many it were."""
        async with await open_store(url) as store:
            return await _say_at(store, run, rate, seconds)

    async def watch(self, url: str, run: list[str], viewers: int, events: int) -> dict[str, float]:
        """Follow a run as so many viewers; return how long after its call an event was there, in ms."""
        taken: list[float] = []
        async with asyncio.timeout(300):
            await asyncio.gather(*(_viewer(url, run[0], events, taken) for _ in range(viewers)))
        return percentiles(taken)


async def _say_at(store: Store, run: list[str], rate: int, seconds: float) -> int:
    loop, number = asyncio.get_running_loop(), 0
    begun, calls = loop.time(), int(rate * seconds / 10)
    saying: set[asyncio.Task[Any]] = set()
    while number < calls:
        await asyncio.sleep(max(0.0, begun + number * 10 / rate - loop.time()))
        # Not after the one before has been answered: the pace is the pipeline's, not the store's.
        events = events_of(number * 7, f"sent {time.perf_counter()}")
        saying.add(asyncio.create_task(store.runs.append_events(run[0], run[1], events)))
        number += 1
    await asyncio.gather(*saying)
    return number * 10


async def _viewer(url: str, rollout_id: str, events: int, taken: list[float]) -> None:
    """Read server-sent events as they come; to parse them all would measure the viewers."""
    address = urlsplit(url)
    path = f"{RUN_EVENTS.format(rollout_id=rollout_id)}/stream"
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {address.netloc}\r\naccept: text/event-stream\r\n\r\n".encode())
    seen, rest = 0, b""
    try:
        while seen < events:
            read = await reader.read(1 << 16)
            assert read, "the stream ended"
            now = time.perf_counter()
            # What a message was cut in is put together; the moment lies at its beginning.
            rest += read
            lines, _, rest = rest.rpartition(b"\n")
            times = _SENT.findall(lines)
            seen += len(times)
            taken += [now - float(sent) for sent in times]
    finally:
        writer.close()


if __name__ == "__main__":
    serve(Runs())
