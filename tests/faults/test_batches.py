"""Failures inside a batch: a lost answer, an invalid command, a caller that leaves."""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from store import open_store
from store.db.dialect import Changes
from store.db.tables import core as core_tables
from store.domain.commands import Command, LoadRequest
from store.errors import Busy, Incompatible, StoreError, TimedOut, Unavailable
from store.interface.store import Store
from store.journal import writer
from store.sql.store import SQLStore
from store.sql.waiters import WaitingCalls
from tests import databases
from tests.faults.conftest import ON_SQLITE
from tests.faults.sessions import Trouble, taken, troubled_store, until, waiting

T = TypeVar("T")


def once(error: Exception) -> Callable[..., None]:
    """Return a function that raises the error the first time."""
    left = [error]

    def raise_once(*_: object) -> None:
        if left:
            raise left.pop()

    return raise_once


async def enqueue_together(store: SQLStore, trouble: Trouble, inputs: list[Any]) -> list[Any]:
    """Send calls that will be one batch, and return their answers and errors."""
    first = await taken(trouble, store.enqueue_rollout("first"))
    together = await waiting(store, *(store.enqueue_rollout(input_) for input_ in inputs))
    trouble.holds = False
    await first
    return await asyncio.gather(*together, return_exceptions=True)


async def inputs_of(store: Store) -> list[Any]:
    return [rollout.input for rollout in (await store.query_rollouts(sort_by="start_time")).items]


async def assert_sound(store: Store) -> None:
    report = await store.log.verify()
    assert report.ok, report.differences


async def test_a_batch_whose_commit_lost_its_answer_is_found_and_not_applied_twice(
    troubled: SQLStore, trouble: Trouble
) -> None:
    trouble.after_commit = once(Unavailable("the connection broke"))
    rollout = await troubled.enqueue_rollout("once")
    assert await inputs_of(troubled) == ["once"]
    assert (await troubled.get_rollout_by_id(rollout.rollout_id)) == rollout
    await assert_sound(troubled)


async def test_a_batch_without_events_is_found_by_its_key_too(troubled: SQLStore, trouble: Trouble) -> None:
    rollout = await troubled.enqueue_rollout("numbered")
    trouble.after_commit = once(Unavailable("the connection broke"))
    numbers = [await troubled.get_next_span_sequence_id(rollout.rollout_id, "at-1") for _ in range(3)]
    assert numbers == [1, 2, 3]


async def test_a_commit_that_did_not_happen_is_done_again_under_the_same_key(
    troubled: SQLStore, trouble: Trouble
) -> None:
    trouble.before_commit = once(Unavailable("the connection broke"))
    await troubled.enqueue_rollout("once")
    assert await inputs_of(troubled) == ["once"]
    await assert_sound(troubled)


async def test_a_commit_of_another_process_is_not_the_lost_one(durable_url: str, trouble: Trouble) -> None:
    def fail_and_hold() -> None:
        trouble.before_commit = lambda: None
        trouble.holds = True
        raise Unavailable("the connection broke")

    troubled = await troubled_store(durable_url, trouble)
    trouble.before_commit = fail_and_hold
    call = asyncio.create_task(troubled.enqueue_rollout("mine"))
    await until(lambda: trouble.is_holding)
    async with await open_store(durable_url) as another:
        await another.enqueue_rollout("theirs")
    trouble.holds = False
    await call
    assert await inputs_of(troubled) == ["theirs", "mine"]
    await assert_sound(troubled)
    await troubled.close()


@ON_SQLITE
async def test_the_answers_of_a_found_batch_are_those_of_its_own_calls(troubled: SQLStore, trouble: Trouble) -> None:
    trouble.after_commit = once(Unavailable("the connection broke"))
    inputs = [f"task {number}" for number in range(20)]
    answers = await enqueue_together(troubled, trouble, inputs)
    assert [answer.input for answer in answers] == inputs
    stored = {rollout.rollout_id: rollout.input for rollout in (await troubled.query_rollouts()).items}
    assert {answer.rollout_id: answer.input for answer in answers}.items() <= stored.items()
    assert Counter(await inputs_of(troubled)) == Counter(["first", *inputs])


