"""Search through a server, on pages and on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store import Invalid, NotFound, open_store
from store.client import HTTPStore
from store.models.queries import RolloutQuery
from store.server.indexes import filled_indexes
from store.server.partitions import Partitions
from tests.dashboard.page_helpers import HOSTILE, Read
from tests.indexing.test_search import conversation
from tests.server.api import speaking_to


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rollbook.db'}"


STATUSES = ("succeeded", "failed", "succeeded")


async def test_client_of_a_server_finds_the_same_as_the_store(store_url: str) -> None:
    async with await open_store(store_url) as store:
        ids = [await conversation(store, f"walk {number}", status=status) for number, status in enumerate(STATUSES)]
        async with speaking_to(Partitions(store)) as api, HTTPStore(api.url) as client:
            failed = RolloutQuery(status_in=["failed"])
            assert await client.log.search("walk", limit=2) == await store.log.search("walk", limit=2)
            page = await client.log.search("walk", rollouts=failed)
            assert [result.rollout_id for result in page.results] == [ids[1]]
            assert await client.log.search("walk", rollout_id=ids[0]) == await store.log.search(
                "walk", rollout_id=ids[0]
            )
            with pytest.raises(Invalid, match="tols"):
                await client.log.search("tols:bash")
            with pytest.raises(NotFound):
                await client.log.search("walk", rollout_id="ro-missing")


async def test_pages_mark_matches_and_escape_texts(store_url: str) -> None:
    async with await open_store(store_url) as store:
        rollout_id = await conversation(store, f"walk {HOSTILE}")
        async with speaking_to(Partitions(store)) as api:
            answer = await api.get("//ui/search?q=role:user:walk")
            page = Read(answer.body)
            assert (answer.status, page.tags.count("mark")) == (200, 1)
            assert "onerror" not in {name for mark in page.marks for name in mark}
            (link,) = (link for link in page.links if link.endswith(f"&sequence=1#entry-{1:016x}"))
            assert link.startswith(f"/ui/rollouts/{rollout_id}?attempt=")
            twin = (await api.get("//ui/search.json?q=role:user:walk&status=succeeded")).ok()
            assert [result["rollout_id"] for result in twin["results"]] == [rollout_id]
            assert (await api.get("//ui/search.json?q=walk&status=failed")).ok()["results"] == []
            assert (await api.get("//ui/search.json?q=walk&worker=nobody")).ok()["results"] == []
            inside = (await api.get(f"//ui/rollouts/{rollout_id}/search.json?q=walk")).ok()
            assert [hit["scope"] for hit in inside["hits"]] == ["input", "user", "call", "result", "assistant"]
            wrong = await api.get("//ui/search?q=tols:bash")
            assert (wrong.status, "character 1" in Read(wrong.body).text) == (422, True)
            assert (await api.get("//ui/search.json?q=tols:bash")).status == 422
            assert (await api.get("//ui/search")).status == 200


async def test_server_fills_the_indexes_of_its_partitions(store_url: str) -> None:
    from store.indexing.reading import lag_of
    from store.indexing.search.index import SearchIndex
    from store.sql.store import SQLStore

    async with await open_store(store_url) as store:
        assert isinstance(store, SQLStore)
        await conversation(store, "walk")
        async with filled_indexes(Partitions(store)), asyncio.timeout(20):
            lag = None
            while lag is None or lag.events_behind:
                await asyncio.sleep(0.02)
                lag = await store.core.read(lambda session: lag_of(session, SearchIndex()))
