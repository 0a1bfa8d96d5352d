"""The tables that are not computed from the log, and whether a copy of a store contains their rows."""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson
from sqlalchemy import Table

from store.db.dialect import Changes, Dialect, ReadSession, Row, Sql, WriteSession
from store.db.queries import scan
from store.db.tables import core as core_tables
from store.runtime.urls import DEFAULT_PARTITION


class Treatment(NamedTuple):
    """Whether the rows of a table are copied."""

    is_copied: bool
    reason: str


_IN_DEFAULT: Final = "if both stores are the partition `default`, because other partitions do not use the table"

TREATMENTS: Final[dict[Table, Treatment]] = {
    core_tables.store_info: Treatment(False, "the copy is created with the same row"),
    core_tables.span_counters: Treatment(True, "numbers that were drawn without an event must not be drawn again"),
    core_tables.model_calls: Treatment(True, "a call that was recorded before the copy must not be counted again"),
    core_tables.attempt_signals: Treatment(True, "without its last heartbeat, an attempt would be ended too early"),
    core_tables.worker_signals: Treatment(True, "the last heartbeat and statistics of each worker"),
    core_tables.watch: Treatment(False, "a rebuild computes the rows from the log and the heartbeats"),
    core_tables.batches: Treatment(False, "only a writer of the source looks up a key, after a lost reply to COMMIT"),
    core_tables.idempotency: Treatment(True, "a repeated call must get the reply of the first call"),
    core_tables.queue_epoch: Treatment(False, "no process has read the queue of the copy yet"),
    core_tables.keys: Treatment(True, _IN_DEFAULT),
    core_tables.key_policy: Treatment(True, _IN_DEFAULT),
    core_tables.operation_runs: Treatment(
        False, "they describe operations on the source; the copy has its own verification"
    ),
    core_tables.saved_views: Treatment(True, "names that users gave to filters of pages"),
    core_tables.webhooks: Treatment(False, "the copy would send the same messages again; its owner adds webhooks"),
    core_tables.webhook_deliveries: Treatment(False, "they are messages of the source"),
    core_tables.verifications: Treatment(False, "`operation_runs` has replaced this table"),
}
"""All tables that are outside the log and are not computed from the log."""

_ACCESS: Final = (core_tables.keys, core_tables.key_policy)
PORTABLE: Final = tuple(
    table for table, treatment in TREATMENTS.items() if treatment.is_copied and table not in _ACCESS
)
"""The copied tables that an export of the log contains: all except API keys."""


def copied(source: Dialect, target: Dialect) -> list[Table]:
    """Return the tables whose rows are copied from one partition to another."""
    is_default = source.url.partition == target.url.partition == DEFAULT_PARTITION
    tables = [table for table, treatment in TREATMENTS.items() if treatment.is_copied]
    return [table for table in tables if is_default or table not in _ACCESS]


async def copy(session: ReadSession, writer: WriteSession) -> None:
    """Copy the rows of the tables that `copied` returns, and replace the rows that an earlier run copied.

    Args:
        session: a snapshot of the database that is copied.
        writer: a session that writes to the copy.
    """
    for table in copied(session.dialect, writer.dialect):
        await clear(writer, table)
        async for rows in scan.all_rows(session, table):
            await insert(writer, table, rows)


async def clear(writer: WriteSession, table: Table) -> None:
    """Delete all rows of a table beside the log, in a transaction of its own."""
    await writer.begin()
    await writer.fetch(Sql(f"DELETE FROM {writer.dialect.qualified(table)}", (), {}), {})  # noqa: S608 (a table's name)
    await writer.commit()


async def insert(writer: WriteSession, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows into a table beside the log, in a transaction of their own."""
    await writer.begin()
    await writer.write(Changes({table: list(rows)}, {}, {}))
    await writer.commit()


async def digest(session: ReadSession) -> str:
    """Return the SHA-256 of the rows of a copy that the hash chain does not cover and a rebuild does not compute."""
    copied_tables = (table for table, treatment in TREATMENTS.items() if treatment.is_copied)
    sha256 = hashlib.sha256()
    # The hash of a commit does not cover the columns `batch_key` and `writer`.
    for table in (core_tables.store_info, core_tables.commits, *copied_tables):
        sha256.update(f"{table.name}\n".encode())
        async for rows in scan.all_rows(session, table):
            encoded = (orjson.dumps(list(row), default=bytes.hex, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
            sha256.update(b"".join(encoded))
    return sha256.hexdigest()
