"""Promises of the store about threads: each value is stored once, and removals leave the log unchanged."""

from __future__ import annotations

import asyncio

import pytest

from store import open_store
from store.errors import Invalid, NotFound, TooLarge
from store.models.threads import ThreadWrite
from store.sql.commands import threads as thread_commands
from store.sql.store import SQLStore
from tests.journal.database_helpers import ask
from tests.threads.langgraph_samples import ON_BOTH, channel_of, checkpoint, ids, write


async def types(store: SQLStore) -> list[str]:
    """Return the types of all events, in order."""
    return [event.type async for event in store.log.tail()]


async def test_a_repeated_call_keeps_nothing_anew(sql: SQLStore) -> None:
    for _ in range(2):
        await sql.threads.save_checkpoint(checkpoint(1))
        await sql.threads.save_writes("t", [write(0), write(1)], checkpoint_id="cp-0001")
    assert await types(sql) == ["thread.checkpoint_saved", "thread.writes_saved"]


@ON_BOTH
async def test_another_checkpoint_of_the_same_id_takes_the_place_of_the_first(sql: SQLStore) -> None:
    await sql.threads.save_checkpoint(checkpoint(1))
    await sql.threads.save_checkpoint(checkpoint(1, values={"said": ("msgpack", b"other")}))
    assert channel_of(await sql.threads.get_checkpoint("t")) == b"other"
    assert await ids(sql) == ["cp-0001"]


@ON_BOTH
async def test_the_first_of_equal_writes_counts_but_of_special_ones_the_last(sql: SQLStore) -> None:
    await sql.threads.save_checkpoint(checkpoint(1))
    for value in (b"first", b"second"):
        writes = [write(0, value=value), write(-1, value=value, channel="__error__")]
        await sql.threads.save_writes("t", writes, checkpoint_id="cp-0001")
    await sql.threads.save_writes("t", [write(0), write(2, value=b"third")], checkpoint_id="cp-0001")
    stored = await sql.threads.get_checkpoint("t")
    assert stored is not None
    assert [(thread_write.number, thread_write.value[1]) for thread_write in stored.writes] == [
        (-1, b"second"),
        (0, b"first"),
        (2, b"third"),
    ]


@ON_BOTH
async def test_a_call_of_many_writes_is_kept_whole(sql: SQLStore) -> None:
    await sql.threads.save_checkpoint(checkpoint(1))
    writes = [write(number, channel="ä" * 200 + str(number), value=b"%06d" % number) for number in range(1000)]
    await sql.threads.save_writes("t", writes, checkpoint_id="cp-0001")
    stored = await sql.threads.get_checkpoint("t")
    assert stored is not None
    assert list(stored.writes) == writes
    assert (await sql.log.verify()).differences == []


async def test_long_values_are_stored_once_for_all_checkpoints(sql: SQLStore) -> None:
    long, short = b"x" * thread_commands.BLOB_FROM, b"x" * (thread_commands.BLOB_FROM - 1)
    for number in range(3):
        values = {"said": ("msgpack", long), "short": ("msgpack", short), "same": ("bytes", long)}
        await sql.threads.save_checkpoint(checkpoint(number, values=values))
    await sql.threads.save_writes("t", [write(0, value=long)], checkpoint_id="cp-0002")
    stored = await sql.threads.get_checkpoint("t")
    assert stored is not None
    assert stored.values == {"said": ("msgpack", long), "short": ("msgpack", short), "same": ("bytes", long)}
    assert stored.writes[0].value == ("msgpack", long)
    named = [event.data["sha256s"] async for event in sql.log.tail()]
    assert len(named) == 4
    assert len({name for names in named for name in names}) == 1


async def test_more_long_values_than_an_event_names_are_kept_all_the_same(sql: SQLStore) -> None:
    values = {f"channel {number}": ("bytes", b"%04d" % number * 300) for number in range(200)}
    await sql.threads.save_checkpoint(checkpoint(1, values=values))
    stored = await sql.threads.get_checkpoint("t")
    assert stored is not None
    assert stored.values == values
    assert (await sql.log.verify()).differences == []


async def test_a_copy_holds_the_same_and_stores_no_payload(sql: SQLStore) -> None:
    for number in range(3):
        await sql.threads.save_checkpoint(checkpoint(number, ns="" if number else "child:1"))
        await sql.threads.save_writes("t", [write(0), write(-1)], checkpoint_id=f"cp-{number:04}")
    assert await sql.threads.copy("t", "u") == 3
    copies = [event async for event in sql.log.tail() if event.stream == "thread/u"]
    assert len(copies) == 7
    assert all(event.body is None and event.body_hash is None for event in copies)
    before = [stored async for stored in sql.threads.iterate_checkpoints("t")]
    after = [stored async for stored in sql.threads.iterate_checkpoints("u")]
    assert [(stored.ns, stored.checkpoint_id, stored.values, stored.metadata, stored.writes) for stored in after] == [
        (stored.ns, stored.checkpoint_id, stored.values, stored.metadata, stored.writes) for stored in before
    ]
    assert await sql.threads.delete("t")
    assert channel_of(await sql.threads.get_checkpoint("u")) == b"value 2"
    assert (await sql.log.verify()).differences == []


