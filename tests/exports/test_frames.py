"""Tables in memory, for async and for blocking stores."""

from __future__ import annotations

from typing import Any

import pytest

from store import open_sync
from store.errors import Invalid
from store.exports import to_arrow, to_pandas, to_polars
from store.interface.store import Store
from store.models.queries import RolloutQuery


async def test_a_table_in_memory_has_the_rows_of_an_export(store: Store) -> None:
    pytest.importorskip("pyarrow")
    table = await to_arrow(store, "rollouts", RolloutQuery(mode_in=["val"]), redact=["input"])
    assert table.column("mode").to_pylist() == ["val", "val"]
    assert table.column("input").null_count == 2
    past = await to_arrow(store, "attempts", RolloutQuery(as_at=0))
    assert (past.num_rows, past.schema.names[:2]) == (0, ["rollout_id", "attempt_id"])
    with pytest.raises(Invalid, match="'rollout' is not a table"):
        await to_arrow(store, "rollout")


def test_a_blocking_store_returns_frames_directly(sqlite_url: str) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    with open_sync(sqlite_url, read_only=True) as store:
        rewards: Any = to_pandas(store, "rewards")
        assert rewards[rewards.is_primary & rewards.reward_version.isna()].value.sum() == 3
        assert to_polars(store, "spans")["start_time"].dtype.time_zone == "UTC"


async def test_a_missing_package_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(Invalid, match="pandas: is not installed; run pip install pandas"):
        await to_pandas(store, "rewards")
