"""The store under measurement, and processes that only write or only read one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from store.db.dialect import Changes, WriteSession, register
from store.db.drivers.sqlite import SQLite, SQLiteWriter
from store.journal import writer as group_commit
from store.models import Span
from store.opening import open_store
from store.sql_store import SQLStore
from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import Workload

_recorded: list[list[tuple[str, list[Any]]]] = []


class RecordingWriter(SQLiteWriter):
    """Keeps what it writes: each transaction's statements and their rows."""

    async def write(self, changes: Changes) -> None:
        families = (("delete", changes.deletes), ("insert", changes.inserts), ("upsert", changes.upserts))
        _recorded.append([
            (self._statement(verb, table), list(rows)) for verb, tables in families for table, rows in tables.items()
        ])
        await super().write(changes)


class RecordingSQLite(SQLite):
    """SQLite, its writer recorded."""

    async def writer(self) -> WriteSession:
        session = await super().writer()
        assert isinstance(session, SQLiteWriter)
        return RecordingWriter(session._dialect, session._connection)


class Rollbook:
    """Commands on the store that was opened last."""

    def __init__(self) -> None:
        self._store: Any = None
        self._work = Workload(None, Span)

    async def open(self, url: str, recorded: bool = False) -> None:
        await self.close()
        _recorded.clear()
        register("sqlite", RecordingSQLite if recorded else SQLite)
        self._store = await open_store(url)
        self._work = Workload(self._store, Span)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()
            self._store = None

    async def limit_batches(self, calls: int) -> None:
        """Set how many calls one commit may carry: with 1 there is no group commit."""
        group_commit.MAX_BATCH_CALLS = calls

    async def lifecycles(self, **arguments: Any) -> Any:
        return await self._counting_commits(self._work.lifecycles(**arguments))

    async def open_loop(self, **arguments: Any) -> Any:
        return await self._work.open_loop(**arguments)

    async def prepare_traces(self, **arguments: Any) -> Any:
        return await self._work.prepare_traces(**arguments)

    async def record_traces(self, **arguments: Any) -> Any:
        return await self._counting_commits(self._work.record_traces(**arguments))

    async def keep_rows(self, path: str, kept: int) -> list[int]:
        """Save what the last `kept` transactions wrote, and before them the rest as one; return their lengths."""
        Path(path).write_bytes(pickle.dumps((_recorded[:-kept], _recorded[-kept:])))
        return [len(transaction) for transaction in _recorded]

    async def transactions(self) -> int:
        return len(_recorded)

    async def _counting_commits(self, work: Any) -> Any:
        assert isinstance(self._store, SQLStore)
        before = self._store.writer_statistics
        calls, commits = before.calls, before.commits
        measured = await work
        after = self._store.writer_statistics
        return {**measured, "calls_per_commit": (after.calls - calls) / max(after.commits - commits, 1)}


if __name__ == "__main__":
    os.nice(0)
    rollbook = Rollbook()
    names = (
        "open", "close", "limit_batches", "lifecycles", "open_loop", "prepare_traces", "record_traces", "keep_rows",
        "transactions",
    )
    serve({name: getattr(rollbook, name) for name in names})
