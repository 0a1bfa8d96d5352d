"""Databases read the most frequent statements by the same plans as when these were recorded."""

from __future__ import annotations

import json

import pytest

from tests.db.query_plans import plans_of, snapshot, version_of


@pytest.mark.new_partition
async def test_frequent_statements_keep_their_plans(durable_url: str) -> None:
    recorded, version = json.loads(snapshot(durable_url).read_text()), await version_of(durable_url)
    if version != recorded["version"]:
        pytest.skip(f"the plans were recorded on version {recorded['version']}, not {version}")
    plans = await plans_of(durable_url)
    assert list(plans) == list(recorded["plans"])
    for call, statements in plans.items():
        assert statements == recorded["plans"][call], call
