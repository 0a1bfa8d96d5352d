"""The store of the state machine: one database, emptied for each example."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

from store import open_store
from store.db.dialect import ReadSession, WriteSession
from store.db.queries import log as log_queries
from store.db.queries import scan
from store.db.tables import core as core_tables
from store.db.url import parse
from store.models import RebuildReport, VerifyReport
from store.runtime import ids
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.verification.state_hash import StateHash, cuts_in
from tests import databases
from tests.databases import prepare

_STREAM, _TYPE, _ACTOR, _DATA = 2, 5, 8, 10
Call = Callable[[Any], Awaitable[Any]]
"""A call of a store, be it one that only the store itself makes."""


class Backend:
    """One database under two stores, as two processes would have them, and what the machine asks beside their methods.

    Attributes:
        turn: which of the stores takes the next call.
        swept: whether the watchdog was sent during the last call.
        events: the rows of the log that were read so far.
    """

    def __init__(self, name: str, url: str, clock: ManualClock, seed: int) -> None:
        self.name = name
        self.url = url
        self._clock = clock
        # Every backend throws the same dice, so that ids can be compared as they are.
        self._dice = random.Random(seed)
        self._rising = ids.Rising(lambda: 0)
        self._stores: list[SQLStore] = []
        self.turn = 0
        self.swept = False
        self.events: list[tuple[Any, ...]] = []

    async def open(self) -> None:
        """Open the stores; they sweep whenever they are asked."""
        self._stores = [await self._open(), await self._open()]

    async def _open(self) -> SQLStore:
        opened: Any = await open_store(self.url, clock=self._clock, scan_debounce_seconds=0)
        assert isinstance(opened, SQLStore)
        watchdog = opened.core.watchdog
        sweep = watchdog.sweep

        async def recorded() -> int:
            self.swept = True
            return await sweep()

        watchdog.sweep = recorded
        return opened

    async def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            await store.close()

    @property
    def store(self) -> SQLStore:
        """The store whose turn it is."""
        return self._stores[self.turn]

    @property
    def _inside(self) -> Any:
        return self.store

    async def call(self, call: Call) -> Any:
        """Return the answer to a call, or its refusal."""
        self.swept = False
        with self._new_dice():
            return await _answer(call(self.store))

    async def call_in_one_commit(self, calls: Sequence[Call]) -> list[Any]:
        """Return the answers to calls that wait in the inbox together, in this order."""
        answers: list[asyncio.Task[Any]] = []
        writer = self._inside.core.writer
        with self._new_dice():
            async with self._held(), self._undisturbed():
                for number, call in enumerate(calls, 1):
                    answers.append(asyncio.create_task(_answer(call(self.store))))
                    while writer.waiting < number and not answers[-1].done():  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0)
                    assert writer.waiting == number, answers[-1]
                commits = writer.statistics.commits
            answered = await asyncio.gather(*answers)
        assert writer.statistics.commits <= commits + 1
        return answered

    async def call_one_by_one(self, calls: Sequence[Call]) -> list[Any]:
        """Return the answers to calls that are made one after the other, without a look of the watchdog between."""
        with self._new_dice():
            async with self._undisturbed():
                return [await _answer(call(self.store)) for call in calls]

    @asynccontextmanager
    async def _held(self) -> AsyncGenerator[None]:
        """Keep the writer from taking anything."""
        home = self._inside.core.thread
        taken, go_on = asyncio.Event(), asyncio.Event()
        is_held = asyncio.Event()
        here = asyncio.get_running_loop()

        async def wait(_: WriteSession) -> None:
            here.call_soon_threadsafe(is_held.set)
            taken.set()
            await go_on.wait()

        job = asyncio.create_task(home.run(self._inside.core.writer.run_job(wait)))
        await is_held.wait()
        try:
            yield
        finally:
            home.loop.call_soon_threadsafe(go_on.set)
            await job

    @asynccontextmanager
    async def _undisturbed(self) -> AsyncGenerator[None]:
        """Let no call look for overdue attempts first."""
        store = self._inside
        watchdog = store.core.watchdog
        before, watchdog.debounce_seconds, watchdog.swept_at = watchdog.debounce_seconds, float("inf"), 0.0
        try:
            yield
        finally:
            watchdog.debounce_seconds = before

    def _new_dice(self) -> _Dice:
        return _Dice(self._dice, self._rising)

    async def read(self, call: Call) -> Any:
        """Return the answer to a call that reads, without a look of the watchdog."""
        async with self._undisturbed():
            return await _answer(call(self.store))

    async def verify(self) -> VerifyReport:
        """Hold the tables against the log."""
        return await self.store.log.verify()

    async def rebuild(self) -> RebuildReport:
        """Fold the log anew."""
        return await self.store.log.rebuild()

    async def news(self) -> list[tuple[Any, ...]]:
        """Read the rows of the log that were written since this was last asked."""
        new = await self._unseen()
        self.events += new
        return new

    async def judged(self) -> list[tuple[str, str | None]]:
        """Return the rollouts whose attempt the watchdog ended since the last `news`, and the attempt's new status.

        The status is None if it did not change.
        """
        verdicts: list[tuple[str, str | None]] = []
        status: str | None = None
        for row in await self._unseen():
            if row[_ACTOR] == "watchdog" and row[_TYPE] == "attempt.status_changed":
                status = json.loads(row[_DATA])["to"]
            elif row[_ACTOR] == "watchdog" and row[_TYPE] == "rollout.status_changed":
                verdicts.append((row[_STREAM].partition("/")[2], status))
                status = None
        return verdicts

    async def _unseen(self) -> list[tuple[Any, ...]]:
        after = self.events[-1][0] if self.events else 0

        async def read(session: ReadSession) -> Sequence[Any]:
            return await log_queries.events(session, after=after)

        rows = await self._inside.core.read(read, snapshot=False)
        return [tuple(row) for row in rows]

    async def counters(self) -> dict[str, tuple[int, int]]:
        """Read the span counters: the last number of each rollout and the last reserved one."""
        return {row[0]: (row[1], row[2] or 0) for row in await self._all_rows(core_tables.span_counters)}

    async def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Read every projection, as column to value."""
        return {
            table.name: [
                {column.name: value for column, value in zip(table.columns, row, strict=True)}
                for row in await self._all_rows(table)
            ]
            for table in core_tables.PROJECTIONS
        }

    async def _all_rows(self, table: Any) -> list[Any]:
        async def read(session: ReadSession) -> list[Any]:
            return [row async for rows in scan.all_rows(session, table) for row in rows]

        return await self._inside.core.read(read, snapshot=True)


