"""Reads of the past return the results that reads returned at that time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from store import open_store
from store.db.dialect import Dialect, NamedRow, ReadSession, Row, dialect_for
from store.db.queries import filters, pages
from store.db.queries import log as log_queries
from store.db.queries.filters import FilterCondition, FilterQuery
from store.db.url import parse
from store.domain.commands import ReleaseClaim, Sweep
from store.domain.views import ClaimView
from store.errors import Invalid, PastUnavailable
from store.interface.store import Store
from store.journal import as_at as timeline
from store.journal.writer import Writer
from store.models import AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig
from store.sql.commands import rollouts as rollout_commands
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.mapping import spans as span_mapping
from store.testing import ManualClock
from store.testing.samples import make_llm, make_span
from tests.conftest import SQLITE
from tests.torture import IS_TORTURE

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For a claim about code that is the same on each database."""

STATUSES: list[Any] = ["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
MODES: list[Any] = ["train", "val", "test", None]


def ignore(what: object, answer: object) -> None:
    del what, answer


@dataclass
class Desk:
    """A store, and beside it a reader and a writer of the same database."""

    store: Store
    dialect: Dialect
    writer: Writer

    async def read(self, work: Callable[[ReadSession], Awaitable[Any]]) -> Any:
        async with self.dialect.read(snapshot=True) as session:
            return await work(session)

    async def moment(self, as_at: Any) -> int:
        return await self.read(lambda session: timeline.moment(session, as_at))

    async def moment_of(self, rollout_id: str, number: Any) -> int:
        return await self.read(lambda session: timeline.moment_of(session, rollout_id, number))

    async def rollouts_at(self, until: int, *conditions: FilterCondition) -> pages.Page[Any]:
        asked = filters.query(filters.ROLLOUTS, conditions)
        return await self.read(
            lambda session: timeline.rollouts(session, asked, until, rollout_mapping.rollout_of_page)
        )

    async def totals_at(self, until: int) -> tuple[int, ...]:
        return await self.read(lambda session: timeline.totals(session, until))

    async def events(self) -> list[Row]:
        return list(await self.read(log_queries.events))

    async def claim(self, worker_id: str | None) -> list[ClaimView]:
        return await self.writer.call(rollout_commands.claim(1, worker_id))

    async def release(self, claim: ClaimView) -> None:
        attempt = claim.rollout.attempt
        assert attempt is not None
        command = ReleaseClaim(
            rollout_id=claim.rollout.row[0],
            attempt_id=attempt.row[1],
            claim_position=claim.claim_position,
            status_before=claim.status_before,
            queued_at=claim.queued_at,
        )
        assert await self.writer.call(command)


@pytest.fixture
async def desk(durable_url: str, clock: ManualClock) -> AsyncIterator[Desk]:
    store = await open_store(durable_url, clock=clock, scan_debounce_seconds=0)
    url = parse(durable_url)
    dialect = dialect_for(url)(url, clock)
    await dialect.open(create=False)
    writer = Writer(dialect, asyncio.get_running_loop(), ignore)
    await writer.start(ignore)
    yield Desk(store, dialect, writer)
    await writer.close()
    await dialect.close()
    await store.close()


# Live rows without their signals, which the past does not know.


def silent_rollout(row: NamedRow) -> Any:
    return rollout_mapping.rollout_of_page(row._replace(beat_time=None, stamped_at=None))


def silent_attempt(row: NamedRow) -> Any:
    return rollout_mapping.attempt_of_page(row._replace(beat_time=None, stamped_at=None))


def silent_worker(row: NamedRow) -> Any:
    return rollout_mapping.worker_model(row, None)


def asked_of_rollouts(dice: random.Random) -> FilterQuery:
    return filters.query(
        filters.ROLLOUTS,
        [
            FilterCondition("status", "in", dice.choice([None, [], ["queuing", "running"], STATUSES[2:5]])),
            FilterCondition("rollout_id", "contains", dice.choice([None, None, "a", "ro-", "7"])),
        ],
        filter_logic=dice.choice(["and", "or"]),
        sort_by=dice.choice([None, *sorted(filters.ROLLOUTS.fields.keys() - {"scan_match"})]),
        sort_order=dice.choice(["asc", "desc"]),
        limit=dice.choice([-1, 0, 1, 3]),
        offset=dice.choice([0, 0, 2]),
    )


@dataclass
class Remembered:
    """What the store answered when the log ended at `position`."""

    position: int
    recorded_at: int
    rollout_queries: list[tuple[FilterQuery, Any]] = field(default_factory=list[tuple[FilterQuery, Any]])
    answers: dict[str, Any] = field(default_factory=dict[str, Any])


class Life:
    """A store to which random things happen, and what it answered after each."""

    def __init__(self, desk: Desk, clock: ManualClock, seed: int) -> None:
        self.desk = desk
        self.store = desk.store
        self.clock = clock
        self.dice = random.Random(seed)
        self.rollout_ids: list[str] = []
        self.attempt_ids: list[tuple[str, str]] = []
        self.spans = 0
        self.remembered: list[Remembered] = []

    async def step(self) -> None:
        self.clock.advance(self.dice.choice([0, 0.5, 20]))
        actions = [
            self.enqueue,
            self.enqueue,
            self.claim,
            self.claim,
            self.claim_and_release,
            self.start,
            self.record,
            self.record,
            self.report,
            self.report,
            self.amend,
            self.beat,
            self.publish,
            self.sweep,
        ]
        await self.dice.choice(actions)()

    async def enqueue(self) -> None:
        config = RolloutConfig(
            timeout_seconds=self.dice.choice([None, 30.0]),
            max_attempts=2,
            retry_condition=["failed", "timeout"],
        )
        rollout = await self.store.enqueue_rollout(
            {"task": self.dice.random()}, self.dice.choice(MODES), config=config, metadata={"n": self.spans}
        )
        self.rollout_ids.append(rollout.rollout_id)

    async def claim(self) -> None:
        claimed = await self.store.dequeue_rollout(self.dice.choice([None, "w1", "w2"]))
        if claimed is not None:
            self.attempt_ids.append((claimed.rollout_id, claimed.attempt.attempt_id))

    async def claim_and_release(self) -> None:
        for claim in await self.desk.claim(self.dice.choice([None, "w1", "w2"])):
            if self.dice.random() < 0.5:
                await self.remember()
            await self.desk.release(claim)

    async def start(self) -> None:
        if self.rollout_ids:
            begun = await self.store.start_attempt(self.dice.choice(self.rollout_ids))
            self.attempt_ids.append((begun.rollout_id, begun.attempt.attempt_id))

    async def record(self) -> None:
        if self.attempt_ids:
            rollout_id, attempt_id = self.dice.choice(self.attempt_ids)
            self.spans += 1
            attempt = next(one for one in await self.store.query_attempts(rollout_id) if one.attempt_id == attempt_id)
            await self.store.add_many_spans([make_span(attempt, self.spans) for _ in range(self.dice.randint(1, 3))])

    async def report(self) -> None:
        if self.attempt_ids:
            rollout_id, attempt_id = self.dice.choice(self.attempt_ids)
            changes: dict[str, Any] = self.dice.choice(
                [
                    {"status": "succeeded"},
                    {"status": "failed", "metadata": {"why": self.dice.random()}},
                    {"worker_id": "w3"},
                    {"last_heartbeat_time": 1.5, "metadata": {}},
                    {"last_heartbeat_time": 2.5},
                ]
            )
            await self.store.update_attempt(rollout_id, attempt_id, **changes)

    async def amend(self) -> None:
        if self.rollout_ids:
            changes: dict[str, Any] = self.dice.choice(
                [
                    {"status": self.dice.choice(STATUSES)},
                    {"input": self.dice.random()},
                    {"metadata": {"at": self.dice.random()}, "mode": None},
                    {"mode": "val", "resources_id": "rs-1", "config": RolloutConfig()},
                ]
            )
            await self.store.update_rollout(self.dice.choice(self.rollout_ids), **changes)

    async def beat(self) -> None:
        await self.store.update_worker(self.dice.choice(["w1", "w4"]), {"gpu": self.dice.random()})

    async def publish(self) -> None:
        if self.dice.random() < 0.5:
            await self.store.add_resources(make_llm(f"m{self.dice.random()}"))
        else:
            await self.store.update_resources(self.dice.choice(["rs-1", "rs-2"]), make_llm(f"m{self.dice.random()}"))

    async def sweep(self) -> None:
        await self.desk.writer.call(Sweep(actor="watchdog"))

    async def remember(self) -> None:
        """Ask everything of the present."""
        dice = self.dice

        async def ask(session: ReadSession) -> None:
            commit = await log_queries.last_commit(session)
            if commit is None:
                return
            now = Remembered(commit[3], commit[4])
            for _ in range(3):
                asked = asked_of_rollouts(dice)
                now.rollout_queries.append((asked, await pages.rollouts(session, asked, silent_rollout)))
            for rollout_id in [*dice.sample(self.rollout_ids, min(2, len(self.rollout_ids))), "ro-none"]:
                by_number = filters.query(filters.ATTEMPTS, sort_by="status", sort_order="desc", limit=3)
                attempts = await pages.attempts(session, rollout_id, by_number, silent_attempt)
                latest = await pages.latest_attempt(session, rollout_id)
                by_name = filters.query(filters.SPANS, sort_by="sequence_id")
                spans = {
                    which: await pages.spans(session, rollout_id, which, by_name, span_mapping.span_of_page)
                    for which in (None, "latest")
                }
                row = await pages.rollout(session, rollout_id)
                now.answers[rollout_id] = (
                    row and silent_rollout(row),
                    attempts,
                    latest and silent_attempt(latest),
                    spans,
                )
            now.answers["workers"] = await pages.workers(
                session, filters.query(filters.WORKERS, sort_by="status", sort_order="desc"), silent_worker
            )
            one = await pages.worker(session, "w1")
            now.answers["worker"] = one and silent_worker(one)
            now.answers["resources"] = await pages.resources(
                session,
                filters.query(filters.RESOURCES, sort_by="version", sort_order="desc", limit=3),
                rollout_mapping.resources_of_page,
            )
            newest = await pages.latest_resources(session)
            named = await pages.resources_by_id(session, "rs-1")
            now.answers["latest"] = newest and rollout_mapping.resources_of_page(newest)
            now.answers["rs-1"] = named and rollout_mapping.resources_of_page(named)
            now.answers["totals"] = await pages.totals(session)
            self.remembered.append(now)

        await self.desk.read(ask)

    async def recall(self, then: Remembered) -> Remembered:
        """Ask the same of the past."""
        until = then.position

        async def ask(session: ReadSession) -> Remembered:
            again = Remembered(then.position, then.recorded_at)
            assert await timeline.moment(session, until) == until
            for asked, _ in then.rollout_queries:
                page = await timeline.rollouts(session, asked, until, rollout_mapping.rollout_of_page)
                again.rollout_queries.append((asked, page))
            for rollout_id in then.answers:
                if not rollout_id.startswith("ro-"):
                    continue
                asked = filters.query(filters.ATTEMPTS, sort_by="status", sort_order="desc", limit=3)
                attempts = await timeline.attempts(session, rollout_id, asked, until, rollout_mapping.attempt_of_page)
                latest = await timeline.latest_attempt(session, rollout_id, until)
                by_name = filters.query(filters.SPANS, sort_by="sequence_id")
                spans = {
                    which: await timeline.spans(session, rollout_id, which, by_name, until, span_mapping.span_of_page)
                    for which in (None, "latest")
                }
                row = await timeline.rollout(session, rollout_id, until)
                again.answers[rollout_id] = (
                    row and rollout_mapping.rollout_of_page(row),
                    attempts,
                    latest and rollout_mapping.attempt_of_page(latest),
                    spans,
                )
            again.answers["workers"] = await timeline.workers(
                session,
                filters.query(filters.WORKERS, sort_by="status", sort_order="desc"),
                until,
                rollout_mapping.worker_of_page,
            )
            one = await timeline.worker(session, "w1", until)
            again.answers["worker"] = one and rollout_mapping.worker_of_page(one)
            again.answers["resources"] = await timeline.resources(
                session,
                filters.query(filters.RESOURCES, sort_by="version", sort_order="desc", limit=3),
                until,
                rollout_mapping.resources_of_page,
            )
            newest = await timeline.latest_resources(session, until)
            named = await timeline.resources_by_id(session, "rs-1", until)
            again.answers["latest"] = newest and rollout_mapping.resources_of_page(newest)
            again.answers["rs-1"] = named and rollout_mapping.resources_of_page(named)
            again.answers["totals"] = await timeline.totals(session, until)
            return again

        return await self.desk.read(ask)


@pytest.mark.parametrize(
    "durable_url,seed",
    [("sqlite", 0), ("sqlite", 1), ("postgres", 0), pytest.param("postgres", 1, marks=pytest.mark.torture_only)],
    indirect=["durable_url"],
)
@pytest.mark.slow
@pytest.mark.torture
async def test_the_past_answers_as_it_did_when_it_was_the_present(desk: Desk, clock: ManualClock, seed: int) -> None:
    life = Life(desk, clock, seed)
    for _ in range(50 if IS_TORTURE else 20):
        await life.step()
        await life.remember()
    # The last of them is the end of the log: a past like any other.
    for then in [*life.remembered[::2], life.remembered[-1]]:
        assert await life.recall(then) == then


async def test_no_call_is_seen_half_done(desk: Desk) -> None:
    await desk.store.enqueue_rollout("before")
    await desk.store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    await desk.store.dequeue_rollout("w1")
    rows = await desk.events()
    ends = {(row[1], row[4]): row[0] for row in rows}
    assert len(ends) == 3
    for row in rows:
        last = max((end for end in ends.values() if end <= row[0]), default=0)
        assert await desk.moment(row[0]) == last
        assert (await desk.rollouts_at(last)).total in {1, 4}


async def test_calls_of_one_commit_have_separate_moments(desk: Desk) -> None:
    await asyncio.gather(*(desk.store.enqueue_rollout(number) for number in range(20)))
    rows = await desk.events()
    assert len({row[1] for row in rows}) < 20
    for count, row in enumerate(rows, start=1):
        assert await desk.moment(row[0]) == row[0]
        assert (await desk.rollouts_at(row[0])).total == count
        totals = await desk.totals_at(row[0])
        assert totals[:2] == (count, count)
        assert totals[-1] > 0
    assert await desk.totals_at(rows[-1][0]) == await desk.read(pages.totals)


@ON_SQLITE
async def test_a_moment_after_the_end_is_the_end_and_before_the_first_event_is_nothing(desk: Desk) -> None:
    assert await desk.moment(7) == 0
    await desk.store.enqueue_rollout(1)
    (row,) = await desk.events()
    for beyond in (row[0], row[0] + 1, 10**30, datetime.max.replace(tzinfo=UTC)):
        assert await desk.moment(beyond) == row[0]
    for before in (0, datetime.min.replace(tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)):
        assert await desk.moment(before) == 0
    assert (await desk.rollouts_at(0)).items == []
    assert await desk.totals_at(0) == (0,) * len(pages.TOTALS)


async def test_time_selects_the_commits_recorded_by_then(desk: Desk, clock: ManualClock) -> None:
    await desk.store.enqueue_rollout(1)
    first = clock()
    clock.advance(1)
    await desk.store.enqueue_rollout(2)
    one, two = await desk.events()
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=first)
    assert await desk.moment(at - timedelta(microseconds=1)) == 0
    assert await desk.moment(at) == one[0]
    assert await desk.moment(at.astimezone(timezone(timedelta(hours=-5)))) == one[0]
    assert await desk.moment(at + timedelta(microseconds=999_999)) == one[0]
    assert await desk.moment(at + timedelta(seconds=1)) == two[0]


