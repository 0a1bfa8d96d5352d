"""The whole example: a run is killed, resumed, partly run again, and the re-run is undone."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Any, Final

from store.errors import Invalid
from store.examples.trading import report
from store.examples.trading.desk import Desk
from store.examples.trading.report import ReportPrinter
from store.examples.trading.runs import begin, drive, dying_at, go_on, left_behind
from store.interface.store import Store
from store.models import AttemptedRollout, ForkResult
from store.opening import open_store
from store.planning.plan import of_plan

OK, FAILED, NOT_INTACT, INTERRUPTED = 0, 1, 3, 130

_STOPS_AT: Final = "Research Manager/RIG"
_RERUN_SELECTION: Final[dict[str, Any]] = {"node": "Bull Researcher", "scopes": ["RIG"]}
_NEWS: Final = {"news_report": "A strike and a lawsuit: the operator warns of a loss."}


def run(db: str, *, stop_at: str | None = None, pace: float = 0.0) -> int:
    """Run the example on a store, and print its steps and results. Return the exit code for a shell.

    If the store has a run whose process was killed, that run is continued; otherwise a new run is started. The exit
    codes are 0: all steps had the expected results; 1: the undo did not restore the earlier view; 3: `verify` found a
    difference; 130: interrupted.

    Args:
        db: the store of the run; a database is created if missing, and the URL of a server works too.
        stop_at: `NODE` or `NODE/SCOPE`: the place at which this process kills itself. None: a separate process is
            killed instead, early in a new run.
        pace: the duration of each answer of the model in seconds.

    Raises:
        Invalid: the node does not exist, or other processes cannot open the store.
        StoreError: the store cannot be opened, or its connection was lost.
    """
    if db.startswith("memory:"):
        raise Invalid("--db", "the example kills a process and continues in another; pass a store that both can open")
    desk = Desk(pace=pace, on_node=dying_at(stop_at))
    try:
        return asyncio.run(_Show(db, desk, pace, dies_itself=stop_at is not None).run())
    except KeyboardInterrupt:
        return INTERRUPTED


class _Show:
    def __init__(self, db: str, desk: Desk, pace: float, *, dies_itself: bool) -> None:
        self._db = db
        self._desk = desk
        self._pace = pace
        self._dies_itself = dies_itself
        self._paper = ReportPrinter()

    async def run(self) -> int:
        async with open_store(self._db) as store:
            lost = await left_behind(store)
            if lost is None:
                lost = await self._first(store)
            finished = await self._resumed(store, lost)
            again, before = await self._again(store, finished)
            await self._compared(store, finished, again)
            is_restored = await self._undone(store, finished, again, before)
            verified = await store.log.verify()
            outcome = (
                "every row is the fold of its events" if verified.ok else f"{verified.difference_count:,} DIFFERENCES"
            )
            self._paper.heading("Proof")
            self._paper.line(f"verify: {verified.events:,} events in {verified.commits:,} commits: {outcome}")
        report.next_steps(self._paper, self._db, finished.rollout_id, finished.attempt.sequence_id)
        if not verified.ok:
            return NOT_INTACT
        return OK if is_restored else FAILED

    async def _first(self, store: Store) -> AttemptedRollout:
        """Start a run whose process is killed."""
        run = await begin(store)
        self._paper.heading(f"1. A run: {run.rollout_id}")
        if self._dies_itself:
            # Every run reaches the node at which this process dies.
            await drive(store, run, self._desk)
        await self._killed(run.rollout_id)
        self._paper.line(f"Its process was killed (SIGKILL) at {_STOPS_AT.replace('/', ' of ')}. The store contains:")
        await report.progress(self._paper, store, run.rollout_id)
        return run

    async def _killed(self, run_id: str) -> None:
        arguments = (self._db, run_id, str(self._pace), _STOPS_AT)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "store.examples.trading.worker", *arguments
        )
        try:
            await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _resumed(self, store: Store, run: AttemptedRollout) -> AttemptedRollout:
        self._paper.heading(f"2. The run continues: {run.rollout_id}")
        resumed = await go_on(store, run)
        fork = (await store.runs.list_lineage(run.rollout_id))[-1].fork
        if resumed is run:
            self._paper.line("All phases were completed; only the status was missing.")
        elif fork is not None:
            number, unfinished = resumed.attempt.sequence_id, ", ".join(fork.scopes)
            self._paper.line(f"Attempt {number} builds on attempt {fork.base}; unfinished: {unfinished}.")
        await drive(store, resumed, self._desk)
        await report.progress(self._paper, store, run.rollout_id)
        await report.decisions(self._paper, store, run.rollout_id, [resumed.attempt.sequence_id])
        return resumed

    async def _again(self, store: Store, run: AttemptedRollout) -> tuple[ForkResult, Sequence[str]]:
        self._paper.heading("3. The debate about RIG once more, with other news")
        before = await self._head(store, run)
        plan = await store.runs.plan_fork(run.rollout_id, **_RERUN_SELECTION)
        self._paper.line("The plan:")
        self._paper.facts(of_plan(plan))
        again = await store.runs.fork(
            run.rollout_id,
            **_RERUN_SELECTION,
            state_patch=_NEWS,
            expected_head=plan.head,
            confirm_side_effects=True,
            reason="the news was old",
        )
        self._paper.line(f'Attempt {again.attempt.sequence_id} reads: "{_NEWS["news_report"]}"')
        await drive(store, again.rollout, self._desk)
        attempts = [run.attempt.sequence_id, again.attempt.sequence_id]
        await report.decisions(self._paper, store, run.rollout_id, attempts)
        return again, before

    async def _compared(self, store: Store, run: AttemptedRollout, again: ForkResult) -> None:
        self._paper.heading("4. What changed")
        first_number, second_number = run.attempt.sequence_id, again.attempt.sequence_id
        report.difference(self._paper, await store.runs.compare_attempts(run.rollout_id, first_number, second_number))

    async def _undone(self, store: Store, run: AttemptedRollout, again: ForkResult, before: Sequence[str]) -> bool:
        self._paper.heading("5. Undo")
        await store.runs.move_head(run.rollout_id, run.attempt.attempt_id, reason="the old news was right")
        is_restored = await self._head(store, run) == before
        result = f"is what it was, {len(before)} events" if is_restored else "IS NOT WHAT IT WAS"
        redo = again.attempt.sequence_id
        self._paper.line(
            f"The head is attempt {run.attempt.sequence_id} again, and its view {result}; attempt {redo} stays."
        )
        return is_restored

    async def _head(self, store: Store, run: AttemptedRollout) -> list[str]:
        page = await store.runs.query_events(run.rollout_id, limit=-1)
        return [event.model_dump_json() for event in page.items]
