"""After the upgrade of an older store, each new call of a model is counted once."""

from __future__ import annotations

from pathlib import Path

from store import open_store
from store.db.schema import migrate
from store.testing import ManualClock
from store.testing.samples import make_span
from tests import databases
from tests.alembic_check import migrate_from_scratch
from tests.migrations.test_runs import copy_log

_BEFORE = "0009"
_CALL = {"gen_ai.response.id": "chatcmpl-1", "gen_ai.usage.input_tokens": 30, "gen_ai.usage.output_tokens": 7}
_MORE = _CALL | {"gen_ai.usage.output_tokens": 9}


async def test_an_upgraded_store_knows_the_calls_of_its_spans(
    isolated_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    filled_url = f"sqlite:///{tmp_path / 'filled.db'}"
    async with await open_store(filled_url, clock=clock, scan_debounce_seconds=0) as store:
        attempt = (await store.start_rollout("task")).attempt
        await store.add_span(make_span(attempt, 1, attributes=_CALL))
        await store.add_span(make_span(attempt, 2))
    await migrate_from_scratch(isolated_url, _BEFORE)
    source, target = await databases.connect(filled_url), await databases.connect(isolated_url)
    await copy_log(source, target, later={})
    if target.kind == "postgresql":
        ((last, commits),) = await target.rows("SELECT max(position), max(commit_id) FROM events")
        await target.execute(f"SELECT setval('event_seq', {last}), setval('commit_seq', {commits})")
    await source.close()
    await migrate(isolated_url)
    async with await open_store(isolated_url, clock=clock, scan_debounce_seconds=0) as store:
        await store.add_span(make_span(attempt, 3, attributes=_MORE))
        assert (await store.log.history(attempt.rollout_id))[-1].data["counted_before"] == [30, 7]
        assert await target.rows("SELECT tokens_in, tokens_out FROM rollouts") == [(30, 9)]
        assert (await store.log.verify()).differences == []
    await target.close()
