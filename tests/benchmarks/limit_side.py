"""The limit of the driver: the same rows, statements and transactions on bare sqlite3, and nothing else."""

from __future__ import annotations

import os
import pickle
import sqlite3
import time
from pathlib import Path
from typing import Any

from store.db.drivers.sqlite import _connect  # pyright: ignore[reportPrivateUsage]
from store.db.schema import prepare_sqlite
from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import percentiles

Transactions = list[list[tuple[str, list[Any]]]]


async def fsync(directory: str, writes: int) -> dict[str, float]:
    """Append 4 KiB to a file and fdatasync it, again and again; how long each takes, in milliseconds."""
    path, block, taken = Path(directory) / "fsync", os.urandom(4096), list[float]()
    with path.open("wb", buffering=0) as file:
        for _ in range(writes):
            begun = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begun)
    path.unlink()
    return percentiles(taken)


async def sqlite_rows(path: str, rows: str, spans: int) -> dict[str, float]:
    """Write recorded rows to an empty store's tables, without the triggers that guard the log."""
    before, measured = pickle.loads(Path(rows).read_bytes())
    prepare_sqlite(Path(path), create=True, read_only=False)
    connection = _connect(Path(path), "FULL")
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    _replay(connection, before)
    begun, cpu = time.perf_counter(), time.process_time()
    _replay(connection, measured)
    took = time.perf_counter() - begun
    connection.close()
    return {"per_second": spans / took, "cpu_us": (time.process_time() - cpu) * 1e6 / spans}


def _replay(connection: sqlite3.Connection, transactions: Transactions) -> None:
    for transaction in transactions:
        connection.execute("BEGIN IMMEDIATE")
        for statement, rows in transaction:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")


async def commits(path: str, seconds: float) -> float:
    """Return the commits per second of one narrow row each."""
    connection = _connect(Path(path), "FULL")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT)")
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t (value) VALUES ('x')")
        connection.execute("COMMIT")
        count += 1
    connection.close()
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    serve({"fsync": fsync, "sqlite_rows": sqlite_rows, "commits": commits})
