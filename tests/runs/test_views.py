"""Every view of every attempt equals the reference in plain Python, for any history."""

from __future__ import annotations

import random

import pytest

from store.errors import CheckpointMissing
from store.interface.store import Store
from store.models import AttemptedRollout, RolloutConfig, RunEvent
from store.sql.store import SQLStore
from tests.conftest import POSTGRES
from tests.runs.conftest import MEMORY
from tests.runs.reference import Attempt, Reference, ReferenceEvent, filtered, versions
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, RISK, SCAN, TA_COMPAT
from tests.runs.trading_runs import begin, ended, seen
from tests.torture import Rounds

# What a server adds is tried elsewhere, with fewer histories.
FILE = pytest.param("sqlite", id="sqlite", marks=pytest.mark.torture_only)
BESIDE = pytest.mark.parametrize("way", [MEMORY, FILE, POSTGRES], indirect=True)
pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(1800), BESIDE]

TICKERS = ("RIG", "TSDD")
STARTED = "attempt.started"
UNLISTED = ("Journalist", "tool_x", "tool_y", "__system__")
NODES = (*SCAN, *ANALYSTS, *DEBATE, *RISK, *PORTFOLIO, *UNLISTED)
SCOPES = (MARKET, *TICKERS, FUND, "rig", None)
CHECKPOINTS = {"analysts_checkpoint": "analysts", "trader_checkpoint": "debate_and_trader"}
PHASES = ("analysts", "debate_and_trader", "risk")


def is_cheap(store_url: str) -> bool:
    """Say whether a round costs little; the statements are the same in a file."""
    return store_url.startswith("memory")


def some_events(dice: random.Random, *, phases: bool) -> list[RunEvent]:
    """Return events of any nodes, scopes and parents; with `phases` also such as have no node."""
    events: list[RunEvent] = []
    for _ in range(dice.randint(1, 12)):
        scope = dice.choice(SCOPES)
        if phases and dice.random() < 0.2:
            events.append(RunEvent(kind="phase.completed", phase=dice.choice([*PHASES, "portfolio"]), scope=scope))
            continue
        parent = dice.choice(NODES) if dice.random() < 0.4 else dice.choice(["start", None])
        named = dice.choice([*PHASES, None]) if phases else None
        events.append(
            RunEvent(kind="result", node_id=dice.choice(NODES), scope=scope, parent_node_id=parent, phase=named)
        )
    return events


async def say(store: Store, run: AttemptedRollout, attempt: int, events: list[RunEvent]) -> list[ReferenceEvent]:
    written = await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, events)
    return [
        ReferenceEvent(version, attempt, event.scope, event.node_id, event.parent_node_id, event.phase)
        for version, event in zip(written, events, strict=True)
    ]


async def save_checkpoints(store: Store, run: AttemptedRollout) -> None:
    for ticker in TICKERS:
        for name in CHECKPOINTS:
            state = {"market_report": "up", "trader_investment_plan": "buy"}
            await store.runs.save_checkpoint(
                run.rollout_id, run.attempt.attempt_id, scope=ticker, name=name, state=state
            )


async def linear_history(store: Store, dice: random.Random) -> None:
    """Re-run after re-run, each on the head, as the pipeline's own filter knows them."""
    run = await begin(store, graph=TA_COMPAT)
    if dice.random() < 0.8:
        await save_checkpoints(store, run)
    visible = await say(store, run, 1, some_events(dice, phases=False))
    views = {1: visible}
    for attempt in range(2, dice.randint(2, 6)):
        tickers = [ticker for ticker in TICKERS if any(event.scope == ticker for event in views[attempt - 1])]
        if not tickers:
            break
        await ended(store, run)
        again = await store.runs.fork(
            run.rollout_id,
            phase=dice.choice(PHASES),
            scopes=[dice.choice([str.lower, str.upper])(dice.choice(tickers))],
            on_missing="full",
            confirm_side_effects=True,
        )
        assert again.fork.phase is not None
        run = again.rollout
        visible = filtered(views[attempt - 1], again.fork.phase, again.fork.scopes[0])
        views[attempt] = visible + await say(store, run, attempt, some_events(dice, phases=False))
    for attempt, expected in views.items():
        page = await seen(store, run, f"attempt:{attempt}", bodies=False)
        assert [event.version for event in page.items] == versions(expected), attempt
    page = await seen(store, run)
    assert [event.version for event in page.items] == versions(views[max(views)])


