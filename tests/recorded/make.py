"""Write the recorded databases again: `python -m tests.recorded.make`.

They were written once, and the tests of this folder compare every later version with them. Write them again only for a
new kind of content, with a version whose log format is correct.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from store.db.url import parse, with_partition
from tests import postgres
from tests.client.served import Served
from tests.recorded import recording


async def main() -> int:
    """Write all files and return the exit code: 1 if the two databases differ."""
    recording.DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, postgres.PostgresServer.start() as server, Served() as served:
        sqlite = f"sqlite:///{Path(directory) / 'recorded.db'}"
        postgresql = postgres.with_partition(postgres.create_database(server.url), "default")
        facts, other_facts = [await recording.write(url) for url in (sqlite, postgresql)]
        if facts != other_facts:
            print("the histories differ between SQLite and Postgres; nothing is written", file=sys.stderr)
            return 1
        for url, file in (
            (sqlite, recording.SQLITE),
            (with_partition(sqlite, recording.SECOND), recording.SECOND_SQLITE),
        ):
            recording.pack(file, _content(url))
        recording.pack(recording.POSTGRES, recording.dumped(postgresql))
        recording.write_json(recording.FACTS, facts)
        for file, content in (await recording.read(sqlite, served, facts["end"])).items():
            recording.write_json(file, content)
    return 0


def _content(url: str) -> bytes:
    """Return the bytes of a partition's file, its write-ahead log included."""
    path = parse(url).path
    assert path is not None
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
