"""One runner process: claims rollouts, has the agent answer them, records its spans, reports how it went.

`fleet` starts it as `python -m store.examples.doc_search.runner LIBRARY WORKER_ID`, with the store's URL in
`ROLLBOOK_DB`: an argument would show its password to everyone on the machine. It ends when its standard input is
closed, which also happens when whoever started it dies, in whatever way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from store import open_store
from store.examples.doc_search.agent import RANKING, SPANS, SearchAgent
from store.examples.doc_search.bm25f import Ranking
from store.examples.doc_search.library import Library
from store.models import AttemptedRollout, PromptTemplate, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from store.interface import Store

BATCH = 16
"""How many rollouts are claimed at once."""

_LONG_POLL_SECONDS = 10.0
_HEARTBEAT_SECONDS = 1.0

log = logging.getLogger(__name__)


class Runner:
    """Answers the rollouts of one store until it is cancelled."""

    def __init__(self, store: Store, agent: SearchAgent, worker_id: str) -> None:
        self._store = store
        self._agent = agent
        self._worker_id = worker_id
        self._rankings: dict[str, Ranking] = {}
        self._answered = 0
        self._seconds_answering = 0.0

    async def serve(self) -> None:
        """Claim and answer for ever, asleep in the store while nothing waits."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_heartbeats())
            while True:
                claimed = await self._store.dequeue_many_rollouts(
                    BATCH, worker_id=self._worker_id, wait_seconds=_LONG_POLL_SECONDS
                )
                if claimed:
                    await self._answer_all(claimed)

    async def _send_heartbeats(self) -> None:
        while True:
            stats = {"pid": os.getpid(), "answered": self._answered, "seconds_answering": self._seconds_answering}
            await self._store.update_worker(self._worker_id, stats)
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def _answer_all(self, claimed: Sequence[AttemptedRollout]) -> None:
        numbers = iter(
            await self._store.get_many_span_sequence_ids(
                [(rollout.rollout_id, rollout.attempt.attempt_id) for rollout in claimed for _ in SPANS]
            )
        )
        # Reports travel while the next query is answered; the store writes those that meet in one commit.
        async with asyncio.TaskGroup() as reports:
            for rollout in claimed:
                spans, status = await self._answer(rollout)
                numbered = list(zip(spans, [next(numbers) for _ in SPANS], strict=False))
                reports.create_task(self._report(rollout, numbered, status))
                await asyncio.sleep(0)

    async def _answer(self, rollout: AttemptedRollout) -> tuple[Sequence[ReadableSpan], Literal["succeeded", "failed"]]:
        """Return the finished spans and the status to report: a rollout that cannot be answered is not our failure."""
        started = time.perf_counter()
        try:
            ranking = await self._ranking(rollout.resources_id)
            task = rollout.input
            self._agent.answer(task["query"], task["document"], task["name"], ranking)
        except (LookupError, TypeError, ValueError):
            log.exception("rollout %s cannot be answered", rollout.rollout_id)
            return self._agent.take_spans(), "failed"
        self._answered += 1
        self._seconds_answering += time.perf_counter() - started
        return self._agent.take_spans(), "succeeded"

    async def _ranking(self, resources_id: str | None) -> Ranking:
        known = self._rankings.get(resources_id or "")
        if known is not None:
            return known
        update = await self._store.get_resources_by_id(resources_id) if resources_id else None
        match update.resources.get(RANKING) if update else None:
            case PromptTemplate(template=text):
                return self._rankings.setdefault(resources_id or "", Ranking.from_json(text))
            case _:
                raise LookupError(f"resources {resources_id} hold no {RANKING}")

    async def _report(
        self, rollout: AttemptedRollout, spans: list[tuple[ReadableSpan, int]], status: Literal["succeeded", "failed"]
    ) -> None:
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        await self._store.add_many_spans(
            [Span.from_opentelemetry(span, rollout_id, attempt_id, number) for span, number in spans]
        )
        await self._store.update_attempt(rollout_id, attempt_id, status=status)


async def run(db_url: str, library: Path, worker_id: str) -> None:
    """Serve one store until standard input ends."""
    abandoned = _end_of_input(asyncio.get_running_loop())
    agent = SearchAgent(Library.load(library), worker_id)
    async with await open_store(db_url, create=False) as store:
        serving = asyncio.create_task(Runner(store, agent, worker_id).serve())
        await asyncio.wait({serving, abandoned}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def _end_of_input(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Return a future that is done when standard input ends."""
    ended: asyncio.Future[None] = loop.create_future()

    def wait() -> None:
        # Not sys.stdin: its lock, held by a sleeping thread, would abort the interpreter on its way out.
        while os.read(0, 1024):
            pass
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: ended.done() or ended.set_result(None))

    threading.Thread(target=wait, name="end-of-input", daemon=True).start()
    return ended


def main(library: str, worker_id: str) -> None:
    """Run the process."""
    logging.basicConfig(format=f"{worker_id}: %(message)s", level=logging.WARNING)
    # Ctrl+C reaches every process of the terminal; the one that started us decides, and closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(run(os.environ["ROLLBOOK_DB"], Path(library), worker_id))


if __name__ == "__main__":
    main(*sys.argv[1:])
