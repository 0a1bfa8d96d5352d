"""Sources of numbers: positions from database sequences, span numbers from a counter row that rolls back too."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from typer.testing import CliRunner

from store import AttemptedRollout, Span, Store, StoreError, open_store
from store.cli.app import app
from store.db.url import parse
from store.errors import Incompatible
from tests import databases
from tests.databases import Database

# A rule of the test's own, so that a commit fails after its numbers were drawn.
REFUSE_SPANS = {
    "sqlite": "CREATE TRIGGER refuse_spans BEFORE INSERT ON spans BEGIN SELECT RAISE(ABORT, 'no spans today'); END",
    "postgresql": (
        "CREATE FUNCTION refuse_spans() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no spans today'; END $$;"
        " CREATE TRIGGER refuse_spans BEFORE INSERT ON spans EXECUTE FUNCTION refuse_spans()"
    ),
}
# A rule that moves a sequence between the announcement of the numbers and the rows.
SKIP_A_NUMBER = {
    "sqlite": "CREATE TRIGGER skip AFTER DELETE ON labels BEGIN"
    " UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'events'; END",
    "postgresql": "ALTER SEQUENCE event_seq INCREMENT 2",
}
SKIP_NO_NUMBER = {"sqlite": "DROP TRIGGER skip", "postgresql": "ALTER SEQUENCE event_seq INCREMENT 1"}
DRAWING = """
import asyncio, sys
from store import open_store

async def main() -> None:
    async with await open_store(sys.argv[1]) as store:
        while True:
            print(await store.get_next_span_sequence_id(*sys.argv[2:]), flush=True)

