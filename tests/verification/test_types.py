"""Verification of a SQLite file in which a value has another type than its column.

SQLite accepts a value of any type in nearly every column, so there are about a thousand changes. A verification takes a
tenth of a second, however much is damaged. Therefore each round makes one change in each table, and tries every other
value of a column. Some changes are also tested alone; with ROLLBOOK_TORTURE=1, all of them.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Double, LargeBinary, Table, Text

from store import open_store
from store.db.schema import triggers
from store.db.tables.core import metadata
from store.errors import Corrupt
from store.interface.store import Store
from store.models import NewScore, ScoreError
from store.models.scanners import NewScan, NewScanner
from store.models.threads import ThreadCheckpoint, ThreadWrite
from store.testing import ManualClock
from tests.journal.database_helpers import fill
from tests.journal.sample_run import run
from tests.torture import IS_TORTURE

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
        ids: dict[str, Any] = {"rollout_id": first.rollout_id, "attempt_id": first.attempt.attempt_id}
        error = ScoreError(type="ValueError", message="no answer")
        await store.annotations.record_scores([NewScore(**ids, name="a", version="v1", error=error, code_sha256="ab")])
        await store.annotations.record_scores([NewScore(**ids, name="a", version="v1", value=1, dimensions={"b": 2})])
        definition: dict[str, Any] = {"query": "loop"}
        await store.scanners.add(NewScanner(name="a", version="v1", kind="search", definition=definition))
        await store.scanners.record("a", "v1", [NewScan(**ids, is_match=True)])
        await store.log_metrics(1, {"loss": 0.5})
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
    "INSERT INTO webhooks VALUES ('id', 'https://example.org', 'whsec_', '{}', '{}', 5)",
    "INSERT INTO webhook_deliveries VALUES ('id', 'id', 'type', '{}', 5, 'failed', 1, 6, 'host:1', 7, 500, 'error')",
    "INSERT INTO operation_runs VALUES ('verify', 'host:1', 9, 5, 1, 0, 7, 'error', 5, 6, 1, 0, '0.1.0', 'detail')",
    "INSERT INTO saved_views VALUES ('rollouts', 'name', 'status=failed', 'dashboard', 5)",
    "INSERT INTO verifications VALUES (1, 5, 6, 0)",
    "INSERT INTO worker_signals (worker_id, last_heartbeat_at) VALUES ('w9', 5)",
    "INSERT INTO attempt_signals VALUES ('ro-unknown', 'a', 5.0, 5)",
    "INSERT OR IGNORE INTO watch VALUES ('ro-unknown', 5)",
    "INSERT INTO dropped VALUES (1, 2)",
    "INSERT INTO data_blocks VALUES (1, 1, X'00')",
    "INSERT INTO dictionaries VALUES (16, 'span.recorded', zeroblob(32), 5, X'', X'')",
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


@dataclass(frozen=True)
class Damage:
    """A value that replaces the value of a column in the first row of its table."""

    column: Column[Any]
    value: str

    @property
    def table(self) -> Table:
        return self.column.table

    @property
    def family(self) -> str:
        """The kind of its table."""
        return str(self.table.info["family"])

    @property
    def check(self) -> str:
        """The name of the check that reports it."""
        return CHECKS.get(self.table.name, self.table.name)

    def is_wrong(self, class_: str) -> bool:
        """Whether the value has the wrong type, stored with this storage class."""
        expected = class_of(self.column)
        return class_ not in {expected, "null"} or (self.value == NOT_UTF8 and class_ == "text")

    def __str__(self) -> str:
        return f"{self.table.name}.{self.column.name} = {self.value}"


class Edited:
    """A copy of the file, which is restored before each edit."""

    def __init__(self, pristine: Path, path: Path, store: Store) -> None:
        self._pristine = pristine
        self._path = path
        self.store = store

    def edit(self, damages: Sequence[Damage]) -> dict[Damage, str]:
        """Make damages, at most one for each table; return the storage class of each damage that SQLite accepts."""
        values_before: dict[Damage, str] = {}
        with (
            closing(sqlite3.connect(self._pristine)) as source,
            closing(sqlite3.connect(self._path, isolation_level=None)) as connection,
        ):
            source.backup(connection)
            connection.execute("PRAGMA synchronous = OFF")
            for damage in damages:
                table, column = damage.table.name, damage.column.name
                key = ", ".join(part.name for part in damage.table.primary_key)
                first = f"({key}) = (SELECT {key} FROM {table} ORDER BY {column} IS NULL, {key} LIMIT 1)"
                sql = f"UPDATE {table} SET {column} = {damage.value} WHERE {first} RETURNING typeof({column})"
                try:
                    ((values_before[damage],),) = connection.execute(sql).fetchall()
                except sqlite3.IntegrityError:
                    continue
        return values_before


@pytest.fixture
async def edited(pristine: Path, tmp_path: Path) -> AsyncIterator[Edited]:
    path = tmp_path / "edited.db"
    shutil.copy(pristine, path)
    async with await open_store(f"sqlite:///{path}", clock=ManualClock()) as store:
        yield Edited(pristine, path, store)


def damages_of(table: Table) -> Iterator[Damage]:
    for column in table.columns:
        for value in VALUES[class_of(column)]:
            yield Damage(column, value)


def half_of(damages: Iterator[Damage]) -> Iterator[Damage]:
    """Yield every other value of each column, the others of the next one; all of them in torture."""
    for number, (_, of_column) in enumerate(groupby(damages, lambda damage: damage.column.name)):
        yield from of_column if IS_TORTURE else islice(of_column, number % 2, None, 2)


def unreadable(damages: Iterable[Damage]) -> Iterator[Damage]:
    """Yield a damage for each column: a text in a column of bytes, and bytes in other columns."""
    for damage in damages:
        if damage.value in ({"'zz'"} if class_of(damage.column) == "blob" else {"X''", "X'FF00'"}):
            yield damage


def class_of(column: Column[Any]) -> str:
    for type_, class_ in ((Text, "text"), (LargeBinary, "blob"), (Double, "real")):
        if isinstance(column.type, type_):
            return class_
    return "integer"


def side_by_side(iterators: Iterable[Iterator[Damage]]) -> list[list[Damage]]:
    """Return rounds with at most one damage of each table."""
    return [[damage for damage in round_ if damage is not None] for round_ in zip_longest(*iterators)]


def some(tables: Iterable[str], *chosen: str) -> list[Any]:
    """Return all tables as parameters, of which only the chosen ones run outside of torture."""
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.torture_only) for name in tables]


LOG = [table.name for table in metadata.tables.values() if table.info["family"] == "log"]


async def verified(edited: Edited, damages: Sequence[Damage]) -> list[Damage]:
    """Make the damages, require that verification names those of a wrong type, and return these."""
    classes = edited.edit(damages)
    if not classes:
        return []
    report = await edited.store.log.verify()
    where = ", ".join(map(str, classes))
    assert {difference.check for difference in report.differences} >= {"guards"}, where
    wrong = [damage for damage, class_ in classes.items() if damage.is_wrong(class_)]
    for damage in wrong:
        named = [
            difference
            for difference in report.differences
            if (difference.check, difference.field) == (damage.check, damage.column.name)
        ]
        assert [difference.expected for difference in named if str(difference.found).startswith(classes[damage])], (
            f"{damage} of {where}"
        )
    return wrong


async def rebuilt(edited: Edited, damages: Sequence[Damage]) -> None:
    """Make the damages, and require that a rebuild repairs those of a wrong type, or raises `Corrupt`."""
    classes = edited.edit(damages)
    wrong = [damage for damage, class_ in classes.items() if damage.is_wrong(class_)]
    where = ", ".join(map(str, wrong))
    families = {damage.family for damage in wrong}
    if not wrong:
        return
    try:
        report = await edited.store.log.rebuild()
    except Corrupt:
        # A rebuild does not repair tables from a damaged log.
        assert families == {"log"}, where
        return
    if families == {"projection"}:
        assert report.written.keys() >= {damage.table.name for damage in wrong}, where
        left = await edited.store.log.verify()
        assert {difference.check for difference in left.differences} == {"guards", "data_blocks", "dropped"}, where


# A report shows at most 20 such values, and there are 38 tables.
@pytest.mark.torture
@pytest.mark.parametrize("are_projections", [False, True])
async def test_many_values_of_another_type_are_named_and_hide_nothing_else(
    edited: Edited, *, are_projections: bool
) -> None:
    tables = [table for table in metadata.tables.values() if (table.info["family"] == "projection") == are_projections]
    count = Counter[str]()
    for damages in side_by_side(half_of(damages_of(table)) for table in tables):
        count.update(damage.table.name for damage in await verified(edited, damages))
    for table in tables:
        assert count[table.name] >= len(table.columns) - 1, table.name


@pytest.mark.torture
@pytest.mark.parametrize(
    "table", some(metadata.tables, "events", "rollouts", "keys", "watch", "store_info", "verifications")
)
async def test_a_value_of_another_type_is_named_and_hides_nothing_else(edited: Edited, table: str) -> None:
    # SQLite refuses other types in some keys, which come first.
    columns = list(metadata.tables[table].columns)[:: -1 if IS_TORTURE else -3]
    count = 0
    for number, column in enumerate(columns):
        values = VALUES[class_of(column)]
        # One value of a wrong type for each column. The first value to try changes from column to column.
        turn = number % len(values)
        for value in (*values[turn:], *values[:turn]):
            wrong = await verified(edited, [Damage(column, value)])
            count += len(wrong)
            if wrong and not IS_TORTURE:
                break
    assert count >= max(1, len(columns) - 1)


@pytest.mark.parametrize("family", ["projection", "signal", "store", "access", "report"])
async def test_a_rebuild_repairs_many_values_of_another_type(edited: Edited, family: str) -> None:
    tables = [table for table in metadata.tables.values() if table.info["family"] == family]
    step = 1 if IS_TORTURE else 2
    for damages in side_by_side(
        islice(unreadable(damages_of(table)), number % step, None, step) for number, table in enumerate(tables)
    ):
        await rebuilt(edited, damages)


@pytest.mark.torture
@pytest.mark.parametrize("table", some(metadata.tables, *LOG, "attempts"))
async def test_a_rebuild_repairs_a_value_of_another_type_or_raises_a_typed_error(edited: Edited, table: str) -> None:
    # The test before this one tries no table of the log, since a rebuild stops at the first value there.
    is_complete = IS_TORTURE or metadata.tables[table].info["family"] == "log"
    for damage in islice(unreadable(damages_of(metadata.tables[table])), 0, None, 1 if is_complete else 5):
        await rebuilt(edited, [damage])
