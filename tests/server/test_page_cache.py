"""A repeated request for a page is read again, unless nothing was committed in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from store import open_store
from store.interface.store import Store
from store.models import Attempt, RolloutConfig
from store.models.queries import RolloutQuery
from store.server.page_cache import PageCache
from store.server.partitions import Partitions
from store.sql.json_pages import JSONPages
from store.testing import ManualClock
from store.testing.samples import make_span
from store.wire.encoding import dumps
from tests.server.api import Api, speaking_to

Change = Callable[[Store, Attempt], Awaitable[object]]


@pytest.fixture
def store_url(durable_url: str) -> str:
    return durable_url


async def _heartbeat(other: Store, attempt: Attempt) -> object:
    return await other.update_attempt(attempt.rollout_id, attempt.attempt_id, last_heartbeat_time=1_800_000_000.5)


async def _span(other: Store, attempt: Attempt) -> object:
    return await other.add_span(make_span(attempt, 2))


async def _end(other: Store, attempt: Attempt) -> object:
    return await other.update_attempt(attempt.rollout_id, attempt.attempt_id, "succeeded")


async def _amendment(other: Store, attempt: Attempt) -> object:
    return await other.update_rollout(attempt.rollout_id, input="another", metadata={"n": 1})


async def _another(other: Store, _: Attempt) -> object:
    return await other.enqueue_rollout("another")


CHANGES: tuple[Change, ...] = (_heartbeat, _span, _another, _amendment, _end)
PATHS = ("/rollouts?limit=10", "/rollouts?limit=1", "/spans?rollout_id={}", "/spans?rollout_id={}&limit=1")


async def test_next_page_contains_the_writes_of_another_process(api: Api, store: Store, store_url: str) -> None:
    attempt = (await store.start_rollout({"q": 1})).attempt
    await store.add_span(make_span(attempt))
    paths = [path.format(attempt.rollout_id) for path in PATHS]
    # A store of its own is to the database what another process is.
    async with await open_store(store_url) as other:
        for change in CHANGES:
            for path in paths:
                # The second of these is a page that the server kept.
                for _ in range(2):
                    assert (await api.get(path)).ok() == await _modelled(other, path, attempt), (change, path)
            await change(other, attempt)
            for path in paths:
                assert (await api.get(path)).ok() == await _modelled(other, path, attempt), (change, path)


async def _modelled(store: Store, path: str, attempt: Attempt) -> Any:
    limit = int(path.partition("limit=")[2] or -1)
    if path.startswith("/rollouts"):
        return orjson.loads(dumps(await store.query_rollouts(limit=limit)))
    return orjson.loads(dumps(await store.query_spans(attempt.rollout_id, limit=limit)))


async def test_polling_lets_the_watchdog_time_out_attempts(api: Api, store: Store, clock: ManualClock) -> None:
    config = RolloutConfig(timeout_seconds=5)
    rollout = await store.start_rollout(1, config=config)
    asked = f"/rollouts?rollout_id_in={rollout.rollout_id}"
    statuses = [(await api.get(asked)).ok()["items"][0]["status"] for _ in range(3)]
    clock.advance(6)
    assert statuses == ["preparing"] * 3
    assert (await api.get(asked)).ok()["items"][0]["status"] == "failed"


async def test_nothing_is_read_while_nothing_is_committed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    write_rollouts = JSONPages.write_rollouts

    async def counted(self: JSONPages, write: Callable[[bytes], object], query: RolloutQuery) -> int:
        written.append(query)
        return await write_rollouts(self, write, query)

    monkeypatch.setattr(JSONPages, "write_rollouts", counted)
    async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as store, speaking_to(Partitions(store)) as api:
        await store.enqueue_rollout(1)
        answers = [(await api.get("/rollouts?limit=5")).body for _ in range(4)]
        assert len(written) == 1
        assert len(set(answers)) == 1
        # Another question, another page.
        for query in ("limit=6", "limit=5&offset=1", "limit=5&sort_by=status"):
            await api.get(f"/rollouts?{query}")
        assert len(written) == 4
        await store.enqueue_rollout(2)
        assert (await api.get("/rollouts?limit=5")).ok()["total"] == 2
        assert len(written) == 5


async def test_partitions_do_not_get_each_others_pages(tmp_path: Any) -> None:
    for name in ("one", "two"):
        url = f"sqlite:///{tmp_path / name}.db"
        async with await open_store(url) as store, speaking_to(Partitions(store)) as api:
            await store.enqueue_rollout(name)
            assert [rollout["input"] for rollout in (await api.get("/rollouts")).ok()["items"]] == [name]


def test_cached_page_of_another_state_is_not_returned() -> None:
    pages = PageCache(100)
    pages.keep("a", 1, b"one")
    assert pages.get("a", 1) == b"one"
    assert pages.get("a", 2) is None
    assert pages.get("b", 1) is None
    pages.keep("a", 2, b"two!")
    assert (pages.get("a", 1), pages.get("a", 2), pages.size) == (None, b"two!", 4)


def test_the_pages_asked_for_last_are_kept_within_their_bytes() -> None:
    pages = PageCache(10)
    pages.keep("a", 1, b"aaaa")
    pages.keep("b", 1, b"bbbb")
    assert pages.get("a", 1) is not None
    pages.keep("c", 1, b"cccc")
    assert [pages.get(key, 1) for key in "abc"] == [b"aaaa", None, b"cccc"]
    assert pages.size == 8
    pages.keep("d", 1, b"d" * 11)
    assert pages.size == 0
