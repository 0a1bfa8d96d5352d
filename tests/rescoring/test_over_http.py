"""A rescoring needs only the interface of a store, so it also works with a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from store import open_store, rescore
from tests.client.served import Served
from tests.rescoring.conftest import add_rollouts


@pytest.mark.http
async def test_rollouts_behind_a_server_are_scored(tmp_path: Path) -> None:
    with Served() as server:
        async with await open_store(f"sqlite:///{tmp_path / 'rollbook.db'}") as store:
            await add_rollouts(store, range(4))
            with server.serving(store) as url:
                report = await rescore(url, "tests.rescoring.rewards:helpful@v1", processes=1)
            assert (report.scored, report.failed) == (4, 0)
            rollouts = await store.query_rollouts(reward_version="helpful@v1", sort_by="reward")
            assert [rollout.reward for rollout in rollouts] == [-2.0, -1.0, 0.0, 1.0]
