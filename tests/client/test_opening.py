"""Opening a store over HTTP, and the headers of its requests."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from store import open_store
from store.client import HTTPStore, LightningStoreClient
from store.errors import Invalid, ReadOnly, Unavailable
from store.interface.store import Store
from store.testing import ManualClock
from tests.client.scripted_server import ScriptedServer, answer

HEALTHY = answer("200 OK", b'{"name":"x"}')


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLBOOK_API_KEY", raising=False)


async def test_an_opened_url_is_the_store_behind_it(url: str, behind: Store) -> None:
    async with await open_store(url) as store:
        assert isinstance(store, HTTPStore)
        assert store.store_id == getattr(behind, "store_id")  # noqa: B009 - no part of the interface
        rollout = await store.enqueue_rollout({"task": 1})
        assert await behind.get_rollout_by_id(rollout.rollout_id) == rollout
        assert store.otlp_traces_endpoint() == f"{url}/v1/traces"
        assert store.capabilities.get("otlp_traces")


async def test_a_clock_belongs_to_the_server(url: str, clock: ManualClock) -> None:
    with pytest.raises(Invalid, match="clock"):
        await open_store(url, clock=clock)


async def test_a_store_opened_for_reading_refuses_to_write_and_reads(url: str, behind: Store) -> None:
    rollout = await behind.enqueue_rollout(1)
    async with await open_store(url, read_only=True) as store:
        for call in (store.enqueue_rollout(2), store.dequeue_rollout(), store.update_worker("w1"), store.log.rebuild()):
            with pytest.raises(ReadOnly):
                await call
        assert await store.get_rollout_by_id(rollout.rollout_id) == rollout
        assert (await store.log.verify()).ok
    assert (await behind.query_rollouts()).total == 1


async def test_a_key_travels_with_every_request_and_is_not_shown() -> None:
    with ScriptedServer([HEALTHY]) as server:
        async with HTTPStore(server.url, api_key="rb-secret") as store:
            await store.statistics()
            await store.statistics()
            assert "rb-secret" not in repr(store)
        assert server.header("authorization") == ["bearer rb-secret"] * 2


async def test_the_key_of_the_environment_is_used_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_API_KEY", "rb-environment")
    with ScriptedServer([HEALTHY]) as server:
        for api_key in (None, "rb-given", ""):
            async with HTTPStore(server.url, api_key=api_key) as store:
                await store.statistics()
        assert server.header("authorization") == ["bearer rb-environment", "bearer rb-given", None]


@pytest.mark.parametrize("key", ["two lines\nx: y", "a b", "é", "\0"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match="api_key") as refused:
        HTTPStore("http://host", api_key=key)
    assert key not in str(refused.value)


def test_without_await_it_works_the_same(url: str) -> None:
    store = HTTPStore(url)
    with store.sync as sync:
        rollout = sync.enqueue_rollout(1)
        claimed = sync.dequeue_rollout("w1", wait_seconds=10)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        sync.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert [one.status for one in sync.wait_for_rollouts([rollout.rollout_id])] == ["succeeded"]
        assert next(sync.log.tail()).type == "rollout.enqueued"


async def test_agent_lightnings_client_is_here_by_its_name_and_arguments(url: str) -> None:
    client = LightningStoreClient(
        url, retry_delays=(0.1, 0.2), health_retry_delays=(), request_timeout=5.0, connection_timeout=1.0
    )
    async with client:
        assert client.server_address == url
        rollout = await client.enqueue_rollout({"task": 1})
        async with pickle.loads(pickle.dumps(client)) as copy:
            assert await copy.get_rollout_by_id(rollout.rollout_id) == rollout
    async with LightningStoreClient("http://127.0.0.1:9", retry_delays=()) as nobody:
        with pytest.raises(Unavailable, match="tried once"):
            await nobody.dequeue_rollout()


async def test_ids_that_look_like_parts_of_a_path_are_ids(store: HTTPStore) -> None:
    for name in ("a/b", "..", ".", "%2F", "?a=b", "#x", "a b", "é", "search", "latest", "x" * 512):
        resources = await store.update_resources(name, {})
        assert resources.resources_id == name
        assert await store.get_resources_by_id(name) == resources
        worker = await store.update_worker(name, {})
        assert worker.worker_id == name
        assert await store.get_worker_by_id(name) == worker
        assert await store.get_rollout_by_id(name) is None
        assert await store.get_latest_attempt(name) is None
        assert (await store.query_attempts(name)).total == 0
    assert (await store.query_resources()).total == (await store.query_workers()).total == 11


async def test_ids_that_nothing_can_have_find_nothing(store: HTTPStore) -> None:
    for name in ("", "x" * 513, "x" * 1_000_000):
        assert await store.get_rollout_by_id(name) is None
        assert await store.get_latest_attempt(name) is None
        assert await store.get_worker_by_id(name) is None
        assert await store.get_resources_by_id(name) is None
        assert (await store.query_attempts(name)).total == 0
        assert (await store.query_spans(name)).total == 0


async def test_a_seal_is_written_where_the_client_is(store: HTTPStore, tmp_path: Path) -> None:
    await store.enqueue_rollout(1)
    seal = await store.log.seal(tmp_path / "run.seal")
    await store.enqueue_rollout(2)
    report = await store.log.verify(tmp_path / "run.seal")
    assert (report.ok, report.seal_checked, report.store_id) == (True, True, seal.store_id)
    assert (await store.log.verify(seal)).seal_checked
    with pytest.raises(FileExistsError):
        await store.log.seal(tmp_path / "run.seal")
    with pytest.raises(FileNotFoundError):
        await store.log.verify(tmp_path / "none.seal")
