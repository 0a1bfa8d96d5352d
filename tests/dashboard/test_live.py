"""Live updates of open pages."""

from __future__ import annotations

from typing import Any

import orjson

from store.dashboard.pages import live
from store.interface.store import Store
from store.sql.store import SQLStore
from tests.dashboard.page_helpers import ON_BOTH


async def first_news(store: Store, after: int) -> dict[str, Any]:
    """Return what a page hears first that was drawn up to a position."""
    assert isinstance(store, SQLStore)
    news = live.news(store, after)
    try:
        assert (await anext(news)).startswith(b"retry: ")
        return orjson.loads((await anext(news)).partition(b"data: ")[2])
    finally:
        await news.aclose()


@ON_BOTH
async def test_a_page_hears_which_streams_changed_since_it_was_drawn(store: Store) -> None:
    rollouts = [await store.enqueue_rollout(number) for number in range(3)]
    assert isinstance(store, SQLStore)
    drawn = await store.core.position()
    await store.update_rollout(rollouts[1].rollout_id, status="cancelled")
    assert await first_news(store, drawn) == {
        "position": await store.core.position(),
        "streams": [f"rollout/{rollouts[1].rollout_id}"],
    }


async def test_a_page_that_was_drawn_from_a_longer_log_hears_that_all_may_have_changed(store: Store) -> None:
    """A database was restored, or another one is served in its place."""
    await store.enqueue_rollout(1)
    assert isinstance(store, SQLStore)
    assert await first_news(store, 1_000_000) == {"position": await store.core.position(), "streams": None}
