"""Import from a server of the Agent-lightning protocol. `make test-interop` imports from Agent-lightning's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from store import models, open_store
from store.errors import Unavailable
from store.imports import ImportResult, agentlightning, import_rollouts
from store.imports.agentlightning import read_server
from store.interface.store import Store
from store.testing.samples import make_span
from tests.client.served import Served
from tests.imports.served_rollouts import check, fill


@pytest.fixture
async def origin() -> AsyncIterator[Store]:
    """The store of the server from which rollouts are imported."""
    async with await open_store("memory://") as store:
        yield store


@pytest.fixture
def address(server: Served, origin: Store) -> Iterator[str]:
    with server.serving(origin) as url:
        yield url


async def imported(store: Store, url: str, *, is_dry_run: bool = False) -> ImportResult:
    return await import_rollouts(store, read_server(url), source="agentlightning", is_dry_run=is_dry_run)


async def test_rollouts_that_ended_are_imported_once_and_others_when_they_end(
    origin: Store, address: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_LISTED_AT_ONCE", "_READ_AT_ONCE", "_SPANS_AT_ONCE"):
        monkeypatch.setattr(agentlightning, name, 2)
    ids = await fill(origin, models)
    planned = await imported(store, address, is_dry_run=True)
    assert (planned.imported, planned.resources, planned.spans) == (3, 1, 5)
    assert (len(await store.query_rollouts()), len(await store.query_resources())) == (0, 0)
    first = await imported(store, address)
    assert (first.imported, first.resources, first.spans) == (3, 1, 5)
    assert {skip.place: skip.reason for skip in first.skips} == {
        f"rollout {ids['never']}": "is cancelled without an attempt",
        f"rollout {ids['queued']}": "is queuing; import it when it has ended",
        f"rollout {ids['running']}": "is preparing; import it when it has ended",
    }
    await check(store, ids)
    again = await imported(store, address)
    assert (again.imported, again.unchanged, again.resources, again.spans) == (0, 3, 0, 0)
    await check(store, ids)
    attempt = await origin.get_latest_attempt(ids["running"])
    assert attempt is not None
    await origin.update_attempt(ids["running"], attempt.attempt_id, status="failed")
    later = await imported(store, address)
    assert (later.imported, later.unchanged, later.skipped) == (1, 3, 2)


async def test_rollout_that_was_run_again_gets_its_new_attempt(
    origin: Store, address: str, sqlite_store: Store
) -> None:
    ids = await fill(origin, models)
    await imported(sqlite_store, address)
    started = await origin.start_attempt(ids["done"])
    await origin.update_attempt(ids["done"], started.attempt.attempt_id, status="failed")
    assert (await imported(sqlite_store, address)).continued == 1
    (rollout,) = await sqlite_store.query_rollouts(mode_in=["train"])
    assert [attempt.status for attempt in await sqlite_store.query_attempts(rollout.rollout_id)] == [
        "succeeded",
        "failed",
    ]
    assert (rollout.status, (await imported(sqlite_store, address)).unchanged) == ("failed", 3)


async def test_late_span_is_reported_and_not_imported(origin: Store, address: str, sqlite_store: Store) -> None:
    ids = await fill(origin, models)
    await imported(sqlite_store, address)
    attempt = await origin.get_latest_attempt(ids["done"])
    assert attempt is not None
    await origin.add_span(make_span(attempt, 20))
    again = await imported(sqlite_store, address)
    (reason,) = [skip.reason for skip in again.skips if skip.place == f"rollout {ids['done']}"]
    assert "its content has changed since it was imported as rollout " in reason
    await check(sqlite_store, ids)


async def test_server_that_does_not_answer_is_an_error(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = agentlightning.HTTPStore.open

    async def open_soon(url: str, **settings: bool) -> Store:
        return await opened(url, retry_seconds=0.1, **settings)

    monkeypatch.setattr(agentlightning.HTTPStore, "open", open_soon)
    with pytest.raises(Unavailable, match="did not answer"):
        await imported(sqlite_store, "http://127.0.0.1:9")