class Time:
    """The time of the writer, which passes only when a test advances it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@ON_SQLITE
async def test_calls_fail_as_not_executed_while_the_database_is_unavailable(
    troubled: SQLStore, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()

    def lose_connection() -> None:
        trouble.before_write = refuse
        raise Unavailable("the connection broke")

    def refuse(_: Changes) -> None:
        time.seconds += 1
        raise Unavailable("Postgres cannot answer")

    monkeypatch.setattr(writer, "time", time)
    monkeypatch.setattr(writer, "_RETRY_SECONDS", 2.0)
    trouble.before_write = refuse
    with pytest.raises(Unavailable, match="Postgres cannot answer; try again in 1 s"):
        await troubled.enqueue_rollout("never written")
    trouble.before_write = lambda _: None
    trouble.before_commit = lose_connection
    with pytest.raises(Unavailable) as refused:
        await troubled.enqueue_rollout("commit failed")
    assert refused.value.retryable
    assert not isinstance(refused.value, TimedOut)
    trouble.before_write, trouble.before_commit = (lambda _: None), (lambda: None)
    await troubled.enqueue_rollout("written")
    assert await inputs_of(troubled) == ["written"]


@ON_SQLITE
async def test_commit_with_unknown_outcome_raises_timed_out(
    troubled: SQLStore, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise Unavailable("Postgres cannot answer")

    def break_off() -> None:
        trouble.before_begin = away
        trouble.after_commit = lambda: None
        raise Unavailable("the connection broke")

    monkeypatch.setattr(writer, "_RETRY_SECONDS", 0.3)
    trouble.after_commit = break_off
    with pytest.raises(TimedOut, match=r"COMMIT had no answer after 0.3 s and may have taken effect"):
        await troubled.enqueue_rollout("written all the same")
    trouble.before_begin = lambda: None
    await troubled.enqueue_rollout("later")
    assert await inputs_of(troubled) == ["written all the same", "later"]
    await assert_sound(troubled)


@ON_SQLITE
async def test_a_call_that_finds_the_inbox_full_is_sent_away_undone(
    troubled: SQLStore, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING_CALLS", 3)
    first = await taken(trouble, troubled.enqueue_rollout("first"))
    others = await waiting(troubled, *(troubled.enqueue_rollout(number) for number in range(3)))
    with pytest.raises(Busy, match=r"3 calls already wait to be written, the most is 3; try again in 0.1 s") as told:
        await troubled.enqueue_rollout("one too many")
    assert told.value.retryable
    trouble.holds = False
    await asyncio.gather(first, *others)
    assert Counter(await inputs_of(troubled)) == Counter(["first", *range(3)])


class Unknown(Command):
    """A command that nobody taught the store."""

    def request_rows(self, request: LoadRequest) -> None:
        """Nothing has to be at hand."""


@ON_SQLITE
async def test_a_command_that_cannot_be_handled_fails_alone(
    troubled: SQLStore, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    first = await taken(trouble, troubled.enqueue_rollout("first"))
    calls = [troubled.enqueue_rollout(number) for number in range(10)]
    tasks = await waiting(troubled, *calls[:5], troubled.core.writer.call(Unknown()), *calls[5:])
    poison = tasks.pop(5)
    with caplog.at_level(logging.ERROR, "store.journal"):
        trouble.holds = False
        answers = await asyncio.gather(*tasks)
        with pytest.raises(KeyError):
            await poison
    assert [answer.input for answer in answers] == list(range(10))
    assert [record.getMessage() for record in caplog.records] == ["a command could not be handled: Unknown"]
    await first
    assert sorted(map(str, await inputs_of(troubled))) == sorted(["first", *map(str, range(10))])
    await assert_sound(troubled)


async def test_a_row_that_the_database_refuses_fails_its_own_call_only(troubled: SQLStore, trouble: Trouble) -> None:
    def refuse(changes: Changes) -> None:
        if any(b"poison" in row[3] for row in changes.inserts.get(core_tables.bodies, [])):
            raise Incompatible("the database refused a statement", "run `rollbook verify`")

    trouble.before_write = refuse
    answers = await enqueue_together(troubled, trouble, ["a", "poison", "b", "c"])
    assert [type(answer).__name__ for answer in answers] == ["Rollout", "Incompatible", "Rollout", "Rollout"]
    assert Counter(await inputs_of(troubled)) == Counter(["first", "a", "b", "c"])
    await assert_sound(troubled)


@ON_SQLITE
async def test_error_in_a_notification_does_not_block_later_commits(
    troubled: SQLStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("waiter")

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "store.journal"):
        patched.setattr(WaitingCalls, "_wake_claimers", fail)
        await troubled.enqueue_rollout("first")
    await troubled.enqueue_rollout("second")
    assert await inputs_of(troubled) == ["first", "second"]
    assert [record.getMessage() for record in caplog.records] == ["waiting readers could not be notified of a commit"]


@ON_SQLITE
async def test_a_call_cancelled_before_the_writer_took_it_never_happened(troubled: SQLStore, trouble: Trouble) -> None:
    first = await taken(trouble, troubled.enqueue_rollout("taken"))
    (second,) = await waiting(troubled, troubled.enqueue_rollout("still in the inbox"))
    second.cancel()
    trouble.holds = False
    assert (await first).input == "taken"
    with pytest.raises(asyncio.CancelledError):
        await second
    await troubled.enqueue_rollout("later")
    assert await inputs_of(troubled) == ["taken", "later"]


@ON_SQLITE
async def test_a_call_cancelled_after_the_writer_took_it_stands(troubled: SQLStore, trouble: Trouble) -> None:
    call = await taken(trouble, troubled.enqueue_rollout("taken"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    trouble.holds = False
    await troubled.enqueue_rollout("later")
    assert await inputs_of(troubled) == ["taken", "later"]


@ON_SQLITE
async def test_a_claim_cancelled_after_the_writer_took_it_uses_up_nothing(troubled: SQLStore, trouble: Trouble) -> None:
    rollout = await troubled.enqueue_rollout("wanted")
    call = await taken(trouble, troubled.dequeue_rollout("w1"))
    call.cancel()
    trouble.holds = False
    claimed = await troubled.dequeue_rollout("w2", wait_seconds=10)
    assert claimed is not None
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 1)
    await assert_sound(troubled)


@ON_SQLITE
async def test_closing_store_answers_its_accepted_calls(troubled: SQLStore, trouble: Trouble) -> None:
    first = await taken(trouble, troubled.enqueue_rollout("first"))
    calls = await waiting(troubled, *(troubled.enqueue_rollout(number) for number in range(20)))
    closing = asyncio.create_task(troubled.close())
    await asyncio.sleep(0.05)
    trouble.holds = False
    assert [answer.input for answer in await asyncio.gather(first, *calls)] == ["first", *range(20)]
    await closing
    with pytest.raises(StoreError, match="on a closed store"):
        await troubled.enqueue_rollout("late")


async def test_commits_after_environment_errors_are_written_in_order(durable_url: str, trouble: Trouble) -> None:
    numbers = iter(range(10_000))

    def every_third(*_: object) -> None:
        if next(numbers) % 3 == 0:
            raise Unavailable("a passing trouble", retry_after_seconds=0.1)

    store = await troubled_store(durable_url, trouble)
    trouble.before_commit = trouble.after_commit = every_third
    for number in range(20):
        await store.enqueue_rollout(number)
    assert await inputs_of(store) == list(range(20))
    await assert_sound(store)
    await store.close()
    database = await databases.connect(durable_url)
    positions = [row[0] for row in await database.rows("SELECT position FROM events ORDER BY position")]
    commits = await database.rows("SELECT first_position, last_position FROM commits ORDER BY commit_id")
    await database.close()
    assert positions == [position for first, last in commits for position in range(first, last + 1)]