async def test_copy_of_a_too_large_thread_is_refused(sql: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await sql.threads.save_checkpoint(checkpoint(number))
    monkeypatch.setattr("store.domain.decide_threads.MOST_COPIED", 2)
    with pytest.raises(TooLarge, match="prune it first"):
        await sql.threads.copy("t", "u")
    assert await ids(sql, "u") == []


async def test_deleted_checkpoints_leave_the_thread_and_stay_in_the_log(sql: SQLStore) -> None:
    await sql.threads.save_checkpoint(checkpoint(1))
    await sql.threads.save_writes("t", [write(0)], checkpoint_id="cp-0001")
    assert await sql.threads.delete("t")
    assert not await sql.threads.delete("t")
    assert not await sql.threads.delete("never")
    assert await sql.threads.get_checkpoint("t") is None
    assert await types(sql) == ["thread.checkpoint_saved", "thread.writes_saved", "thread.deleted"]
    assert (await sql.log.verify()).rows["thread_writes"] == 0
    await sql.threads.save_checkpoint(checkpoint(2))
    assert await ids(sql) == ["cp-0002"]


async def test_prune_removes_writes_and_names_the_removed_checkpoints(sql: SQLStore) -> None:
    for number in range(300):
        await sql.threads.save_checkpoint(checkpoint(number))
    await sql.threads.save_writes("t", [write(0)], checkpoint_id="cp-0003")
    gone = [("", f"cp-{number:04}") for number in range(299)]
    assert await sql.threads.prune("t", [*gone, ("", "never"), ("child", "cp-0299")]) == 299
    assert await sql.threads.prune("t", gone) == 0
    assert await sql.threads.prune("never", gone) == 0
    assert await ids(sql) == ["cp-0299"]
    pruned = [event.data["checkpoints"] async for event in sql.log.tail() if event.type == "thread.pruned"]
    assert [tuple(key) for keys in pruned for key in keys] == gone
    assert (await sql.log.verify()).differences == []


@ON_BOTH
async def test_a_long_thread_is_read_piece_by_piece_in_order(sql: SQLStore) -> None:
    for number in range(120):
        await sql.threads.save_checkpoint(checkpoint(number, thread_id=f"t{number % 3}"))
    listed = [stored.checkpoint_id async for stored in sql.threads.iterate_checkpoints()]
    assert listed == [f"cp-{number:04}" for number in reversed(range(120))]
    few = [stored.checkpoint_id async for stored in sql.threads.iterate_checkpoints(before="cp-0100", limit=60)]
    assert few == listed[20:80]


@ON_BOTH
async def test_two_stores_on_one_database_keep_each_write_once(store_url: str) -> None:
    async with await open_store(store_url) as one, await open_store(store_url) as two:
        assert isinstance(one, SQLStore)
        assert isinstance(two, SQLStore)

        async def tell(store: SQLStore, name: bytes) -> None:
            for number in range(20):
                await store.threads.save_checkpoint(checkpoint(number))
                writes = [write(0, value=name), write(0, task_id=name.decode(), value=name)]
                for thread_write in writes:
                    await store.threads.save_writes("t", [thread_write], checkpoint_id=f"cp-{number:04}")

        await asyncio.gather(tell(one, b"one"), tell(two, b"two"))
        seen = [[stored async for stored in store.threads.iterate_checkpoints("t")] for store in (one, two)]
        assert seen[0] == seen[1]
        assert len(seen[0]) == 20
        for stored in seen[0]:
            assert {thread_write.task_id for thread_write in stored.writes} == {"task", "one", "two"}
            assert len(stored.writes) == 3
        report = await one.log.verify()
        assert report.differences == []
    (count,) = await ask(store_url, "SELECT count(*) FROM events WHERE type = 'thread.checkpoint_saved'")
    assert int(count[0]) == 20


@ON_BOTH
async def test_unstorable_values_are_refused_and_nothing_recorded(sql: SQLStore) -> None:
    long = "x" * 513
    refused = [
        checkpoint(1, thread_id=long),
        checkpoint(1, thread_id=""),
        checkpoint(1, ns=long),
        checkpoint(1, metadata={"run_id": "a\x00"}),
        checkpoint(1, metadata={"at": object()}),
        checkpoint(1, values={long: ("msgpack", b"")}),
    ]
    for invalid in refused:
        with pytest.raises(Invalid):
            await sql.threads.save_checkpoint(invalid)
    with pytest.raises(TooLarge):
        await sql.threads.save_writes("t", [ThreadWrite("x", 0, long, ("msgpack", b""))], checkpoint_id="c")
    with pytest.raises(NotFound):
        await sql.threads.save_checkpoint(checkpoint(1), attempt_id="at-1")
    assert await types(sql) == []
