"""Verification of a SQLite file in which a value has another type than its column.

SQLite accepts a value of any type in nearly every column. Each test changes the columns of one table, one value at a
time, so a run takes several seconds: there are about a thousand changes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Double, LargeBinary, Table, Text

from store import open_store
from store.db.schema import triggers
from store.db.tables.core import metadata
from store.errors import Corrupt
from store.interface.store import Store
from store.models import RebuildReport
from store.models.threads import ThreadCheckpoint, ThreadWrite
from store.testing import ManualClock
from tests.journal.given import fill
from tests.journal.given_runs import run

pytestmark = pytest.mark.slow

NOT_UTF8 = "CAST(X'FF41' AS TEXT)"
VALUES = {
    "text": ("'zz'", NOT_UTF8, "X'FF00'", "NULL"),
    "integer": ("9223372036854775807", "1.5", "'zz'", NOT_UTF8, "X''", "NULL"),
    "real": ("9223372036854775807", "'zz'", "X'FF00'", "NULL"),
    "blob": ("9223372036854775807", "1.5", "'zz'", "X'FF00'", "NULL"),
}
"""SQL literals of every storage class, by the class of a column. A column of text converts numbers to text."""

CHECKS = {"span_counters": "counters"}
"""The names of checks that differ from the names of their tables."""


async def _fill(url: str) -> None:
    clock = ManualClock()
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        first = await fill(store, clock)
        await run(store)
        await store.annotations.annotate(first.rollout_id, "odd", add_labels=["new"])
        await store.get_next_span_sequence_id(first.rollout_id, "any")
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, last_heartbeat_time=clock.seconds)
        typed = ("json", b"{}")
        saved = ThreadCheckpoint("thread", "", "c1", None, typed, {"channel": typed}, {"source": "loop", "step": 1})
        await store.threads.save_checkpoint(saved)
        await store.threads.save_writes("thread", [ThreadWrite("task", 0, "channel", typed)], checkpoint_id="c1")


INSERTED = (
    "INSERT INTO batches VALUES ('batch', 5)",
    "INSERT INTO idempotency VALUES ('key', 'scope', X'00', 1, '{}', 5)",
    "INSERT INTO keys VALUES ('id', X'00', 'admin', NULL, 'name', 5, 6, 7, 8)",
    "INSERT INTO key_policy VALUES (1, 5)",
    "INSERT INTO model_calls VALUES ('ro-unknown', 'a', 'r-1', 1, 2)",
    "INSERT INTO operation_runs VALUES ('verify', 'host:1', 9, 5, 1, 0, 7, 'error', 5, 6, 1, 0, '0.1.0', 'detail')",
    "INSERT INTO verifications VALUES (1, 5, 6, 0)",
    "INSERT INTO worker_signals (worker_id, last_heartbeat_at) VALUES ('w9', 5)",
    "INSERT INTO attempt_signals VALUES ('ro-unknown', 'a', 5.0, 5)",
    "INSERT OR IGNORE INTO watch VALUES ('ro-unknown', 5)",
    "INSERT INTO dropped VALUES (1, 2)",
    "INSERT INTO dictionaries VALUES (16, 'span.recorded', X'00', 5, X'', X'')",
)
"""Rows for the tables that stay empty otherwise."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with at least one row in every table, and without the triggers that protect the log."""
    path = tmp_path_factory.mktemp("types") / "pristine.db"
    asyncio.run(_fill(f"sqlite:///{path}"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in triggers.trigger_names("sqlite"):
            connection.execute(f"DROP TRIGGER {name}")
        for statement in INSERTED:
            connection.execute(statement)
    return path


class Edited:
    """A copy of the file, which is restored before each edit."""

    def __init__(self, pristine: Path, path: Path, store: Store) -> None:
        self._pristine = pristine
        self._path = path
        self.store = store

    def edit(self, column: Column[Any], value: str) -> str | None:
        """Set a column of the first row to a value, and return its storage class; None if SQLite refuses the value."""
        table = column.table
        with (
            closing(sqlite3.connect(self._pristine)) as source,
            closing(sqlite3.connect(self._path, isolation_level=None)) as connection,
        ):
            source.backup(connection)
            connection.execute("PRAGMA synchronous = OFF")
            key = ", ".join(part.name for part in table.primary_key)
            first = f"({key}) = (SELECT {key} FROM {table.name} ORDER BY {column.name} IS NULL, {key} LIMIT 1)"
            try:
                sql = f"UPDATE {table.name} SET {column.name} = {value} WHERE {first} RETURNING typeof({column.name})"
                ((class_,),) = connection.execute(sql).fetchall()
            except sqlite3.IntegrityError:
                return None
            return class_


@pytest.fixture
def copied(pristine: Path, tmp_path: Path) -> Path:
    path = tmp_path / "edited.db"
    path.write_bytes(pristine.read_bytes())
    return path


@pytest.fixture
async def edited(pristine: Path, copied: Path) -> AsyncIterator[Edited]:
    async with await open_store(f"sqlite:///{copied}", clock=ManualClock()) as store:
        yield Edited(pristine, copied, store)


def wrong_values(table: Table) -> Iterator[tuple[Column[Any], str]]:
    for column in table.columns:
        for value in VALUES[class_of(column)]:
            yield column, value


def class_of(column: Column[Any]) -> str:
    for type_, class_ in ((Text, "text"), (LargeBinary, "blob"), (Double, "real")):
        if isinstance(column.type, type_):
            return class_
    return "integer"


def is_wrong(column: Column[Any], value: str, class_: str) -> bool:
    return class_ not in {class_of(column), "null"} or (value == NOT_UTF8 and class_ == "text")


@pytest.mark.parametrize("table", metadata.tables)
async def test_a_value_of_another_type_is_named_and_hides_nothing_else(edited: Edited, table: str) -> None:
    check = CHECKS.get(table, table)
    count = 0
    for column, value in wrong_values(metadata.tables[table]):
        class_ = edited.edit(column, value)
        if class_ is None:
            continue
        report = await edited.store.log.verify()
        where = f"{table}.{column.name} = {value}"
        assert {each.check for each in report.differences} >= {"guards"}, where
        if is_wrong(column, value, class_):
            count += 1
            named = [each for each in report.differences if (each.check, each.field) == (check, column.name)]
            assert [each.expected for each in named if str(each.found).startswith(class_)], where
    assert count >= len(metadata.tables[table].columns) - 1


@pytest.mark.parametrize("table", metadata.tables)
async def test_a_rebuild_repairs_a_value_of_another_type_or_raises_a_typed_error(edited: Edited, table: str) -> None:
    family = metadata.tables[table].info["family"]
    for column, value in wrong_values(metadata.tables[table]):
        if value not in ({"'zz'"} if class_of(column) == "blob" else {"X''", "X'FF00'"}):
            continue
        class_ = edited.edit(column, value)
        if class_ is None or not is_wrong(column, value, class_):
            continue
        report = await _rebuilt(edited.store)
        where = f"{table}.{column.name} = {value}"
        if report is None:
            assert family == "log", where
        elif family == "projection":
            assert report.written[table], where
            left = await edited.store.log.verify()
            assert {each.check for each in left.differences} == {"guards", "dropped"}, where


async def _rebuilt(store: Store) -> RebuildReport | None:
    """Return the report of a rebuild; None if the rebuild refuses to repair the tables from a damaged log."""
    try:
        return await store.log.rebuild()
    except Corrupt:
        return None
