"""What `verify` proves: nothing can be changed, taken away or added behind the store's back without being named."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from store import open_store
from store.db import triggers
from store.db.dialect import Changes, dialect_for
from store.db.url import parse
from store.domain.events import BodyDropped, Event
from store.domain.world import World
from store.errors import Corrupt
from store.interface import Store
from store.journal import apart
from store.journal.comparison import STRETCHES
from store.journal.jobs import Compare, Job, Walk
from store.journal.project import log_rows
from store.journal.walk import Bounds
from store.models import AttemptedRollout, Difference, VerifyReport
from store.testing import ManualClock
from store.testing.samples import make_prompt, make_span
from tests.journal.given import SPAN, ask, blob, fill, run_sql, tamper


class Filled:
    """A store with something of everything, and what verify says of it."""

    def __init__(self, url: str, store: Store, first: AttemptedRollout, clock: ManualClock) -> None:
        self.url = url
        self.store = store
        self.first = first
        self.clock = clock

    async def differences(self, seal: Any = None) -> list[Difference]:
        return (await self.report(seal)).differences

    async def report(self, seal: Any = None) -> VerifyReport:
        report = await self.store.verify(seal)
        assert report.ok == (report.difference_count == 0) == (not report.differences)
        return report

    async def only(self, check: str) -> Difference:
        """Return the one difference there is."""
        (found,) = await self.differences()
        assert found.check == check, found
        return found


@pytest.fixture
async def filled(durable_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=0) as store:
        yield Filled(durable_url, store, await fill(store, clock), clock)


async def number_of(filled: Filled, type_: str) -> int:
    """Return the position of the first event of a type."""
    (row,) = await ask(filled.url, f"SELECT min(position) FROM events WHERE type = '{type_}'")
    return int(row[0])


# -- what is sound -------------------------------------------------------------------------------------------------


async def test_a_store_nobody_tampered_with_is_sound(store: Store, clock: ManualClock) -> None:
    await fill(store, clock)
    report = await store.verify()
    assert report.ok
    assert report.differences == []
    assert report.events == report.last_position
    assert report.rows == {
        "rollouts": 5,
        "attempts": 3,
        "spans": 4,
        "rewards": 3,
        "resources": 2,
        "workers": 2,
        "queue": 3,
    }
    assert not report.seal_checked


async def test_an_empty_store_is_sound(store: Store) -> None:
    report = await store.verify()
    assert report.ok
    assert (report.commits, report.events, report.streams, report.chain_head) == (0, 0, 0, "00" * 32)


async def test_the_state_hash_is_that_of_the_rows_and_not_of_their_places(durable_url: str) -> None:
    reports: list[VerifyReport] = []
    for url in ("memory://", durable_url):
        async with await open_store(url, clock=ManualClock(), scan_debounce_seconds=0) as store:
            await store.update_resources("r", make_prompt())
            if url != "memory://" and _database(url) == "postgresql":
                await run_sql(url, "SELECT nextval('event_seq'), nextval('commit_seq')")
            await store.update_worker("w")
            reports.append(await store.verify())
            assert reports[-1].ok
    assert reports[0].state_hash == reports[1].state_hash
    if _database(durable_url) == "postgresql":
        assert reports[0].last_position != reports[1].last_position
        assert reports[0].chain_head != reports[1].chain_head


async def test_another_row_is_another_state_hash(store: Store) -> None:
    empty = (await store.verify()).state_hash
    await store.enqueue_rollout({"q": 1})
    assert (await store.verify()).state_hash != empty


async def test_verify_goes_on_while_others_write(filled: Filled) -> None:
    async def write() -> None:
        for _ in range(20):
            await filled.store.enqueue_rollout({"more": True})

    writing = asyncio.create_task(write())
    while not writing.done():
        assert (await filled.report()).ok
    await writing


async def test_a_store_open_for_reading_can_be_verified(filled: Filled) -> None:
    async with await open_store(filled.url, read_only=True, create=False) as reader:
        assert (await reader.verify()).chain_head == (await filled.report()).chain_head


# -- the log ---------------------------------------------------------------------------------------------------------


async def test_a_flipped_byte_in_an_event_is_found(filled: Filled) -> None:
    position = await number_of(filled, "span.recorded")
    await tamper(filled.url, f"UPDATE events SET data = replace(data, 'step', 'stop') WHERE position = {position}")
    found = await filled.differences()
    broken = [each for each in found if each.check == "chain"]
    (commit,) = broken
    assert commit.field == "chain_hash"
    assert f"events {position} to" in commit.key
    # The row was folded from the event as it was, so it tells what the event said.
    (name,) = [each for each in found if each.check == "spans"]
    assert (name.field, name.expected, name.found) == ("name", "stop", "step")


@pytest.mark.parametrize(
    "column, value",
    [
        ("actor", "'somebody'"),
        ("at", "at + 1"),
        ("cause", "1"),
        ("command", "command + 1"),
        ("body_hash", None),
        ("shape", "2"),
        ("type", "'span.erased'"),
        ("version", "version + 1000"),
        ("stream", "'rollout/elsewhere'"),
    ],
)
async def test_every_column_of_an_event_is_part_of_the_chain(filled: Filled, column: str, value: str | None) -> None:
    position = await number_of(filled, "span.recorded")
    value = blob(bytes(32), filled.url) if value is None else value
    await tamper(filled.url, f"UPDATE events SET {column} = {value} WHERE position = {position}")
    assert "chain_hash" in {each.field for each in await filled.differences() if each.check == "chain"}


@pytest.mark.parametrize("column", ["recorded_at", "first_position", "last_position"])
async def test_every_number_of_a_commit_is_part_of_the_chain(filled: Filled, column: str) -> None:
    await tamper(filled.url, f"UPDATE commits SET {column} = {column} + 1 WHERE commit_id = 3")
    found = [each for each in await filled.differences() if each.check == "chain"]
    assert any(each.key.startswith("commit 3") for each in found)


async def test_an_event_that_says_it_is_of_another_commit_is_found(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE events SET commit_id = 1 WHERE position = 4")
    found = await filled.only("chain")
    assert (found.key, found.field, found.found) == ("event 4", "commit_id", 1)


async def test_a_flipped_byte_in_a_body_is_found(filled: Filled) -> None:
    position = await number_of(filled, "rollout.enqueued")
    (row,) = await ask(filled.url, f"SELECT hex_of FROM ({_hex(filled.url)}) h WHERE position = {position}")
    body = bytearray(bytes.fromhex(row[0]))
    body[-3] ^= 1
    await tamper(filled.url, f"UPDATE bodies SET body = {blob(bytes(body), filled.url)} WHERE position = {position}")
    found = await filled.only("bodies")
    assert found.key == f"event {position}"
    assert found.field == "body"


async def test_a_wrong_length_of_a_body_is_found(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE bodies SET raw_len = raw_len + 1 WHERE position = 1")
    found = await filled.only("bodies")
    assert (found.key, found.field) == ("event 1", "raw_len")


async def test_a_body_that_is_gone_without_an_order_is_found(filled: Filled) -> None:
    await tamper(filled.url, "DELETE FROM bodies WHERE position = 1")
    found = await filled.only("bodies")
    assert (found.key, found.field, found.found) == ("event 1", None, None)


async def test_permission_to_drop_a_body_counts_only_with_the_event_that_ordered_it(filled: Filled) -> None:
    await tamper(filled.url, "DELETE FROM bodies WHERE position = 1", "INSERT INTO dropped VALUES (1, 2)")
    assert (await filled.only("bodies")).key == "event 1"


async def test_a_body_that_an_event_ordered_dropped_may_be_gone(filled: Filled) -> None:
    before = await filled.report()
    last = await _record(filled, BodyDropped(position=1, policy="older than a day"))
    await run_sql(filled.url, f"INSERT INTO dropped VALUES (1, {last})", "DELETE FROM bodies WHERE position = 1")
    report = await filled.report()
    assert report.differences == []
    assert (report.events, report.state_hash) == (before.events + 1, before.state_hash)
    # The order names one body, and no other.
    await tamper(filled.url, f"INSERT INTO dropped VALUES (2, {last})", "DELETE FROM bodies WHERE position = 2")
    assert (await filled.only("bodies")).key == "event 2"


async def _record(filled: Filled, fact: BodyDropped) -> int:
    """Append a fact about the store itself, and return its position."""
    url = parse(filled.url)
    dialect = dialect_for(url)(url, filled.clock)
    session = await dialect.writer()
    tail = await session.begin()
    commit_id, position = await session.draw(1)
    event = Event(position, "store", 1, 0, tail.recorded_at + 1, "cli", None, fact)
    world = World(now=tail.now, last_stamp=tail.recorded_at, next_position=position, events=[event])
    changes = Changes({}, {}, {})
    changes.inserts.update(log_rows(world, tail, commit_id, "drop", "test"))
    await session.write(changes)
    await session.commit()
    await session.close()
    return position


async def test_a_body_that_no_event_claims_is_found(filled: Filled) -> None:
    one = blob(b"{}", filled.url)
    await tamper(filled.url, f"INSERT INTO bodies VALUES (1000000, 0, 2, {one})")
    found = await filled.only("bodies")
    assert (found.key, found.expected) == ("event 1000000", None)


async def test_a_deleted_event_is_found(filled: Filled) -> None:
    position = await number_of(filled, "attempt.started")
    await tamper(filled.url, f"DELETE FROM events WHERE position = {position}")
    found = await filled.differences()
    missing = [each for each in found if each.check == "chain" and each.key == f"event {position}"]
    assert len(missing) == 1
    # What follows in its stream no longer follows from what is left.
    assert any(each.check == "events" and each.key.startswith("rollout/") for each in found)


async def test_a_deleted_commit_is_found(filled: Filled) -> None:
    await tamper(filled.url, "DELETE FROM commits WHERE commit_id = 2")
    keys = {each.key for each in await filled.differences() if each.check == "chain"}
    assert any(key.startswith("commit 3") for key in keys)


async def test_a_deleted_commit_with_all_its_events_is_found(filled: Filled) -> None:
    await tamper(
        filled.url,
        "DELETE FROM events WHERE commit_id = 2",
        "DELETE FROM bodies WHERE position NOT IN (SELECT position FROM events)",
        "DELETE FROM commits WHERE commit_id = 2",
    )
    found = await filled.differences()
    assert any(each.field == "chain_hash" and each.key.startswith("commit 3") for each in found)


async def test_a_swapped_pair_of_events_is_found(filled: Filled) -> None:
    a = await number_of(filled, "span.recorded")
    b = a + 3
    ((type_b,),) = await ask(filled.url, f"SELECT type FROM events WHERE position = {b}")
    assert type_b == "span.recorded"
    await tamper(
        filled.url,
        f"UPDATE events SET position = -{a} WHERE position = {a}",
        f"UPDATE events SET position = {a} WHERE position = {b}",
        f"UPDATE events SET position = {b} WHERE position = -{a}",
    )
    found = await filled.differences()
    assert any(each.check == "chain" and f"events {a} to" in each.key for each in found)


async def test_an_event_that_no_commit_holds_is_found(filled: Filled) -> None:
    await tamper(
        filled.url,
        "INSERT INTO events SELECT position + 1000, commit_id, 'worker/ghost', 1, command, 'worker.seen', 1, at, actor,"
        " cause, '{}', NULL FROM events WHERE position = 5",
    )
    found = await filled.differences()
    assert [(each.check, each.key) for each in found] == [("chain", "event 1005"), ("workers", "ghost")]


async def test_wrong_running_totals_are_found(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE commits SET spans = spans + 1 WHERE commit_id = 4")
    found = await filled.differences()
    assert ("totals", "commit 4", "spans") in {(each.check, each.key, each.field) for each in found}


async def test_an_event_that_cannot_be_decoded_is_a_difference_and_no_crash(filled: Filled) -> None:
    stream = f"rollout/{filled.first.rollout_id}"
    await tamper(filled.url, f"UPDATE events SET data = '[1' WHERE stream = '{stream}' AND version = 2")
    found = await filled.differences()
    assert any(each.check == "events" and each.key == f"{stream}, event 2" for each in found)


async def test_an_event_of_a_newer_version_is_a_difference_and_no_crash(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE events SET shape = 9 WHERE stream LIKE 'resources/%' AND version = 2")
    assert any(each.check == "events" and "shape 9" in str(each.found) for each in await filled.differences())


async def test_an_event_that_does_not_follow_is_a_difference_and_no_crash(filled: Filled) -> None:
    stream = f"rollout/{filled.first.rollout_id}"
    await tamper(
        filled.url,
        f"UPDATE events SET data = replace(data, 'queuing', 'running') WHERE stream = '{stream}'"
        " AND type = 'rollout.status_changed'",
    )
    assert any(each.check == "events" and each.key.startswith(stream) for each in await filled.differences())


async def test_an_event_of_an_unknown_kind_of_stream_is_a_difference_and_no_crash(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE events SET stream = 'aaa/1', type = 'aaa.done' WHERE position = 1")
    assert any(each.key == "aaa/1, event 1" for each in await filled.differences())


# -- a seal ----------------------------------------------------------------------------------------------------------


async def test_a_cut_tail_is_found_with_a_seal(filled: Filled, tmp_path: Path) -> None:
    await filled.store.seal(tmp_path / "seal.json")
    last = (await filled.report()).commits
    await tamper(
        filled.url,
        f"DELETE FROM events WHERE commit_id = {last}",
        "DELETE FROM bodies WHERE position NOT IN (SELECT position FROM events)",
        f"DELETE FROM commits WHERE commit_id = {last}",
    )
    await filled.store.rebuild()
    # Without the seal nothing tells that there was more; the rows were made to fit.
    assert await filled.differences() == []
    (found,) = await filled.differences(tmp_path / "seal.json")
    assert (found.check, found.key) == ("seal", f"commit {last}")
    assert f"ends at commit {last - 1}" in found.found


async def test_what_came_after_a_seal_does_not_matter_to_it(filled: Filled, tmp_path: Path) -> None:
    seal = await filled.store.seal(tmp_path / "seal.json")
    await filled.store.enqueue_rollout({"later": True})
    report = await filled.report(seal)
    assert report.ok
    assert report.seal_checked


async def test_another_history_before_the_seal_is_found(filled: Filled, tmp_path: Path) -> None:
    seal = await filled.store.seal(tmp_path / "seal.json")
    forged = seal.model_copy(update={"chain_head": "11" * 32})
    (found,) = await filled.differences(forged)
    assert (found.check, found.field, found.found) == ("seal", "chain_hash", seal.chain_head)


async def test_a_seal_of_another_store_is_found(filled: Filled, tmp_path: Path) -> None:
    seal = await filled.store.seal(tmp_path / "seal.json")
    (found,) = await filled.differences(seal.model_copy(update={"store_id": "other"}))
    assert (found.check, found.field) == ("seal", "store_id")


# -- guards ----------------------------------------------------------------------------------------------------------


async def test_a_dropped_trigger_is_found(filled: Filled) -> None:
    name = triggers.trigger_names(_database(filled.url))[0]
    table = next(guard.table for guard in triggers.expected(_database(filled.url)) if guard.name == name)
    await run_sql(
        filled.url, f"DROP TRIGGER {name}" if _database(filled.url) == "sqlite" else f"DROP TRIGGER {name} ON {table}"
    )
    found = await filled.only("guards")
    assert name in found.key


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET at = at WHERE position = 1",
        "DELETE FROM events WHERE position = 1",
        "UPDATE commits SET writer = 'me'",
        "DELETE FROM commits",
        "UPDATE bodies SET raw_len = 0",
        "DELETE FROM bodies WHERE position = 1",
        "TRUNCATE events",
        "TRUNCATE commits",
        "TRUNCATE bodies",
        "REPLACE INTO events SELECT * FROM events WHERE position = 1",
        "REPLACE INTO bodies SELECT * FROM bodies WHERE position = 1",
        "REPLACE INTO commits SELECT * FROM commits WHERE commit_id = 1",
        "INSERT OR REPLACE INTO bodies (position, codec, raw_len, body) VALUES (1, 0, 2, '{}')",
    ],
)
async def test_the_database_refuses_to_change_the_log(filled: Filled, statement: str) -> None:
    is_sqlite = _database(filled.url) == "sqlite"
    if ("TRUNCATE" in statement and is_sqlite) or ("REPLACE" in statement and not is_sqlite):
        pytest.skip("the other database has no such statement")
    with pytest.raises((sqlite3.IntegrityError, subprocess.CalledProcessError)) as refused:
        await run_sql(filled.url, statement)
    assert "append-only" in f"{refused.value} {getattr(refused.value, 'stderr', '')}"
    assert await filled.differences() == []


# -- projections and counters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table, column, value",
    [
        ("rollouts", "status", "'cancelled'"),
        ("rollouts", "config", "'{}'"),
        ("rollouts", "last_reward", "0.5"),
        ("rollouts", "plan_key", "'other'"),
        ("rollouts", "tokens_in", "tokens_in + 1"),
        ("attempts", "worker_id", "'thief'"),
        ("attempts", "released_position", "3"),
        ("attempts", "last_heartbeat_time", "1.5"),
        ("spans", "start_time", "-2.0"),
        ("spans", "parent_id", "'p'"),
        ("spans", "position", "position + 1"),
        ("rewards", "value", "1.0"),
        ("workers", "status", "'unknown'"),
        ("resources", "version", "9"),
        ("queue", "rollout_id", "'ro-nobody'"),
    ],
)
async def test_an_edited_row_is_named_with_its_column(filled: Filled, table: str, column: str, value: str) -> None:
    await run_sql(
        filled.url,
        f"UPDATE {table} SET {column} = {value} WHERE {_first_key(table)} ="
        f" (SELECT min({_first_key(table)}) FROM {table})",
    )
    found = await filled.differences()
    assert {each.check for each in found} == {table}
    assert all(each.expected != each.found for each in found)
    if table != "queue":
        assert {each.field for each in found} == {column}


@pytest.mark.parametrize("table", ["rollouts", "attempts", "spans", "rewards", "resources", "workers", "queue"])
async def test_a_deleted_row_is_named(filled: Filled, table: str) -> None:
    key = _first_key(table)
    await run_sql(filled.url, f"DELETE FROM {table} WHERE {key} = (SELECT max({key}) FROM {table})")
    found = await filled.differences()
    assert found
    assert {(each.check, each.field, each.found) for each in found} == {(table, None, None)}


@pytest.mark.parametrize(
    "table, values",
    [
        (f"spans {SPAN}", "'ro-a', 'at-a', 's', 1, 't', 'n', 'OK', 9999"),
        (f"spans {SPAN}", "'{first}', 'at-a', 's', 1, 't', 'n', 'OK', 9999"),
        ("rewards", "'zz', 77, 0, 'at-a', 'n', 1.0"),
        ("rewards", "'{first}', 9999, 0, 'at-a', 'n', 1.0"),
        ("workers", "'zz', 'idle', NULL, NULL, NULL, NULL, 1, 1, 1"),
        ("resources", "'aa', 1, 1, 1, 1, 1, 1, 1"),
        ("queue", "99999, 'ro-zzz'"),
        ("queue", "99999, '{first}'"),
    ],
)
async def test_an_extra_row_is_named(filled: Filled, table: str, values: str) -> None:
    await run_sql(filled.url, f"INSERT INTO {table} VALUES ({values.format(first=filled.first.rollout_id)})")
    found = await filled.only(table.partition(" ")[0])
    assert (found.expected, found.field) == (None, None)


async def test_a_counter_behind_the_log_is_found(filled: Filled) -> None:
    rollout_id = filled.first.rollout_id
    await run_sql(filled.url, f"UPDATE span_counters SET value = 2 WHERE rollout_id = '{rollout_id}'")
    found = await filled.only("counters")
    assert (found.key, found.field, found.expected, found.found) == (rollout_id, "value", 3, 2)


async def test_a_counter_ahead_of_the_log_is_fine(filled: Filled) -> None:
    await filled.store.get_next_span_sequence_id(filled.first.rollout_id, "any")
    await filled.store.get_next_span_sequence_id("ro-that-does-not-exist", "any")
    assert await filled.differences() == []


async def test_signals_are_not_compared(filled: Filled) -> None:
    await run_sql(filled.url, "DELETE FROM worker_signals", "DELETE FROM watch", "DELETE FROM attempt_signals")
    assert await filled.differences() == []


async def test_the_first_twenty_differences_are_named_and_all_are_counted(filled: Filled) -> None:
    await filled.store.add_many_spans([make_span(filled.first.attempt, number) for number in range(10, 40)])
    await run_sql(filled.url, "UPDATE spans SET name = 'renamed'")
    report = await filled.report()
    assert len(report.differences) == 20
    assert report.difference_count == 34


async def test_a_long_log_is_proven_by_other_processes(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    here = await filled.report()
    done = _elsewhere(monkeypatch)
    there = await filled.report()
    assert there.model_copy(update={"seconds": here.seconds}) == here
    assert done.pop(Walk) == [True]
    assert done.pop(Compare) == [True] * (len(STRETCHES) + 4)
    rebuilt = await filled.store.rebuild()
    assert (rebuilt.written, rebuilt.state_hash, rebuilt.rows) == ({}, here.state_hash, here.rows)
    assert done.pop(Compare) == [True] * (len(STRETCHES) + 4)


async def test_what_other_processes_find_wrong_is_named_here(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await filled.report()
    await tamper(filled.url, "UPDATE events SET actor = 'somebody' WHERE position = 3")
    await run_sql(
        filled.url,
        "UPDATE spans SET name = 'renamed'",
        "UPDATE rollouts SET status = 'cancelled'",
        "INSERT INTO workers VALUES ('zz', 'idle', NULL, NULL, NULL, NULL, 1, 1, 1)",
        "DELETE FROM queue",
    )
    here = await filled.report()
    done = _elsewhere(monkeypatch)
    there = await filled.report()
    assert there.model_copy(update={"seconds": here.seconds}) == here
    assert done[Walk] == [True]
    assert False in done[Compare]
    rebuilt = await filled.store.rebuild()
    assert rebuilt.written == {"rollouts": 5, "spans": 4, "workers": 1, "queue": 3}
    assert rebuilt.state_hash == before.state_hash


async def test_an_event_that_does_not_follow_stops_a_rebuild_by_several_processes(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = f"rollout/{filled.first.rollout_id}"
    await tamper(filled.url, f"UPDATE events SET type = 'rollout.enqueued' WHERE stream = '{stream}' AND version = 3")
    _elsewhere(monkeypatch)
    with pytest.raises(Corrupt, match=stream):
        await filled.store.rebuild()


def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> dict[type[Any], list[bool]]:
    """Have every proof done by two processes; return for each kind of job whether they had an answer."""
    done: dict[type[Any], list[bool]] = defaultdict(list)

    class Watched(apart.Team):
        def begin(self, job: Job[Any]) -> asyncio.Task[Any]:
            task = super().begin(job)
            task.add_done_callback(lambda task: done[type(job)].append(task.result() is not None))
            return task

    monkeypatch.setattr(apart, "Team", Watched)
    monkeypatch.setattr(apart, "WORTHWHILE", 0)
    return done


@pytest.mark.parametrize("executable", ["/bin/false", "/bin/cat", "/does/not/exist"])
async def test_without_another_process_the_proof_is_made_here(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    here = await filled.report()
    monkeypatch.setattr(apart, "WORTHWHILE", 0)
    monkeypatch.setattr(apart.sys, "executable", executable)
    assert (await filled.report()).model_copy(update={"seconds": here.seconds}) == here
    await tamper(filled.url, "UPDATE events SET actor = 'somebody' WHERE position = 3")
    assert (await filled.only("chain")).field == "chain_hash"


@pytest.mark.parametrize("survivors", [0, 1])
async def test_what_a_process_was_doing_when_it_was_killed_is_done_here(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    here = await filled.report()
    started: list[Any] = []
    start, sees = apart.start, apart.Team.sees

    def noted() -> Any:
        started.append(start())
        return started[-1]

    async def seen(team: apart.Team, state: Bounds) -> bool:
        agreed = await sees(team, state)
        for process in started[survivors:]:
            process.kill()
        return agreed

    done = _elsewhere(monkeypatch)
    monkeypatch.setattr(apart, "start", noted)
    monkeypatch.setattr(apart.Team, "sees", seen)
    there = await filled.report()
    assert there.model_copy(update={"seconds": here.seconds}) == here
    assert len(started) > 1
    assert (True in done[Compare]) == bool(survivors)
    assert False in [*done[Compare], *done[Walk]]


async def test_processes_end_when_a_proof_is_given_up(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start, sees = apart.start, apart.Team.sees
    given_up = threading.Event()

    def noted() -> Any:
        started.append(start())
        return started[-1]

    async def never_seen(team: apart.Team, state: Bounds) -> bool:
        await sees(team, state)
        given_up.set()
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(apart, "WORTHWHILE", 0)
    monkeypatch.setattr(apart, "start", noted)
    monkeypatch.setattr(apart.Team, "sees", never_seen)
    verifying = asyncio.create_task(filled.store.verify())
    await asyncio.to_thread(given_up.wait)
    processes = [psutil.Process(process.pid) for process in started]
    verifying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await verifying
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 30)
    assert len(processes) > 1
    assert not alive
    monkeypatch.undo()
    assert (await filled.report()).ok


async def test_several_processes_see_one_state_while_others_write(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _elsewhere(monkeypatch)
    ended = asyncio.Event()

    async def write() -> None:
        while not ended.is_set():
            await filled.store.enqueue_rollout({"more": True})
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    for _ in range(3):
        report = await filled.report()
        assert report.ok
        assert report.events == report.last_position
        assert report.rows["rollouts"] == report.streams - 4
    ended.set()
    await writing
    assert done[Walk]


async def test_a_rollout_with_very_many_spans_is_compared_piece_by_piece(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from store.db import scan
    from store.journal import comparison

    for number in range(40, 60):
        await filled.store.add_span(make_span(filled.first.attempt, number, attributes={}, span_id=f"s{number}"))
    whole = await filled.report()
    monkeypatch.setattr(comparison, "LARGE", 4)
    monkeypatch.setattr(comparison, "BATCH", 5)
    monkeypatch.setattr(scan, "BATCH", 5)
    pieces = await filled.report()
    assert (pieces.state_hash, pieces.rows, pieces.differences) == (whole.state_hash, whole.rows, [])

    rollout_id, attempt_id = filled.first.rollout_id, filled.first.attempt.attempt_id
    await run_sql(
        filled.url,
        "UPDATE spans SET name = 'renamed', position = 3 WHERE span_id = 's41'",
        "DELETE FROM spans WHERE span_id = 's42'",
        f"INSERT INTO spans {SPAN} VALUES ('{rollout_id}', '{attempt_id}', 'extra', 1, 't', 'n', 'OK', 5)",
        f"INSERT INTO rewards VALUES ('{rollout_id}', 9999, 0, '{attempt_id}', 'n', 1.0)",
        f"INSERT INTO rewards VALUES ('{rollout_id}', -5, 0, '{attempt_id}', 'n', 1.0)",
    )
    found = {(each.check, each.key.rpartition("/")[2], each.field) for each in await filled.differences()}
    rewards = {("rewards", "0", None)}
    spans = {("spans", "s41", "name"), ("spans", "s41", "position"), ("spans", "s42", None), ("spans", "extra", None)}
    assert found == spans | rewards
    await filled.store.rebuild()
    mended = await filled.report()
    assert (mended.differences, mended.state_hash) == ([], whole.state_hash)


def _first_key(table: str) -> str:
    return {"workers": "worker_id", "resources": "resources_id", "queue": "position", "spans": "span_id"}.get(
        table, "position" if table == "rewards" else "rollout_id"
    )


def _database(url: str) -> str:
    return parse(url).scheme


def _hex(url: str) -> str:
    if _database(url) == "sqlite":
        return "SELECT position, hex(body) AS hex_of FROM bodies"
    return "SELECT position, encode(body, 'hex') AS hex_of FROM bodies"
