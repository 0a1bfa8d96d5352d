"""Any calls in any order: the rows of both databases equal the model and the fold of their logs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from store.runtime import process
from store.testing import ManualClock
from tests import postgres
from tests.machine.backend import Backend, PostgresPartition, SQLiteFiles, plain, state_hash_of
from tests.machine.model import Json, Model, Refused
from tests.machine.steps import CALLS, REQUEST, WRITES, Claims, Op, Step, resolve
from tests.torture import IS_TORTURE, Rounds

T = TypeVar("T")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.torture,
    pytest.mark.timeout(3600),
    # It makes a text of every strategy, and is sorry when that is long.
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

TOGETHER = st.sampled_from([0, 1, None])
"""Which database takes the calls in one commit; None for both."""
TURN = st.integers(0, 1)
"""Which of the two stores of a database is called."""
BATCH = st.tuples(st.lists(WRITES, min_size=2, max_size=7), TOGETHER, TURN)
_START = 1_750_000_000_000_000
_STREAM, _VERSION, _TYPE, _AT, _COMMIT, _COMMAND = 2, 3, 5, 7, 1, 4


class Machine(RuleBasedStateMachine):
    """Two databases, each under two stores, and a model, all under one clock."""

    def __init__(self, databases: list[tuple[str, SQLiteFiles | PostgresPartition]]) -> None:
        super().__init__()
        self._databases = databases
        self._runner = asyncio.Runner()
        self._backends: list[Backend] = []

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @initialize(seed=st.integers(0, 3), requests=st.lists(REQUEST, min_size=2, max_size=5))
    def open(self, seed: int, requests: list[Json]) -> None:
        """Two empty stores; some rollouts that wait, so that there is something to do."""
        self.clock = ManualClock(_START)
        self.model = Model(self.clock, process.owner())
        self.claims = Claims()
        self._run(self._open(seed))
        self.call([(("enqueue", {"requests": requests}), 0)])

    async def _open(self, seed: int) -> None:
        for name, database in self._databases:
            backend = Backend(name, await database.empty(), self.clock, seed)
            await backend.open()
            self._backends.append(backend)

    @rule(steps=st.lists(st.tuples(CALLS, TURN), min_size=1, max_size=6))
    def call(self, steps: list[tuple[Step, int]]) -> None:
        """Calls, one after the other, each on both databases."""
        for step, turn in steps:
            self._turn(turn)
            op = resolve(step, self.model, self.clock, self.claims)
            if op is not None:
                self._run(self._call(step, op))

    async def _call(self, step: Step, op: Op) -> None:
        answers = [await backend.call(op.call) for backend in self._backends]
        swept = {backend.swept for backend in self._backends}
        assert len(swept) == 1, f"only one sent the watchdog before {step}"
        self.model.judged = await self._backends[0].judged()
        if swept == {True}:
            self.model.sweep(len(self.model.judged))
        elif op.sweeps:
            assert not self.model.any_overdue(), f"nobody looked before {step}"
        self._compare(step, op, answers)
        if op.sweeps:
            self.model.observed[self.model.turn].append(self.clock.elapsed())
        await self._check_between()

    @rule(batches=st.lists(BATCH, min_size=1, max_size=3))
    def call_together(self, batches: list[tuple[list[Step], int | None, int]]) -> None:
        """Several calls: in one commit on one database or on both, one by one on the other."""
        for steps, together, turn in batches:
            self._turn(turn)
            self._together(steps, together)

    @precondition(lambda self: self._running() and len(self.model.queue) > 1)
    @rule(
        cancelled=st.integers(1, 3),
        limit=st.integers(1, 3),
        heads_first=st.booleans(),
        together=TOGETHER,
    )
    def cancel_the_heads_and_claim(self, cancelled: int, limit: int, heads_first: bool, together: int | None) -> None:
        """The heads of the queue leave it, and who claims in the same commit gets those behind them."""
        heads = [rollout_id for _, rollout_id in self.model.queue[:cancelled]]
        numbers = {rollout_id: number for number, rollout_id in enumerate(self.model.rollouts)}
        leave: list[Step] = [
            ("update_rollout", {"rollout": numbers[rollout_id], "status": "cancelled", "fields": {}})
            for rollout_id in heads
        ]
        claim: list[Step] = [("dequeue_many", {"limit": limit, "worker": "w1"}), ("dequeue", {"worker": None})]
        self._together([*leave, *claim] if heads_first else [claim[0], *leave, claim[1]], together)

    def _together(self, steps: list[Step], together: int | None) -> None:
        ops = [(step, resolve(step, self.model, self.clock, self.claims)) for step in steps]
        self._run(self._call_together([(step, op) for step, op in ops if op is not None], together))

    async def _call_together(self, ops: list[tuple[Step, Op]], together: int | None) -> None:
        calls = [op.call for _, op in ops]
        answers = [
            await (backend.call_in_one_commit(calls) if together in {number, None} else backend.call_one_by_one(calls))
            for number, backend in enumerate(self._backends)
        ]
        self.model.judged = await self._backends[0].judged()
        for (step, op), of_each in zip(ops, zip(*answers, strict=True), strict=True):
            self._compare(step, op, list(of_each))
        await self._check_between()

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 10.0, 30.0, -2.0, -60.0]))
    def move_the_clock(self, seconds: float) -> None:
        """Let time pass, or set the clock back."""
        self.clock.advance(seconds)
        self.model.is_steady &= seconds > 0

    @precondition(lambda self: self._running())
    @rule(reopened=st.booleans())
    def open_again_or_rebuild(self, reopened: bool) -> None:
        """The stores are closed and opened again, or fold everything anew and find nothing that differs."""
        self._run(self._open_again() if reopened else self._rebuild())

    async def _open_again(self) -> None:
        self.model.is_steady = False
        for backend in self._backends:
            await backend.close()
            await backend.open()
        await self._check()

    async def _rebuild(self) -> None:
        for backend in self._backends:
            report = await backend.rebuild()
            assert (report.written, report.state_hash) == ({}, state_hash_of(self.model.tables())), backend.name
        await self._check()

    def _turn(self, turn: int) -> None:
        self.model.turn = turn
        for backend in self._backends:
            backend.turn = turn

    def _running(self) -> bool:
        return bool(self._backends)

    def _compare(self, step: Step, op: Op, answers: list[Any]) -> None:
        first, *others = answers
        for other in others:
            assert _comparable(other) == _comparable(first), f"disagreement about {step}: {first!r} and {other!r}"
        try:
            expected: Any = op.expect(self.model, first)
        except Refused as refused:
            expected = refused
        if isinstance(expected, Refused):
            assert type(first).__name__ == expected.kind, f"{step} was answered by {first!r}"
            assert expected.text in {None, str(first)}, step
        else:
            assert not isinstance(first, Exception), f"{step} was refused: {first!r}"
            assert first == expected, step

    async def _check_between(self) -> None:
        """Check the state after a call. Verification takes most of the time, so only torture verifies each time."""
        await (self._check() if IS_TORTURE else self._check_answers())

    async def _check(self) -> None:
        await self._check_answers()
        hashes: dict[str, str] = {"model": state_hash_of(self.model.tables())}
        for backend in self._backends:
            report = await backend.verify()
            assert report.ok, f"{backend.name}: {report.differences}"
            hashes[backend.name] = report.state_hash
        if len(set(hashes.values())) > 1:
            await self._explain()
        assert len(set(hashes.values())) == 1, hashes

    async def _check_answers(self) -> None:
        assert not self.model.judged, "the model missed a sweep"
        news: list[list[tuple[Any, ...]]] = []
        for backend in self._backends:
            news.append([(*row[:_COMMIT], *row[_STREAM:_COMMAND], *row[_TYPE:]) for row in await self._news(backend)])
            assert await backend.counters() == self.model.span_counters(), backend.name
            assert await backend.read(lambda store: store.query_workers()) == _page(
                [self.model.worker(worker_id) for worker_id in self.model.workers]
            ), backend.name
            assert await backend.read(lambda store: store.query_rollouts()) == _page(
                [self.model.rollout_and_latest(rollout_id) for rollout_id in self.model.rollouts]
            ), backend.name
        assert all(log == news[0] for log in news), "the logs differ"

    async def _news(self, backend: Backend) -> list[tuple[Any, ...]]:
        before = list(backend.events)
        new = await backend.news()
        versions = {row[_STREAM]: row[_VERSION] for row in before}
        position, at, commit = (before[-1][0], before[-1][_AT], before[-1][_COMMIT]) if before else (0, 0, 0)
        for row in new:
            assert row[0] > position, f"{backend.name}: position {row[0]} after {position}"
            assert row[_AT] >= at, f"{backend.name}: stamp {row[_AT]} after {at}"
            assert row[_COMMIT] >= commit, f"{backend.name}: commit {row[_COMMIT]} after {commit}"
            assert row[_VERSION] == versions.get(row[_STREAM], 0) + 1, f"{backend.name}: {row[_STREAM]} has a hole"
            position, at, commit = row[0], row[_AT], row[_COMMIT]
            versions[row[_STREAM]] = row[_VERSION]
        assert at == self.model.last, f"{backend.name}: the last fact is of {at}"
        return new

    async def _explain(self) -> None:
        expected = self.model.tables()
        for backend in self._backends:
            tables = await backend.rows()
            for name, rows in expected.items():
                columns = set(rows[0]) if rows else set[str]()
                live = [row for row in tables[name] if row.get("released_position") is None]
                columns_of = [{key: value for key, value in row.items() if key in columns} for row in live]
                assert columns_of == rows, f"{backend.name}: table {name}"

    def teardown(self) -> None:
        try:
            self._run(self._check_and_close())
        finally:
            self._runner.close()

    async def _check_and_close(self) -> None:
        try:
            if self._backends:
                await self._check()
            for backend in self._backends:
                await self._check_reads(backend)
        finally:
            for backend in self._backends:
                await backend.close()

    async def _check_reads(self, backend: Backend) -> None:
        model = self.model
        totals: Json = await backend.read(lambda store: store.statistics())
        assert {name: totals[name] for name in model.totals()} == model.totals(), backend.name
        assert await backend.read(lambda store: store.query_resources()) == _page(
            [model.resources_answer(resources_id) for resources_id in model.resources]
        )
        latest = None if model.latest_resources is None else model.resources_answer(model.latest_resources)
        assert await backend.read(lambda store: store.get_latest_resources()) == latest
        for rollout_id in [*model.rollouts, "ro-unknown"]:
            attempts = model.attempt_answers(rollout_id)
            answer = await backend.read(lambda store, of=rollout_id: store.query_attempts(of))
            assert answer == _page(attempts), (backend.name, answer, attempts)
            latest = await backend.read(lambda store, of=rollout_id: store.get_latest_attempt(of))
            assert latest == (attempts[-1] if attempts else None), backend.name
            spans = [span for span in model.spans.values() if span["rollout_id"] == rollout_id]
            # Ties in order of start, end and position; an open end comes last.
            spans.sort(key=lambda span: (span["sequence_id"], span["start_time"], span["end_time"] or float("inf")))
            answer = await backend.read(lambda store, of=rollout_id: store.query_spans(of))
            assert answer == _page(spans), (backend.name, answer, spans)


def _page(items: list[Json]) -> Json:
    return {"items": items, "limit": -1, "offset": 0, "total": len(items)}


def _comparable(answer: Any) -> Any:
    return (type(answer), str(answer)) if isinstance(answer, Exception) else plain(answer)


def test_both_databases_agree_with_the_model_and_their_logs(
    tmp_path: Path, postgres_server: str, rounds: Rounds
) -> None:
    databases: list[tuple[str, SQLiteFiles | PostgresPartition]] = [
        ("SQLite", SQLiteFiles(tmp_path)),
        ("Postgres", PostgresPartition(postgres.with_partition(postgres_server))),
    ]

    class OnThese(Machine):
        def __init__(self) -> None:
            super().__init__(databases)

    run_state_machine_as_test(
        OnThese,
        settings=settings(
            max_examples=int(os.environ.get("ROLLBOOK_MACHINE_EXAMPLES", rounds(200, few=4))),
            stateful_step_count=20,
            # The same examples each time, so that a change is judged by what it changed; more of them by the torture.
            derandomize=not IS_TORTURE,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate, Phase.target, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