async def test_a_linear_history_is_filtered_as_the_pipeline_filtered_it(
    store: Store, store_url: str, rounds: Rounds
) -> None:
    for seed in range(rounds(2000, few=40) if is_cheap(store_url) else rounds(400, few=6)):
        try:
            await linear_history(store, random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert (await store.log.verify()).differences == []


class AnyHistory:
    """Any attempts on any bases, late words of old attempts, retries, moved heads."""

    def __init__(self, store: SQLStore, dice: random.Random) -> None:
        self.store = store
        self.dice = dice
        self.reference = Reference()
        self.runs: dict[int, AttemptedRollout] = {}

    @property
    def rollout_id(self) -> str:
        return self.runs[1].rollout_id

    @property
    def latest(self) -> int:
        return max(self.runs)

    async def play(self) -> None:
        config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        self.runs[1] = await begin(self.store, config=config)
        self.reference.start(1, Attempt(1))
        if self.dice.random() < 0.7:
            await save_checkpoints(self.store, self.runs[1])
        await self.say()
        for _ in range(self.dice.randint(3, 12)):
            await self.dice.choice([self.say, self.say, self.fork, self.retry, self.move_head])()

    async def say(self) -> None:
        attempt = self.latest if self.dice.random() < 0.7 else self.dice.choice(list(self.runs))
        said = await say(self.store, self.runs[attempt], attempt, some_events(self.dice, phases=True))
        self.reference.events += said

    async def fork(self) -> None:
        base = "head" if self.dice.random() < 0.5 else f"attempt:{self.dice.choice(list(self.runs))}"
        phase = self.dice.choice([*PHASES, "scan"])
        scopes = [] if phase == "scan" else self.dice.sample(TICKERS, self.dice.randint(1, 2))
        candidates = {event.scope for event in self.reference.events}
        if self.dice.random() < 0.2 and FUND in candidates:
            phase, scopes = "portfolio", [FUND]
        if not candidates.issuperset(scopes):
            return
        try:
            result = await self.store.runs.fork(
                self.rollout_id,
                phase=phase,
                scopes=scopes,
                base=base,
                on_missing=self.dice.choice(["full", "error"]),
                cascade=self.dice.random() < 0.8,
                on_active="supersede",
                confirm_side_effects=True,
            )
        except CheckpointMissing:
            return
        number = result.attempt.sequence_id
        self.runs[number] = result.rollout
        started = await self.started(number)
        fork = result.fork
        self.reference.start(number, Attempt(started, fork.base, fork.base_version, fork.masks))

    async def started(self, number: int) -> int:
        history = await self.store.log.history(self.rollout_id)
        starts = [event.number for event in history if (event.type, event.data.get("sequence")) == (STARTED, number)]
        return starts[-1]

    async def retry(self) -> None:
        """Let the latest attempt fail; where one more is allowed, it is the same re-run again."""
        before = self.latest
        run = self.runs[before]
        await self.store.update_attempt(self.rollout_id, run.attempt.attempt_id, status="failed")
        again = await self.store.dequeue_rollout()
        if again is None:
            return
        assert again.rollout_id == self.rollout_id
        number = again.attempt.sequence_id
        self.runs[number] = again
        started = await self.started(number)
        same = self.reference.attempts[before][-1]
        head = self.reference.heads[-1][1]
        it = Attempt(started, same.base, same.base_version, same.masks)
        self.reference.start(number, it)
        if self.dice.random() < 0.4:
            del self.runs[number]
            await self.store.queue.release_claims([again])
            it.released = len(await self.store.log.history(self.rollout_id))
            self.reference.heads.append((it.released, head))

    async def move_head(self) -> None:
        to = self.dice.choice(list(self.runs))
        before = len(await self.store.log.history(self.rollout_id))
        await self.store.runs.move_head(self.rollout_id, self.runs[to].attempt.attempt_id)
        if self.reference.heads[-1][1] != to:
            self.reference.heads.append((before + 1, to))

    async def check(self) -> None:
        end = len(await self.store.log.history(self.rollout_id, as_at=None))
        moments = [None, *self.dice.sample(range(2, end + 1), min(4, end - 1))]
        for at in moments:
            cut = end if at is None else at
            await self.equal("raw", at, self.reference.raw(cut))
            await self.equal("head", at, self.reference.seen(self.reference.head(cut), cut))
            for attempt in self.reference.attempts:
                if self.reference.attempt(attempt, cut) is not None:
                    await self.equal(f"attempt:{attempt}", at, self.reference.seen(attempt, cut))
                    await self.equal(f"own:{attempt}", at, self.reference.events_of(attempt, cut))

    async def equal(self, view: str, at: int | None, expected: list[ReferenceEvent]) -> None:
        page = await seen(self.store, self.runs[1], view, bodies=False, at=at)
        assert [event.version for event in page.items] == versions(expected), (view, at)


async def test_any_history_has_the_views_that_the_rule_gives_it(store: Store, store_url: str, rounds: Rounds) -> None:
    for seed in range(rounds(400, few=16) if is_cheap(store_url) else rounds(80, few=3)):
        assert isinstance(store, SQLStore)  # which can undo a claim
        history = AnyHistory(store, random.Random(seed))
        try:
            await history.play()
            await history.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        # What waits in the queue would be given to the next history.
        await store.update_rollout(history.rollout_id, status="cancelled")
    assert (await store.log.verify()).differences == []
