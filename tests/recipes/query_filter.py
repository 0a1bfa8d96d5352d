"""A filter of a query: rollouts by mode."""

from tests.recipes.scratch import Recipe, Scratch


def _apply(scratch: Scratch) -> None:
    scratch.insert(
        "store/models/queries.py",
        "    rollout_id_in: list[str] | None = None\n",
        "    mode_in: list[RolloutMode] | None = None\n",
    )
    scratch.replace(
        "store/models/queries.py",
        "import FilterLogic, Frozen, RolloutStatus,",
        "import FilterLogic, Frozen, RolloutMode, RolloutStatus,",
    )
    scratch.insert(
        "store/interface/store.py",
        "        rollout_id_in: Sequence[str] | None = None,\n",
        "        mode_in: Sequence[RolloutMode] | None = None,\n",
    )
    scratch.insert(
        "store/interface/store.py",
        "            rollout_id_in=rollout_ids if rollout_id_in is None else rollout_id_in,\n",
        "            mode_in=mode_in,\n",
    )


RECIPE = Recipe(
    "query filter",
    4,
    _apply,
    '''"""Rollouts are found by their mode, in process and over HTTP."""

import httpx
import pytest

from store import Store, open_store
from store.server import StoreServer


async def filled(url: str) -> Store:
    store = await open_store(url)
    for mode in ("train", "val", None):
        await store.enqueue_rollout(str(mode), mode=mode)
    return store


async def test_rollouts_are_found_by_mode(tmp_path):
    async with await filled(f"sqlite:///{tmp_path / 'run.db'}") as store:
        found = await store.query_rollouts(mode_in=["val"])
        assert [each.input for each in found] == ["val"]
        now = await store.query_rollouts(mode_in=["train", "val"])
        past = await store.query_rollouts(mode_in=["train", "val"], as_at=2)
        assert [each.input for each in now] == [each.input for each in past] == ["train", "val"]


async def test_the_server_takes_the_filter(tmp_path):
    async with await filled(f"sqlite:///{tmp_path / 'run.db'}") as store, StoreServer(store) as server:
        async with await open_store(server.endpoint) as client:
            assert [each.input for each in await client.query_rollouts(mode_in=["val"])] == ["val"]
        async with httpx.AsyncClient(base_url=server.endpoint) as raw:
            refused = await raw.get("/v1/agl/rollouts", params={"mode_in": "unknown"})
            assert refused.status_code == 422
''',
)
