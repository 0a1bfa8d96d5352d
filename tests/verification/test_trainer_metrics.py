"""Metrics of trainers are compared with the log, and repaired from it."""

from __future__ import annotations

import math

from store.sql.store import SQLStore
from tests.journal.database_helpers import contents, run_sql


async def test_wrong_metrics_are_repaired(store: SQLStore) -> None:
    url = store.url
    await store.start_rollout({"n": 1})
    for step in range(3):
        await store.log_metrics(step, {"loss": 1e-7 * step, "kl": math.nan})
    before = await contents(url, ["metrics"])
    report = await store.log.verify()
    assert (report.differences, report.rows["metrics"]) == ([], 6)
    await run_sql(url, "DELETE FROM metrics WHERE step = 0")
    await run_sql(url, "UPDATE metrics SET value = 5 WHERE step = 1")
    await run_sql(url, "INSERT INTO metrics (name, step, position, value) VALUES ('new', 7, 1, 1.0)")
    wrong = await store.log.verify()
    assert {difference.check for difference in wrong.differences} == {"metrics"}
    assert wrong.state_hash != report.state_hash
    assert (await store.log.rebuild()).written == {"metrics": 5}
    assert await contents(url, ["metrics"]) == before
    assert (await store.log.verify()).state_hash == report.state_hash
    await run_sql(url, "UPDATE metrics SET mark = NULL WHERE step = 0")
    assert (await store.log.rebuild()).written == {"metrics": 1}


async def test_metrics_without_any_event_are_removed(store: SQLStore) -> None:
    await store.start_rollout({"n": 1})
    await run_sql(store.url, "INSERT INTO metrics (name, step, position, value) VALUES ('new', 7, 1, 1.0)")
    assert (await store.log.rebuild()).written == {"metrics": 1}
    assert (await store.log.verify()).differences == []
