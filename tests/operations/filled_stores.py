"""Stores to copy, and comparison of two stores."""

from __future__ import annotations

from typing import Any

from store import open_store
from store.db.tables import core as core_tables
from store.db.url import parse
from store.domain.events import BodyDropped
from store.models import VerifyReport
from store.operations.beside_log import TREATMENTS
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests import databases
from tests.journal import database_helpers, sample_run
from tests.journal.test_idempotency import under
from tests.threads.langgraph_samples import checkpoint, write
from tests.verification.filled import record

KEYED = "a call under a key"
COPIED = [table for table, treatment in TREATMENTS.items() if treatment.is_copied]


async def fill(url: str) -> None:
    """Make a store with every kind of object. On Postgres, its log also has gaps."""
    clock = ManualClock()
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        assert isinstance(store, SQLStore)
        first = await database_helpers.fill(store, clock)
        await sample_run.run(store)
        for number in range(3):
            values = {"said": ("msgpack", b"long " * 1000), "short": ("msgpack", b"short")}
            await store.threads.save_checkpoint(checkpoint(number, "t", values=values))
            await store.threads.save_writes("t", [write(0)], checkpoint_id=f"cp-{number:04}")
        await store.annotations.annotate(first.rollout_id, "look at this again", add_labels=["good"])
        await store.update_worker("w1", {"load": 0.5})
        await store.get_next_span_sequence_id("a rollout that does not exist", "x")
        released = await database_helpers.claimed(store, "w3")
        await store.queue.release_claims([released])
        if parse(url).scheme == "postgresql":
            await database_helpers.run_sql(
                url, "SELECT nextval('event_seq'), nextval('event_seq'), nextval('commit_seq')"
            )
        await keyed(store)
    await drop(url, 1)


async def keyed(store: Any) -> Any:
    """Make a call with an idempotency key; a repetition returns the same reply."""
    with under(KEYED):
        return await store.enqueue_rollout("once", metadata={"k": [1, 2.5]})


async def drop(url: str, position: int) -> int:
    """Drop the body of an event, by an order in the log, and return the position of the order."""
    ordered = await record(url, None, BodyDropped(position=position, policy="a test"))
    await database_helpers.run_sql(
        url, f"INSERT INTO dropped VALUES ({position}, {ordered})", f"DELETE FROM bodies WHERE position = {position}"
    )
    return ordered


async def verified(url: str) -> VerifyReport:
    """Return what verify says of a store that is sound."""
    async with await open_store(url, create=False, read_only=True) as store:
        report = await store.log.verify()
    assert report.differences == []
    return report


async def content(url: str, *tables: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of some tables, of the log and the copied ones if none is named."""
    database = await databases.connect(url)
    try:
        return {
            table.name: sorted(
                await database.rows(f"SELECT {', '.join(column.name for column in table.columns)} FROM {table.name}"),
                key=repr,
            )
            for table in tables or (*core_tables.LOG, *COPIED)
        }
    finally:
        await database.close()


async def assert_equal(source: str, target: str) -> VerifyReport:
    """Demand that one store is a copy of the other."""
    of_source, of_target = await verified(source), await verified(target)
    left_out = {"seconds"}
    assert of_source.model_dump(exclude=left_out) == of_target.model_dump(exclude=left_out)
    assert await content(source) == await content(target)
    return of_target
