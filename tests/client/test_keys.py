"""API keys of a client: sent with every call, never printed, and refused with a separate error."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store import Forbidden, Unauthorized, open_store
from store.client import HTTPStore, create_partition
from store.errors import Invalid, NotFound, StoreError
from store.interface.store import Store
from store.server.auth import admission
from store.testing import ManualClock
from tests.client.scripted_server import ScriptedServer, answer
from tests.server.keyed import Keyed, keyed_server


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """A file: what a client does depends on no database."""
    return f"sqlite:///{tmp_path / 'keyed.db'}"


@pytest.fixture
async def behind(store_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    async with await open_store(store_url, clock=clock, scan_debounce_seconds=0) as store:
        yield store


@pytest.fixture
async def keyed(behind: Store, store_url: str, clock: ManualClock) -> AsyncIterator[Keyed]:
    async with keyed_server(behind, store_url, clock) as keyed:
        yield keyed


async def test_a_store_with_a_key_is_a_store(keyed: Keyed) -> None:
    async with await open_store(keyed.api.url, api_key=await keyed.key("algorithm")) as store:
        rollout = await store.enqueue_rollout({"question": 1})
        claimed = await store.dequeue_rollout("w")
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        events = [event.type async for event in store.log.tail()]
        assert "rollout.enqueued" in events


async def test_the_key_of_the_environment_is_sent_unless_another_is_given(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, runner = await keyed.key("reader"), await keyed.key("runner")
    monkeypatch.setenv("ROLLBOOK_API_KEY", reader)
    async with HTTPStore(keyed.api.url) as store:
        with pytest.raises(Forbidden):
            await store.dequeue_rollout("w")
    async with HTTPStore(keyed.api.url, api_key=runner) as store:
        assert await store.dequeue_rollout("w") is None


async def test_missing_permission_raises_a_permission_error_without_retries(keyed: Keyed) -> None:
    reader, of_other = await keyed.key("reader"), await keyed.key("admin", partition="other")
    for key, kind in ((None, Unauthorized), ("rbk_no", Unauthorized), (of_other, Forbidden)):
        with pytest.raises(kind) as refused:
            await open_store(keyed.api.url, api_key=key)
        assert isinstance(refused.value, PermissionError)
        assert not refused.value.retryable
    async with await open_store(keyed.api.url, api_key=reader) as store:
        with pytest.raises(Forbidden, match="requires the role algorithm") as refused:
            await store.enqueue_rollout(1)
        assert refused.value.cure == "use a key with the role algorithm"
        with pytest.raises(Forbidden, match="requires the role admin"):
            await store.log.rebuild()


async def test_a_partition_is_created_only_by_a_request_that_says_so(keyed: Keyed) -> None:
    url = f"{keyed.api.url}/p/fresh"
    runner, admin = await keyed.key("runner"), await keyed.key("admin")
    for key in (runner, admin):
        with pytest.raises(NotFound, match="rollbook partitions create fresh"):
            await open_store(url, api_key=key)
    with pytest.raises(Forbidden):
        await create_partition(keyed.api.url, "fresh", api_key=runner)
    with pytest.raises(Invalid, match="names a partition already"):
        await create_partition(url, "fresh", api_key=admin)
    for _ in range(2):
        assert await create_partition(keyed.api.url, "fresh", api_key=admin) == url
    async with await open_store(url, api_key=admin) as store:
        await store.enqueue_rollout(1)
    async with await open_store(url, api_key=runner) as store:
        assert await store.dequeue_rollout("w") is not None


async def test_a_client_without_a_key_is_warned_once_before_keys_are_required(
    keyed: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    keyed.enforces = False
    await keyed.key("admin")
    async with await open_store(keyed.api.url) as store:
        assert not [record for record in caplog.records if record.name == "store.client"]
        await keyed.keys.enforce(in_seconds=3600)
        keyed.grow_old()
        for _ in range(3):
            await store.statistics()
        (warned,) = [record for record in caplog.records if record.name == "store.client"]
        assert "requires an API key from 20" in warned.getMessage()


async def test_follower_is_refused_when_its_key_is_revoked(
    keyed: Keyed, behind: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "CHECK_SECONDS", 0.02)
    key, text = await keyed.make("reader")
    await behind.enqueue_rollout(1)
    async with HTTPStore(keyed.api.url, api_key=text) as store:

        async def follow() -> None:
            async for event in store.log.tail(follow=True):
                if event.type == "rollout.enqueued":
                    await keyed.revoke(key)

        with pytest.raises(Unauthorized):
            await asyncio.wait_for(follow(), 30)


SECRET = "rbk_0123456789_" + "s" * 32


async def test_a_key_is_in_no_text_that_anybody_reads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [answer("401 Unauthorized", b'{"detail":"no"}'), answer("503 Unavailable", b"later")]
    with ScriptedServer(answers) as server:
        async with HTTPStore(server.url, api_key=SECRET, retry_seconds=0) as store:
            texts = [repr(store), str(store), repr(store.capabilities), store.otlp_traces_endpoint(), store.url]
            for _ in answers:
                with pytest.raises(StoreError) as refused:
                    await store.statistics()
                texts += [repr(refused.value), repr(vars(refused.value))]
                texts += traceback.format_exception(refused.value)
        # The server of the test hears all headers in lower case.
        assert server.header("authorization") == [f"bearer {SECRET}"] * 2
    assert not [text for text in [*texts, caplog.text] if SECRET in text]


async def test_a_copy_in_another_process_has_the_key(keyed: Keyed) -> None:
    async with HTTPStore(keyed.api.url, api_key=await keyed.key("reader")) as store:
        copy: HTTPStore = pickle.loads(pickle.dumps(store))
        async with copy:
            assert (await copy.query_rollouts()).total == 0


@pytest.mark.parametrize("url", ["http://agent:secret@127.0.0.1:1", "https://secret@host", "http://:secret@h/p/one"])
async def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Invalid, match="ROLLBOOK_API_KEY") as refused:
        await open_store(url)
    assert "secret" not in "".join(traceback.format_exception(refused.value)).partition("Traceback")[0]
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "clé", "\x00"])
async def test_key_unfit_for_a_header_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(Invalid, match="api_key") as refused:
        HTTPStore("http://127.0.0.1:1", api_key=key)
    assert key not in str(refused.value)


@pytest.mark.parametrize("setting", ["api_key", "ca_file"])
async def test_a_database_takes_no_key(setting: str) -> None:
    settings: dict[str, str] = {setting: SECRET}
    with pytest.raises(Invalid, match=setting) as refused:
        await open_store("memory://", api_key=settings.get("api_key"), ca_file=settings.get("ca_file"))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "status,kind", [("401 Unauthorized", Unauthorized), ("407 Proxy", Unauthorized), ("403 Forbidden", Forbidden)]
)
async def test_a_proxy_that_refuses_is_understood(status: str, kind: type[StoreError]) -> None:
    with ScriptedServer([answer(status, b"<html>go away</html>")]) as server:
        async with HTTPStore(server.url) as store:
            with pytest.raises(kind, match="go away"):
                await store.statistics()