NO_MOMENTS: list[Any] = [datetime(2025, 1, 1), 1.0, True, -1, "3", None, [3]]  # noqa: DTZ001 - naive on purpose


@ON_SQLITE
async def test_invalid_moment_is_refused_by_name(desk: Desk, subtests: pytest.Subtests) -> None:
    for as_at in NO_MOMENTS:
        with subtests.test(as_at=repr(as_at)), pytest.raises(Invalid, match="as_at"):
            await desk.moment(as_at)


@ON_SQLITE
async def test_an_event_of_a_rollout_is_found_by_its_number(desk: Desk) -> None:
    await desk.store.enqueue_rollout(1)
    claimed = await desk.store.dequeue_rollout("w1")
    assert claimed is not None
    events = [row for row in await desk.events() if row[2] == f"rollout/{claimed.rollout_id}"]
    for number, row in enumerate(events, start=1):
        assert await desk.moment_of(claimed.rollout_id, number) == row[0]
    for none in (0, len(events) + 1, True, 1.0, 2**80):
        with pytest.raises(Invalid, match="no event"):
            await desk.moment_of(claimed.rollout_id, none)
    with pytest.raises(Invalid, match="rollout_id"):
        await desk.moment_of("\x00", 1)


@ON_SQLITE
async def test_a_past_in_which_too_much_was_different_is_refused_unless_it_is_narrowed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = await desk.store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(4)])
    until = (await desk.events())[-1][0]
    for rollout in rollouts[:3]:
        await desk.store.update_rollout(rollout.rollout_id, status="running")
    monkeypatch.setattr(timeline, "FOLD_LIMIT", 2)
    with pytest.raises(PastUnavailable) as refused:
        await desk.rollouts_at(until)
    assert (refused.value.rows, refused.value.limit) == (3, 2)
    two = FilterCondition("rollout_id", "in", [rollouts[0].rollout_id, rollouts[3].rollout_id])
    assert (await desk.rollouts_at(until, two)).items == [rollouts[0], rollouts[3]]


async def test_a_claim_that_was_released_is_seen_in_its_time_only(desk: Desk) -> None:
    queued = await desk.store.enqueue_rollout(1)
    (claim,) = await desk.claim("w1")
    claimed_at = (await desk.events())[-1][0]
    await desk.release(claim)
    released_at = (await desk.events())[-1][0]
    (then,) = (await desk.rollouts_at(claimed_at)).items
    assert isinstance(then, AttemptedRollout)
    assert then.attempt.worker_id == "w1"
    (now,) = (await desk.rollouts_at(released_at)).items
    assert type(now) is Rollout
    assert now == queued


@ON_SQLITE
async def test_past_state_has_the_payload_of_its_time(desk: Desk) -> None:
    rollout = await desk.store.enqueue_rollout({"version": 1}, metadata={"m": 1})
    until = (await desk.events())[-1][0]
    await desk.store.update_rollout(rollout.rollout_id, input={"version": 2})
    await desk.store.update_rollout(rollout.rollout_id, metadata=None)
    assert (await desk.rollouts_at(until)).items == [rollout]