class _Dice:
    """While entered, fresh ids come from these dice."""

    def __init__(self, dice: random.Random, rising: ids.Rising) -> None:
        self._dice = dice
        self._rising = rising

    def __enter__(self) -> Self:
        self._before = ids.os, ids.rising
        ids.rising = self._rising
        setattr(ids, "os", SimpleNamespace(urandom=self._dice.randbytes))  # noqa: B010 - a stand-in is no module
        return self

    def __exit__(self, *_: object) -> None:
        ids.os, ids.rising = self._before


def state_hash_of(state: dict[str, list[dict[str, Any]]]) -> str:
    """Return the state hash of rows that no database has seen; what lies in no column is null, places among it."""
    digest = StateHash(cuts_in([row["rollout_id"] for row in state["rollouts"]]))
    for table in core_tables.PROJECTIONS:
        rows = [tuple(row.get(column.name) for column in table.columns) for row in state[table.name]]
        digest.update(table, rows)
    return digest.hexdigest()


async def _answer(call: Awaitable[Any]) -> Any:
    try:
        return plain(await call)
    except Exception as refused:  # noqa: BLE001 - a refusal of any kind is an answer to be compared
        return refused


def plain(value: Any) -> Any:
    """Return models as the JSON they stand for."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(warnings=False))
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        # The model has no rewards. The contract tests compare them.
        unknown = {"reward", "rewards"} if {"reward", "rewards"} <= fields.keys() else set[str]()
        return {key: plain(item) for key, item in fields.items() if key not in unknown}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


class SQLiteFiles:
    """One file after the other, each a copy of an empty one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._used = 0

    async def empty(self) -> str:
        """Return the URL of an empty store."""
        template = self._directory / "empty.db"
        if not template.exists():
            await prepare(f"sqlite:///{template}")
        for old in self._directory.glob("run*"):
            old.unlink()
        self._used += 1
        path = self._directory / f"run{self._used}.db"
        shutil.copy(template, path)
        return f"sqlite:///{path}"


class PostgresPartition:
    """One partition, emptied again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_made = False

    async def empty(self) -> str:
        """Return the URL of an empty store."""
        if not self._is_made:
            await prepare(self._url)
            self._is_made = True
            return self._url
        emptied = [
            table
            for table in core_tables.LOG + core_tables.PROJECTIONS + core_tables.SIGNALS
            if table is not core_tables.queue_epoch
        ]
        database = await databases.connect(self._url)
        try:
            guards = await database.rows(
                "SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
                " WHERE NOT t.tgisinternal AND c.relnamespace = $1::regnamespace",
                f"rollbook_{parse(self._url).partition}",
            )
            # The log refuses to be emptied; verify sees to it that its guards are all there again.
            await database.execute(
                "".join(f"ALTER TABLE {table} DISABLE TRIGGER {name};" for table, name in guards)
                + f"TRUNCATE {', '.join(table.name for table in emptied)};"
                "ALTER SEQUENCE event_seq RESTART; ALTER SEQUENCE commit_seq RESTART;"
                + "".join(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name};" for table, name in guards)
            )
        finally:
            await database.close()
        return self._url
