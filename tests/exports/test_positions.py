"""Positions of the log, at which an export reads, on every kind of store."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from store.errors import Invalid, Unsupported
from store.exports import export_store
from store.integrations.collections import CollectionBasedLightningStore, InMemoryLightningCollections
from store.interface.store import Store


async def test_a_position_is_the_last_event_up_to_a_moment(any_store: Store) -> None:
    events = [event async for event in any_store.log.tail()]
    end = await any_store.log.position()
    assert (end.position, end.store_id) == (events[-1].position, events[-1].cursor.split(".")[1])
    assert await any_store.log.position(10**9) == end
    assert await any_store.log.position(datetime(2100, 1, 1, tzinfo=UTC)) == end
    assert (await any_store.log.position(datetime(2000, 1, 1, tzinfo=UTC))).position == 0
    first, *_, last = [event for event in events if event.commit_id == 1]
    # One call enqueued several rollouts, and a moment is never inside of a call.
    assert first.position < last.position
    assert (await any_store.log.position(last.position)).position == last.position
    assert (await any_store.log.position(last.position - 1)).position == 0


@pytest.mark.parametrize("as_at", [-1, 1.5, datetime(2026, 1, 1)])  # noqa: DTZ001 - that is the error
async def test_a_wrong_moment_has_no_position(as_at: Any, any_store: Store) -> None:
    with pytest.raises(Invalid, match="as_at"):
        await any_store.log.position(as_at)


async def test_a_store_without_a_log_is_refused(tmp_path: Path) -> None:
    store = CollectionBasedLightningStore(InMemoryLightningCollections())
    with pytest.raises(Unsupported, match=r"log\.position"):
        await export_store(store, "jsonl", tmp_path / "export")
    assert not (tmp_path / "export").exists()
