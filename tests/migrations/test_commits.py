"""Tests of revision 0014, which removes the unique index on `commits.batch_key` and changes no row."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from store import open_store
from tests import databases
from tests.migrations.test_alembic_commands import run

INI = str(Path(__file__).parents[2] / "alembic.ini")


async def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    database = await databases.connect(url)
    try:
        return await database.rows(query)
    finally:
        await database.close()


async def enqueue(url: str) -> None:
    """Make three commits."""
    async with await open_store(url) as store:
        for task in range(3):
            await store.enqueue_rollout(task)


async def assert_continues(url: str, before: list[tuple[Any, ...]]) -> None:
    """Assert that the next commit has the next id, and that the log is intact."""
    async with await open_store(url) as store:
        await store.enqueue_rollout("next")
        report = await store.log.verify()
        assert report.ok, report.differences
    after = await rows(url, "SELECT * FROM commits ORDER BY commit_id")
    assert after[:-1] == before
    assert after[-1][0] == before[-1][0] + 1


def test_a_downgrade_and_an_upgrade_keep_every_commit(durable_url: str) -> None:
    asyncio.run(enqueue(durable_url))
    before = asyncio.run(rows(durable_url, "SELECT * FROM commits ORDER BY commit_id"))
    assert len(before) == 3
    assert "FAILED" not in run(INI, durable_url, "downgrade", "0013")
    assert asyncio.run(rows(durable_url, "SELECT * FROM commits ORDER BY commit_id")) == before
    assert "FAILED" not in run(INI, durable_url, "upgrade", "head")
    assert asyncio.run(rows(durable_url, "SELECT * FROM commits ORDER BY commit_id")) == before
    asyncio.run(assert_continues(durable_url, before))


def test_an_upgrade_on_sqlite_keeps_the_sequence_of_commit_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    asyncio.run(enqueue(url))
    run(INI, url, "downgrade", "0013")
    asyncio.run(execute(url, "UPDATE sqlite_sequence SET seq = 40 WHERE name = 'commits'"))
    run(INI, url, "upgrade", "head")
    assert asyncio.run(rows(url, "SELECT name, seq FROM sqlite_sequence ORDER BY name")) == [
        ("commits", 40),
        ("events", 3),
    ]


def test_an_upgrade_of_sqlite_keeps_views_of_users(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    asyncio.run(enqueue(url))
    run(INI, url, "downgrade", "0013")
    asyncio.run(execute(url, "CREATE VIEW counts AS SELECT count(*) AS commits FROM commits"))
    assert "FAILED" not in run(INI, url, "upgrade", "head")
    assert asyncio.run(rows(url, "SELECT * FROM counts")) == [(3,)]


async def execute(url: str, statement: str) -> None:
    database = await databases.connect(url)
    await database.execute(statement)
    await database.close()
