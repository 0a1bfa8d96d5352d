"""A filter of a query: rollouts by a part of the id of their resources."""

from tests.recipes.scratch import Recipe, Scratch


def _apply(scratch: Scratch) -> None:
    scratch.insert(
        "store/models/queries.py",
        "    resources_id_in: list[str] | None = None\n",
        "    resources_id_contains: str | None = None\n",
    )
    scratch.insert(
        "store/interface/store.py",
        "        resources_id_in: Sequence[str] | None = None,\n",
        "        resources_id_contains: str | None = None,\n",
    )
    scratch.insert(
        "store/interface/store.py",
        "            resources_id_in=resources_id_in,\n",
        "            resources_id_contains=resources_id_contains,\n",
    )


RECIPE = Recipe(
    "query filter",
    4,
    _apply,
    '''"""Rollouts are found by a part of the id of their resources, in process and over HTTP."""

import httpx

from store import Store, open_store
from store.server import StoreServer


async def filled(url: str) -> Store:
    store = await open_store(url)
    for resources_id in ("large-1", "small-1", "small-2"):
        await store.enqueue_rollout(resources_id, resources_id=resources_id)
    return store


async def test_rollouts_are_found_by_a_part_of_the_id_of_their_resources(tmp_path):
    async with await filled(f"sqlite:///{tmp_path / 'run.db'}") as store:
        found = await store.query_rollouts(resources_id_contains="small")
        assert [each.input for each in found] == ["small-1", "small-2"]
        now = await store.query_rollouts(resources_id_contains="-1")
        past = await store.query_rollouts(resources_id_contains="-1", as_at=2)
        assert [each.input for each in now] == [each.input for each in past] == ["large-1", "small-1"]


async def test_the_server_takes_the_filter(tmp_path):
    async with await filled(f"sqlite:///{tmp_path / 'run.db'}") as store, StoreServer(store) as server:
        async with await open_store(server.endpoint) as client:
            assert [each.input for each in await client.query_rollouts(resources_id_contains="2")] == ["small-2"]
        async with httpx.AsyncClient(base_url=server.endpoint) as raw:
            refused = await raw.post("/v1/agl/rollouts/search", json={"resources_id_contains": 7})
            assert refused.status_code == 422
''',
)
