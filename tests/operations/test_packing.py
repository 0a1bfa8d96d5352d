"""Data of events in blocks: reads return the same results, and damage is reported."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from sqlalchemy import select

from store import Corrupt, open_store
from store.db import data_blocks
from store.db.data_blocks import DataBlocks, data_places, first_of, pack, reference, unpack
from store.db.schema import triggers
from store.db.tables import core as core_tables
from store.interface.store import Store
from store.operations import (
    OperationProgress,
    backup_store,
    compact,
    copy_store,
    log_source,
    packing,
    restore_store,
)
from store.testing import ManualClock
from store.testing.samples import make_span
from tests import databases, postgres
from tests.cli.conftest import runner
from tests.faults import processes
from tests.operations import work
from tests.operations.payloads import ON_SQLITE, Place, fill, verified
from tests.torture import Rounds

EVENTS = 4
IN_BLOCKS = "SELECT position, data FROM events WHERE data LIKE '@%' ORDER BY position"
BLOCKS = "SELECT first_position, last_position, body FROM data_blocks ORDER BY first_position"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "EVENTS_PER_BLOCK", EVENTS)


@pytest.fixture
async def place(durable_url: str, clock: ManualClock) -> Place:
    """A store with every kind of event."""
    return await fill(durable_url, clock)


async def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    database = await databases.connect(url)
    try:
        return [tuple(row) for row in await database.rows(statement)]
    finally:
        await database.close()


async def all_reads(store: Store) -> list[Any]:
    """Return what the reads of a store return, now and as at several positions."""
    events = [event async for event in store.log.tail()]
    rollouts = await store.query_rollouts(limit=-1)
    by_reward = await store.query_rollouts(limit=-1, sort_by="reward", sort_order="desc")
    results: list[Any] = [events, list(rollouts), list(by_reward)]
    ends = [event.position for event in events[:: max(1, len(events) // 3)]]
    for rollout in rollouts:
        results += [
            await store.query_spans(rollout.rollout_id, limit=-1),
            await store.query_attempts(rollout.rollout_id),
            await store.log.history(rollout.rollout_id),
            await store.annotations.query(rollout.rollout_id),
            await store.runs.list_lineage(rollout.rollout_id),
        ]
        results += [await store.query_spans(rollout.rollout_id, as_at=end, limit=-1) for end in ends]
        created = next(event.position for event in events if event.stream == f"rollout/{rollout.rollout_id}")
        results += [await store.annotations.query(rollout.rollout_id, as_at=end) for end in ends if end >= created]
    results += [list(await store.query_rollouts(limit=-1, as_at=end)) for end in ends]
    return results


async def test_reads_return_the_same(place: Place) -> None:
    before = await verified(place.url)
    async with await open_store(place.url, clock=place.clock) as opened:
        seen = await all_reads(opened)
        report = await compact(place.url)
        assert report.events == len(await rows(place.url, IN_BLOCKS)) > 0.5 * before.events
        assert report.events % EVENTS == 0
        assert await all_reads(opened) == seen
    after = await verified(place.url)
    assert (after.chain_head, after.state_hash) == (before.chain_head, before.state_hash)
    async with await open_store(place.url, clock=place.clock) as store:
        assert await all_reads(store) == seen
        rebuilt = await store.log.rebuild()
        assert rebuilt.state_hash == before.state_hash
        assert await all_reads(store) == seen


@ON_SQLITE
async def test_the_next_call_continues(place: Place) -> None:
    first = await compact(place.url)
    stored = await rows(place.url, BLOCKS)
    assert len(stored) == first.events // EVENTS
    assert (await compact(place.url)).events == 0
    async with await open_store(place.url, clock=place.clock) as store:
        for number in range(2 * EVENTS):
            await store.enqueue_rollout(number)
    second = await compact(place.url)
    assert second.events in {2 * EVENTS, 3 * EVENTS}
    both = await rows(place.url, BLOCKS)
    assert both[: len(stored)] == stored
    assert all(before[1] < after[0] for before, after in pairwise(both))
    await verified(place.url)


@ON_SQLITE
async def test_data_that_statements_read_stays(place: Place) -> None:
    async with await open_store(place.url, clock=place.clock) as store:
        (attempt, *_) = await store.query_attempts(place.active)
        await store.get_next_span_sequence_id(place.active, attempt.attempt_id)
        for number in range(EVENTS):
            await store.enqueue_rollout(number)
    await compact(place.url)
    stay = await rows(place.url, "SELECT type, data FROM events WHERE data NOT LIKE '@%'")
    assert any(type_ == "span.recorded" and '"rewards":' in data for type_, data in stay)
    assert any(type_ == "run.event" and "sha256" in data for type_, data in stay)
    reserved = [data for (data,) in await rows(place.url, "SELECT data FROM events WHERE type LIKE 'span.numbers%'")]
    assert reserved
    assert not any(data.startswith("@") for data in reserved)
    rewards = "SELECT data FROM events WHERE position IN (SELECT position FROM rewards)"
    assert all(not data.startswith("@") for (data,) in await rows(place.url, rewards))


async def test_long_data_and_data_that_is_not_json_stay(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    async with await open_store(url) as store:
        for number in range(3 * EVENTS):
            await store.enqueue_rollout(number)
    odd = {2: "line\nline", 3: "@1", 5: "x" * (data_blocks.LONGEST_DATA + 1), 6: "no JSON"}
    with closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        connection.execute("DROP TRIGGER events_refuse_update")
        for position, data in odd.items():
            connection.execute("UPDATE events SET data = ? WHERE position = ?", (data, position))
        connection.execute(triggers.statements("sqlite")[_index("events_refuse_update")])
        connection.commit()
    before = await _differences(url)
    assert (await compact(url)).events == 2 * EVENTS
    texts = dict(await rows(url, "SELECT position, data FROM events WHERE position IN (2, 3, 5)"))
    assert texts == {position: odd[position] for position in (2, 3, 5)}
    assert await _differences(url) == before


def _index(name: str) -> int:
    (index,) = [at for at, statement in enumerate(triggers.statements("sqlite")) if f"TRIGGER {name} " in statement]
    return index


async def _differences(url: str) -> list[Any]:
    async with await open_store(url) as store:
        return (await store.log.verify()).differences


@ON_SQLITE
async def test_copies_and_backups_contain_the_blocks(place: Place, tmp_path: Path, postgres_server: str) -> None:
    other = postgres.with_partition(postgres_server)
    await compact(place.url)
    before = await verified(place.url)
    stored = await rows(place.url, BLOCKS), await rows(place.url, IN_BLOCKS)
    await backup_store(place.url, tmp_path / "backup.db")
    await restore_store(tmp_path / "backup.db", other)
    await copy_store(other, f"sqlite:///{tmp_path / 'copy.db'}")
    for url in (other, f"sqlite:///{tmp_path / 'copy.db'}"):
        assert (await rows(url, BLOCKS), await rows(url, IN_BLOCKS)) == stored
        after = await verified(url)
        assert (after.chain_head, after.state_hash) == (before.chain_head, before.state_hash)
        assert (await compact(url)).events == 0


@ON_SQLITE
async def test_a_compaction_during_a_copy(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "EVENTS_AT_ONCE", 10)
    target = f"sqlite:///{tmp_path / 'copy.db'}"
    compaction = threading.Thread(target=asyncio.run, args=(compact(place.url),))

    def begin(progress: OperationProgress) -> None:
        if progress.done >= 30 and compaction.ident is None:
            compaction.start()
            compaction.join()

    await copy_store(place.url, target, on_progress=begin)
    assert compaction.ident is not None
    assert 0 < len(await rows(target, IN_BLOCKS)) < len(await rows(place.url, IN_BLOCKS))
    assert await _differences(target) == []
    async with await open_store(place.url, clock=place.clock) as source, await open_store(target) as copied:
        assert await all_reads(copied) == await all_reads(source)


async def test_writes_during_a_compaction(place: Place) -> None:
    written: list[str] = []
    done = asyncio.Event()

    async def write() -> None:
        async with await open_store(place.url) as store:
            while not done.is_set() or len(written) < 10:
                written.append((await store.enqueue_rollout(len(written))).rollout_id)
                # With this pause, there are few writes.
                await asyncio.sleep(0.005)

    writing = asyncio.create_task(write())
    for _ in range(2):
        await compact(place.url)
    done.set()
    await writing
    async with await open_store(place.url) as store:
        rollout_ids = {rollout.rollout_id for rollout in await store.query_rollouts(limit=-1)}
        assert rollout_ids >= set(written)
    await verified(place.url)


async def test_two_compactions_at_once(place: Place) -> None:
    before = await verified(place.url)
    reports = await asyncio.gather(compact(place.url), compact(place.url))
    last = await compact(place.url)
    assert sum(report.events for report in reports) + last.events == len(await rows(place.url, IN_BLOCKS))
    after = await verified(place.url)
    assert (after.chain_head, after.state_hash) == (before.chain_head, before.state_hash)


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_compaction_killed_at_any_instant_continues(place: Place, rounds: Rounds) -> None:
    async with await open_store(place.url) as store:
        seen = {rollout.rollout_id for rollout in await store.query_rollouts(limit=-1)}
    # Kills in the middle of the packing leave events that could be in a block.
    interrupted = 0
    for turn in range(rounds(100, few=1)):
        async with await open_store(place.url) as store:
            numbers = range(20 * EVENTS)
            seen.update([(await store.enqueue_rollout(number)).rollout_id for number in numbers])
            before = await store.log.verify()
        packed = len(await rows(place.url, BLOCKS))
        # The first process pauses after its first block until it is killed.
        least_pause = 3600.0 if turn == 0 else None
        with processes.running(work.pack_store, (place.url, least_pause)) as (process,):
            while process.is_alive() and len(await rows(place.url, BLOCKS)) == packed:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.to_thread(process.join, random.uniform(0, 0.1))
        interrupted += len(await rows(place.url, BLOCKS)) < packed + 20
        async with await open_store(place.url) as store:
            after = await store.log.verify()
            assert {rollout.rollout_id for rollout in await store.query_rollouts(limit=-1)} == seen, turn
        assert (after.differences, after.state_hash, after.chain_head) == ([], before.state_hash, before.chain_head)
    assert interrupted
    await compact(place.url)
    assert len(await rows(place.url, IN_BLOCKS)) > len(seen) / 2


@pytest.fixture
async def damaged(tmp_path: Path, clock: ManualClock) -> tuple[Place, Path]:
    """A store with blocks, without the triggers that protect them."""
    path = tmp_path / "run.db"
    place = await fill(f"sqlite:///{path}", clock)
    await compact(place.url)
    with closing(sqlite3.connect(path)) as connection:
        for verb in ("insert", "update", "delete"):
            connection.execute(f"DROP TRIGGER data_blocks_refuse_{verb}")
    return place, path


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM data_blocks",
        "UPDATE data_blocks SET body = zeroblob(length(body))",
        "UPDATE data_blocks SET body = substr(body, 1, length(body) - 1)",
        "UPDATE data_blocks SET body = CAST(body || X'00' AS BLOB)",
        "UPDATE data_blocks SET body = 'text'",
        "UPDATE data_blocks SET first_position = first_position + 1000000",
    ],
)
async def test_a_missing_or_damaged_block_is_reported(damaged: tuple[Place, Path], damage: str) -> None:
    place, path = damaged
    async with await open_store(place.url, clock=place.clock) as store:
        before = await store.log.history(place.task)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(damage)
            connection.commit()
        # The store has the blocks in memory, and a verification finds the damage nevertheless.
        report = await store.log.verify()
    assert {difference.check for difference in report.differences} & {"chain", "data_blocks"}
    assert before
    async with await open_store(place.url, clock=place.clock) as store:
        with pytest.raises(Corrupt, match=r"a reference to block \d+, which is missing or damaged"):
            await store.log.history(place.task)
        with pytest.raises(Corrupt):
            await store.log.rebuild()


@pytest.mark.parametrize("value", ["last_position + 1", "9000000000", "'text'", "-1"])
async def test_another_last_position_is_reported(damaged: tuple[Place, Path], value: str) -> None:
    place, path = damaged
    with closing(sqlite3.connect(path)) as connection:
        first = "(SELECT max(first_position) FROM data_blocks)"
        connection.execute(f"UPDATE data_blocks SET last_position = {value} WHERE first_position = {first}")
        connection.commit()
    assert "data_blocks" in {difference.check for difference in await _differences(place.url)}


async def test_blocks_that_overlap_are_reported(damaged: tuple[Place, Path]) -> None:
    place, path = damaged
    with closing(sqlite3.connect(path)) as connection:
        (first, last, body), *_ = connection.execute("SELECT * FROM data_blocks ORDER BY 1").fetchall()
        data = unpack(first, body)
        assert data is not None
        later = {position: text for position, text in data.items() if position > first}
        copied = (min(later), last, pack(list(later.items())))
        connection.execute("INSERT INTO data_blocks VALUES (?, ?, ?)", copied)
        connection.commit()
    differences = [difference for difference in await _differences(place.url) if difference.check == "data_blocks"]
    assert {difference.field for difference in differences} == {"first_position", None}


async def test_no_single_changed_bit_of_a_block_is_accepted() -> None:
    events = [(number, f'{{"rollout_id":"ro-{number}","status":"running"}}') for number in range(1, 20)]
    block = pack(events)
    for bit in range(8 * len(block)):
        changed = bytearray(block)
        changed[bit // 8] ^= 1 << bit % 8
        assert unpack(1, bytes(changed)) in (None, dict(events)), bit


async def test_other_data_in_a_block_is_reported(damaged: tuple[Place, Path]) -> None:
    place, path = damaged
    with closing(sqlite3.connect(path)) as connection:
        first, body = connection.execute("SELECT first_position, body FROM data_blocks LIMIT 1").fetchone()
        data = unpack(first, body)
        assert data is not None
        swapped = list(zip(data, reversed(data.values()), strict=True))
        connection.execute("UPDATE data_blocks SET body = ? WHERE first_position = ?", (pack(swapped), first))
        connection.commit()
    assert any(difference.check == "chain" for difference in await _differences(place.url))


async def test_a_block_to_which_no_event_refers_is_reported(damaged: tuple[Place, Path]) -> None:
    place, path = damaged
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO data_blocks SELECT 5000000, 5000001, body FROM data_blocks LIMIT 1")
        connection.commit()
    differences = [difference for difference in await _differences(place.url) if difference.check == "data_blocks"]
    assert ("block 5000000", "a block to which no event refers") in [
        (difference.key, difference.found) for difference in differences
    ]


@ON_SQLITE
async def test_a_block_is_read_once_for_the_events_of_a_page(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await compact(place.url)
    read: list[int] = []

    def unpacked(first: int, block: Any) -> dict[int, str] | None:
        read.append(first)
        return unpack(first, block)

    monkeypatch.setattr(data_blocks, "unpack", unpacked)
    async with await open_store(place.url, clock=place.clock) as store:
        await store.log.history(place.task)
        assert len(read) == len(set(read)) > 0
        once = len(read)
        await store.log.history(place.task)
        assert len(read) == once


@ON_SQLITE
async def test_few_blocks_stay_in_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_blocks, "_KEPT_CHARACTERS", 2000)
    monkeypatch.setattr(data_blocks, "_READ_AT_ONCE", 3)
    keeping, sizes = DataBlocks._keep, list[list[int]]()  # pyright: ignore[reportPrivateUsage]

    def keep(self: DataBlocks, blocks: Any, forgotten: int) -> None:
        keeping(self, blocks, forgotten)
        sizes.append([len(text) for block, _ in self._known.values() for text in block.values()])  # pyright: ignore[reportPrivateUsage]
        assert sum(sizes[-1]) == self._characters  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(DataBlocks, "_keep", keep)
    async with await open_store(place.url, clock=place.clock) as store:
        seen = await all_reads(store)
        await compact(place.url)
        assert await all_reads(store) == seen
        assert (await store.log.verify()).ok
    assert max(map(len, sizes)) > EVENTS
    assert all(sum(lengths) <= 2000 or len(lengths) == EVENTS for lengths in sizes)


async def reads(store: Store) -> list[Any]:
    """Return events, and rollouts now and as at a position within a block."""
    events = [event async for event in store.log.tail()]
    rollouts = list(await store.query_rollouts(limit=-1))
    before = list(await store.query_rollouts(limit=-1, as_at=events[70].position))
    return [events, rollouts, before, [await store.log.history(rollout.rollout_id) for rollout in rollouts[::20]]]


async def test_blocks_of_the_real_size(durable_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "EVENTS_PER_BLOCK", data_blocks.EVENTS_PER_BLOCK)
    async with await open_store(durable_url) as store:
        rollouts = [await store.enqueue_rollout({"number": number}) for number in range(140)]
        seen = await reads(store)
        plain = (await rows(durable_url, "SELECT sum(length(data)) FROM events"))[0][0]
        assert (await compact(durable_url)).events == 128
        ((refs, blocks),) = await rows(
            durable_url, "SELECT (SELECT sum(length(data)) FROM events), (SELECT sum(length(body)) FROM data_blocks)"
        )
        assert refs + blocks < 0.4 * plain
        assert await reads(store) == seen
        assert (await store.dequeue_rollout()) is not None
        assert len(rollouts) == 140
    await verified(durable_url)


@ON_SQLITE
async def test_compact_command_reports_events_stored_in_blocks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rollbook = runner(place.url, monkeypatch)
    told = await asyncio.to_thread(rollbook, "compact")
    count = len(await rows(place.url, IN_BLOCKS))
    assert f"the data of {count:,} events was stored in blocks" in told.out
    assert "in blocks" not in (await asyncio.to_thread(rollbook, "compact")).out


DATA = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(-9, 9) | st.none(), max_size=4)


@examples(st.lists(st.tuples(st.integers(1, 1000), DATA), min_size=1, max_size=9))
def test_a_block_returns_the_data_of_its_events(parts: list[tuple[int, dict[str, Any]]]) -> None:
    from orjson import dumps

    position, events = 0, dict[int, str]()
    for distance, data in parts:
        position += distance
        events[position] = dumps(data).decode()
    first = next(iter(events))
    assert unpack(first, pack(list(events.items()))) == events


@examples(st.binary(max_size=60))
def test_other_bytes_are_no_block(block: bytes) -> None:
    assert unpack(1, block) is None


@pytest.mark.parametrize("distances", ["1 1", "0 0", "0 -5", "0 1 1", "0", "", "0 x", f"0 {10**4000}", f"0 {2**63}"])
def test_a_block_with_other_positions_is_no_block(distances: str) -> None:
    assert unpack(3, _compressed("0 1")) == {3: "{}", 4: "{}"}
    assert unpack(3, _compressed(distances)) is None


def _compressed(distances: str) -> bytes:
    return data_blocks.zstd.compress(f"{distances}\n{{}}\n{{}}".encode())


async def test_a_block_that_is_read_during_a_verification_is_not_kept() -> None:
    blocks = DataBlocks(_Database())
    block = pack([(1, "{}")])

    class Reading:
        async def fetch(self, sql: Any, params: Any) -> list[Any]:
            del sql, params
            blocks.forget()
            return [(1, block)]

    assert await blocks.restored(Reading(), [(1, "@1")], ((0, 1),)) == [(1, "{}")]
    assert not blocks._known  # pyright: ignore[reportPrivateUsage]


class _Database:
    def sql(self, statement: Any) -> Any:
        return statement

    def any_of(self, column: Any, name: str) -> Any:
        del name
        return column == 1

    def list_param(self, values: Any) -> Any:
        return values


@pytest.mark.parametrize(
    "stored",
    ["@", "@x", "@-1", "@1 ", " @1", "1", "{}", "", "@" + 19 * "1", "@01", "@\N{FULLWIDTH DIGIT ONE}", 1, b"@1", None],
)
def test_other_values_are_no_references(stored: Any) -> None:
    assert first_of(stored) is None


def test_a_reference_contains_the_position() -> None:
    assert first_of(reference(4711)) == 4711
    assert first_of(reference(10**17)) == 10**17


def test_a_statement_cannot_read_data_without_the_position() -> None:
    event = core_tables.events.c
    other = core_tables.events.alias("other").c
    with pytest.raises(ValueError, match="must also read the position"):
        data_places(select(event.stream, event.data))
    with pytest.raises(ValueError, match="must also read the position"):
        data_places(select(other.position, event.data))
    both = select(event.position, event.data)
    with pytest.raises(ValueError, match="a UNION cannot read"):
        data_places(both.union_all(both))
    assert data_places(select(event.position).union_all(select(event.position))) == ()
    assert data_places(select(event.data, event.position, other.position, other.data)) == ((1, 0), (2, 3))


@ON_SQLITE
def test_a_span_without_a_reward_is_packed_even_if_its_name_mentions_rewards(place: Place) -> None:
    async def write() -> int:
        async with await open_store(place.url, clock=place.clock) as store:
            started = await store.start_rollout(None)
            spans = [make_span(started.attempt, n + 1, name='say "rewards": [1]') for n in range(3 * EVENTS)]
            await store.add_many_spans(spans)
        await compact(place.url)
        named = "SELECT count(*) FROM spans JOIN events USING (position) WHERE name LIKE 'say%' AND data LIKE '@%'"
        ((count,),) = await rows(place.url, named)
        return count

    assert asyncio.run(write()) >= 2 * EVENTS