asyncio.run(main())
"""
"""A program that draws span numbers until it is killed."""
ALLOW_SPANS = {"sqlite": "DROP TRIGGER refuse_spans", "postgresql": "DROP FUNCTION refuse_spans() CASCADE"}


@pytest.fixture
async def opened(durable_url: str) -> AsyncIterator[Store]:
    async with await open_store(durable_url) as store:
        yield store


@pytest.fixture
async def database(opened: Store, durable_url: str) -> AsyncIterator[Database]:
    database = await databases.connect(durable_url)
    yield database
    await database.close()


def span(rollout: AttemptedRollout, number: int) -> Span:
    return Span.from_attributes(
        attributes={}, rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id, sequence_id=number
    )


async def fail_to_record(store: Store, database: Database, rollout: AttemptedRollout) -> None:
    """Send a span with number 7 to a database that refuses it at the last moment."""
    await database.execute(REFUSE_SPANS[database.kind])
    with pytest.raises(StoreError, match="no spans today"):
        await store.add_span(span(rollout, 7))
    await database.execute(ALLOW_SPANS[database.kind])


async def positions(database: Database) -> list[int]:
    return [position for (position,) in await database.rows("SELECT position FROM events ORDER BY position")]


async def commit_ids(database: Database) -> list[int]:
    return [commit_id for (commit_id,) in await database.rows("SELECT commit_id FROM commits ORDER BY commit_id")]


async def test_a_rollback_leaves_a_hole_in_the_positions_on_postgres_and_none_on_sqlite(
    opened: Store, database: Database
) -> None:
    rollout = await opened.start_rollout("task")
    before = await positions(database)
    assert before == list(range(1, len(before) + 1))
    await fail_to_record(opened, database, rollout)
    await opened.add_span(span(rollout, 1))
    added = (await positions(database))[len(before) :]
    assert added == list(range(added[0], added[0] + len(added)))
    # The span would have been a fact, and made the attempt and the rollout running: three positions were drawn.
    lost = 3 if database.kind == "postgresql" else 0
    assert added[0] == before[-1] + 1 + lost
    assert await commit_ids(database) == ([1, 2] if database.kind == "sqlite" else [1, 3])
    assert (await opened.log.verify()).ok


async def test_a_rollback_leaves_no_hole_in_the_span_numbers(opened: Store, database: Database) -> None:
    rollout = await opened.start_rollout("task")
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    assert await opened.get_next_span_sequence_id(*ids) == 1
    await fail_to_record(opened, database, rollout)
    assert await opened.get_many_span_sequence_ids([ids, ids]) == [2, 3]


async def test_two_stores_draw_dense_numbers_of_shared_blocks(opened: Store, durable_url: str) -> None:
    rollout = await opened.start_rollout("task")
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    async with await open_store(durable_url) as colleague:
        drawn = [await store.get_next_span_sequence_id(*ids) for _ in range(40) for store in (opened, colleague)]
        assert drawn == [*range(1, 81)]
        assert (await colleague.log.verify()).differences == []
    history = await opened.log.history(rollout.rollout_id)
    blocks = [event.data for event in history if event.type == "span.numbers_reserved"]
    assert blocks == [{"first": 1, "until": 32}, {"first": 33, "until": 64}, {"first": 65, "until": 96}]


async def test_a_number_is_not_drawn_again_after_its_process_was_killed(opened: Store, durable_url: str) -> None:
    rollout = await opened.start_rollout("task")
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    program = (sys.executable, "-c", DRAWING, durable_url, *ids)
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    drawn = [int(await process.stdout.readline()) for _ in range(40)]
    process.kill()
    drawn += [int(line) for line in (await process.communicate())[0].split()]
    assert drawn == [*range(1, len(drawn) + 1)]
    # The last number may have been drawn without being printed.
    following = await opened.get_next_span_sequence_id(*ids)
    assert following in {len(drawn) + 1, len(drawn) + 2}
    assert (await opened.log.verify()).differences == []


async def test_a_reservation_is_part_of_the_past(opened: Store) -> None:
    rollout = await opened.enqueue_rollout("task")
    assert await opened.get_next_span_sequence_id(rollout.rollout_id, "any") == 1
    await opened.update_rollout(rollout.rollout_id, mode="val")
    _, reserved, amended = await opened.log.history(rollout.rollout_id)
    assert (reserved.type, reserved.data) == ("span.numbers_reserved", {"first": 1, "until": 32})
    for past in ({"as_at": reserved.position}, {"at": 2}):
        assert await opened.get_rollout_by_id(rollout.rollout_id, **past) == rollout
    now = await opened.get_rollout_by_id(rollout.rollout_id, as_at=amended.position)
    assert now == await opened.get_rollout_by_id(rollout.rollout_id)


async def test_positions_and_commit_ids_are_drawn_from_the_databases_own_sequences(
    opened: Store, database: Database
) -> None:
    await opened.enqueue_rollout("task")
    if database.kind == "sqlite":
        told = dict(await database.rows("SELECT name, seq FROM sqlite_sequence WHERE name IN ('events', 'commits')"))
        drawn = (told["commits"], told["events"])
    else:
        (drawn,) = await database.rows("SELECT c.last_value, e.last_value FROM commit_seq c, event_seq e")
    assert drawn == ((await commit_ids(database))[-1], (await positions(database))[-1])


async def test_positions_follow_a_sequence_that_was_moved_by_hand(opened: Store, database: Database) -> None:
    await opened.enqueue_rollout("before")
    before = await positions(database)
    await move(database, 1000, 500)
    await opened.enqueue_rollout("after")
    added = (await positions(database))[len(before) :]
    assert added == list(range(1001, 1001 + len(added)))
    assert (await commit_ids(database))[-1] == 501
    assert (await opened.log.verify()).differences == []


@pytest.mark.parametrize("number", [(1, 1), (1, 100), (100, 1)])
async def test_a_sequence_behind_the_log_returns_no_number_twice_and_is_repaired_by_one_command(
    opened: Store, database: Database, durable_url: str, number: tuple[int, int]
) -> None:
    for task in range(3):
        await opened.enqueue_rollout(task)
    before = await positions(database)
    await move(database, *number)
    names = "sqlite_sequence {}s" if database.kind == "sqlite" else f"rollbook_{parse(durable_url).partition}.{{}}_seq"
    behind = [names.format(name) for name, at in zip(("event", "commit"), number, strict=True) if at == 1]
    report = await opened.log.verify()
    assert {(difference.check, difference.key) for difference in report.differences} == {
        ("sequences", name) for name in behind
    }
    result = await asyncio.to_thread(CliRunner().invoke, app, ["verify", "--db", durable_url])
    assert result.exit_code == 3
    assert "the log is intact" in result.stderr
    assert all(name in result.stderr for name in behind)
    if database.kind == "postgresql":
        with pytest.raises(Incompatible, match=f"the sequence {behind[-1]} is at 1, and the log is at") as refused:
            await opened.enqueue_rollout("refused")
        assert await positions(database) == before
        command = str(refused.value).partition("run: ")[2]
        assert command in result.stderr
        await database.rows(command)
    await opened.enqueue_rollout("after")
    added = (await positions(database))[len(before) :]
    assert added[0] == max(before[-1], number[0] if number[0] > 1 else 0) + 1
    assert (await opened.log.verify()).ok


async def test_numbers_of_another_program_are_refused(opened: Store, database: Database) -> None:
    """Decision 4: the numbers that the database returns are compared with those that were announced."""
    rollout = await opened.enqueue_rollout("before")
    await opened.annotations.annotate(rollout.rollout_id, add_labels=["kept"])
    before = await positions(database)
    await database.execute(SKIP_A_NUMBER[database.kind])
    with pytest.raises(Incompatible, match="returned"):
        await opened.annotations.annotate(rollout.rollout_id, remove_labels=["kept"])
    assert await positions(database) == before
    await database.execute(SKIP_NO_NUMBER[database.kind])
    await opened.enqueue_rollout("after")
    assert len(await positions(database)) > len(before)


async def move(database: Database, position: int, commit_id: int) -> None:
    if database.kind == "sqlite":
        for table, number in (("events", position), ("commits", commit_id)):
            await database.execute(f"UPDATE sqlite_sequence SET seq = {number} WHERE name = '{table}'")
    else:
        await database.rows(f"SELECT setval('event_seq', {position}), setval('commit_seq', {commit_id})")
