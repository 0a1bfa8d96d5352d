"""Rows of a run are the fold of its log in any history, and are restored after random damage."""

from __future__ import annotations

import random
from typing import Any

import pytest

from store import open_store
from store.db.tables import core as core_tables
from store.errors import StoreError
from store.interface.store import Store
from store.models.runs import RunEvent
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.journal.database_helpers import contents, run_sql
from tests.journal.sample_run import GRAPH, LONG, NODE, result
from tests.torture import rounds

TABLES = [table.name for table in (*core_tables.RUNS, core_tables.rollouts, core_tables.attempts)]
NODES = ("Bull", "Bear", "Risk Officer", "Trader", "Decision", "elsewhere")
SCOPES = ("RIG", "TSDD")
STEPS = 60
# What a damage writes into a column, by the kind of its type.
_WRONG = {"Text": "'wrong'", "BigInteger": "77", "Integer": "77", "SmallInteger": "7", "Double": "1.5"}


class History:
    """One run, and the steps that may happen to it."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.lot = random.Random(seed)
        self.rollout_id = ""
        self.artifacts: list[str] = []
        self.spans = 0

    async def play(self) -> None:
        first = await self.store.start_rollout({"n": 1})
        self.rollout_id = first.rollout_id
        steps = [self.append] * 6 + [self.phase, self.checkpoint, self.artifact, self.retract, self.span, self.end]
        steps += [self.fork, self.fork, self.move_head, self.again, self.start]
        for _ in range(STEPS):
            self.clock.advance(self.lot.random())
            try:
                await self.lot.choice(steps)()
            except StoreError:
                continue  # a step that cannot be taken now: what it left is looked at all the same

    async def attempts(self) -> list[Any]:
        return list((await self.store.query_attempts(self.rollout_id)).items)

    async def any_attempt(self) -> Any:
        # Most often the latest; now and then a late word of another one.
        attempts = await self.attempts()
        return attempts[-1] if self.lot.random() < 0.8 else self.lot.choice(attempts)

    def key(self) -> str | None:
        return f"k{self.lot.randrange(40)}" if self.lot.random() < 0.3 else None

    async def append(self) -> None:
        events = [
            result(self.lot.choice(NODES), LONG if self.lot.random() < 0.2 else "short", self.lot.choice(SCOPES))
            for _ in range(self.lot.randrange(1, 5))
        ]
        attempt = await self.any_attempt()
        await self.store.runs.append_events(self.rollout_id, attempt.attempt_id, events, key=self.key())

    async def phase(self) -> None:
        kind = self.lot.choice(("phase.started", "phase.completed", "phase.skipped"))
        event = RunEvent(kind=kind, phase=self.lot.choice(("debate", "risk")), scope=self.lot.choice(SCOPES))
        await self.store.runs.append_events(self.rollout_id, (await self.any_attempt()).attempt_id, [event])

    async def checkpoint(self) -> None:
        attempt, plan = await self.any_attempt(), self.lot.choice(("", "buy"))
        await self.store.runs.save_checkpoint(
            self.rollout_id,
            attempt.attempt_id,
            scope=self.lot.choice(SCOPES),
            name=self.lot.choice(("debated", "mine")),
            state={"plan": plan},
            key=self.key(),
            graph=GRAPH,
        )

    async def artifact(self) -> None:
        attempt, scope = await self.any_attempt(), self.lot.choice(SCOPES)
        saved = await self.store.runs.save_artifact(
            self.rollout_id, attempt.attempt_id, scope=scope, name="report", content=LONG, key=self.key()
        )
        self.artifacts.append(saved.artifact_id)

    async def retract(self) -> None:
        if self.artifacts:
            await self.store.runs.retract_artifact(self.rollout_id, self.lot.choice(self.artifacts), key=self.key())

    async def span(self) -> None:
        self.spans += 1
        attributes = NODE if self.lot.random() < 0.5 else {}
        await self.store.add_span(make_span(await self.any_attempt(), self.spans, attributes=attributes))

    async def end(self) -> None:
        attempt = (await self.attempts())[-1]
        status = self.lot.choice(("succeeded", "failed"))
        await self.store.update_attempt(self.rollout_id, attempt.attempt_id, status=status)

    async def fork(self) -> None:
        await self.store.runs.fork(
            self.rollout_id,
            phase=self.lot.choice(("debate", "risk")),
            scopes=[self.lot.choice(SCOPES)],
            base=self.lot.choice(("head", f"attempt:{self.lot.randrange(1, 4)}")),
            on_missing="full",
            on_active=self.lot.choice(("reject", "supersede")),
            request_id=self.key(),
            graph=GRAPH,
        )

    async def move_head(self) -> None:
        attempt = self.lot.choice(await self.attempts())
        await self.store.runs.move_head(self.rollout_id, attempt.attempt_id, request_id=self.key())

    async def again(self) -> None:
        await self.store.update_rollout(self.rollout_id, status="queuing")
        await self.store.dequeue_rollout("w")

    async def start(self) -> None:
        await self.store.start_attempt(self.rollout_id)

    def damages(self) -> list[str]:
        """Return statements that delete rows and write wrong values."""
        statements: list[str] = []
        for table in (*core_tables.RUNS, core_tables.attempts):
            column = self.lot.choice([column for column in table.columns if not column.primary_key])
            some = f"abs(({'version' if 'version' in table.c else 'length(' + _text_key(table) + ')'}) % 3)"
            kind = next(name for base in type(column.type).__mro__ if (name := base.__name__) in _WRONG)
            statements.append(f"UPDATE {table.name} SET {column.name} = {_WRONG[kind]} WHERE {some} = 1")
            statements.append(f"DELETE FROM {table.name} WHERE {some} = 2")
        return [*statements, "UPDATE rollouts SET head = 77, rerun_seq = 99, run_version = NULL"]


def _text_key(table: Any) -> str:
    return next(column.name for column in reversed(list(table.primary_key)))


@pytest.mark.slow
@pytest.mark.torture
async def test_rebuild_restores_damaged_runs(durable_url: str, clock: ManualClock) -> None:
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=0) as store:
        for seed in range(rounds(100, few=2)):
            history = History(store, clock, seed)
            await history.play()
            sound = await store.log.verify()
            assert sound.differences == [], seed
            before = await contents(durable_url, TABLES)
            await run_sql(durable_url, *history.damages())
            assert not (await store.log.verify()).ok
            rebuilt = await store.log.rebuild()
            assert rebuilt.state_hash == sound.state_hash, seed
            assert await contents(durable_url, TABLES) == before, seed
        kinds = {event.type for event in await store.log.history(history.rollout_id)}  # pyright: ignore[reportPossiblyUnboundVariable] (there is a round)
        assert {"run.event", "attempt.forked", "checkpoint.saved", "artifact.saved", "rollout.head_moved"} <= kinds
