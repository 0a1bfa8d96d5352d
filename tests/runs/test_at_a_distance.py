"""A store behind a server keeps phase graphs like any resource, and says that it has no runs yet."""

from __future__ import annotations

import pytest

from store import open_store
from store.errors import Unsupported
from store.interface import Store
from store.models import PhaseGraph
from tests.client.served import Served
from tests.runs.given import auto_run
from tests.runs.trading import TA


@pytest.fixture
def store_url() -> str:
    """One backend is enough for what a client does."""
    return "memory://"


async def test_a_phase_graph_crosses_the_wire_whole(store: Store) -> None:
    with Served() as server, server.serving(store) as url:
        async with await open_store(url) as distant:
            added = await distant.add_resources({"phases": TA})
            found = (await distant.get_latest_resources() or added).resources["phases"]
            assert isinstance(found, PhaseGraph)
            assert (found, found.digest) == (TA, TA.digest)


async def test_runs_are_not_read_at_a_distance_and_the_error_says_where_they_are(store: Store) -> None:
    run = await auto_run(store)
    with Served() as server, server.serving(store) as url:
        async with await open_store(url) as distant:
            with pytest.raises(Unsupported, match="HTTPStore has no query_run_events; open the database itself"):
                await distant.query_run_events(run.rollout_id)
