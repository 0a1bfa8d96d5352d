"""Requests of other websites through a browser on this machine change nothing and read nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from store import open_store
from store.interface.store import Store
from store.server.auth.keyring import KeyRing
from store.server.partitions import Partitions
from store.server.store_server import StoreServer
from store.server.streaming.paths import LOG_SOCKET
from store.sql.api_keys import Keys
from store.testing import ManualClock
from tests.server.api import Api, speaking_to
from tests.server.keyed import bearer

EVIL = "http://evil.example"


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    """A store in memory: the database makes no difference here."""
    async with await open_store("memory://", clock=clock, scan_debounce_seconds=0) as store:
        yield store


@asynccontextmanager
async def _local(store: Store, *origins: str) -> AsyncGenerator[Api]:
    async with speaking_to(Partitions(store), is_local=True, cors_origins=origins) as api:
        yield api


ORIGINS = (EVIL, "null", "http://127.0.0.1:1", "https://127.0.0.1", "http://localhost", "x", "http://[")
CALLS = (("POST", "/rebuild"), ("POST", "/rollouts/search"), ("PATCH", "/rollouts/x"), ("DELETE", "/x"))


async def test_a_page_of_a_stranger_changes_nothing(store: Store) -> None:
    async with _local(store) as api:
        for origin in ORIGINS:
            for method, path in CALLS:
                answer = await api.send(method, path, headers={"Origin": origin})
                assert answer.status == 403, (origin, path, answer)
                assert answer.json["error_type"] == "Forbidden", (origin, path)
                assert "--cors-origin" in answer.detail, (origin, path)


async def test_origin_is_compared_by_scheme_host_and_port(store: Store) -> None:
    same = (("http://a.test", "a.test"), ("http://A.test:80", "a.TEST"), ("http://[::1]:4747", "[::1]:4747"))
    other = (
        *(("evil://a.test", "a.test"), ("https://a.test", "a.test"), ("http://a.test:8080", "a.test")),
        *(("://a.test", "a.test"), ("http://a.test/", "a.test/"), ("http://u@a.test", "u@a.test"), ("http://", "")),
        *(("http://a.test:80:80", "a.test:80:80"), ("ws://a.test", "a.test"), ("null", "null"), ("file://", "")),
    )
    proxied = {"X-Forwarded-Proto": "https"}
    async with speaking_to(Partitions(store)) as api:
        for status, cases, forwarded in ((200, same, {}), (403, other, {}), (200, [other[1]], proxied)):
            for origin, host in cases:
                headers = {"Origin": origin, "Host": host, **forwarded}
                assert (await api.post("/workers/w", headers=headers)).status == status, (origin, host)
                socket = api.session.ws_connect(api.url + LOG_SOCKET, headers=headers)
                if status == 200:
                    await (await socket).close()
                else:
                    with pytest.raises(aiohttp.WSServerHandshakeError):
                        await socket
        answer = await api.post("/workers/w", headers={"Origin": "https://a.test", "Host": "a.test"})
        assert "X-Forwarded-Proto" in answer.detail


async def test_not_even_without_a_body_or_with_one_a_form_could_send(store: Store) -> None:
    async with _local(store) as api:
        for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
            for path in ("/queues/rollouts/dequeue", "/workers/w", "//v1/traces", "//p/default/v1/agl/rebuild"):
                sent = {"Origin": EVIL, **headers}
                assert (await api.send("POST", path, data=b"", headers=sent)).status == 403
    assert (await store.query_workers()).total == 0


async def test_reads_from_other_origins_get_no_cors_header(store: Store) -> None:
    async with _local(store) as api:
        answer = await api.get("/rollouts", headers={"Origin": EVIL})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


async def test_own_and_configured_origins_may_write(store: Store) -> None:
    async with _local(store, "http://a.test") as api:
        for origin in (api.url, "http://a.test", "HTTP://A.TEST"):
            assert (await api.post("/workers/w", headers={"Origin": origin})).status == 200
        assert (await api.post("/workers/w", headers={"Origin": EVIL})).status == 403
    async with _local(store, "*") as api:
        assert (await api.post("/workers/w", headers={"Origin": EVIL})).status == 200


async def test_request_without_origin_may_write(store: Store) -> None:
    async with _local(store) as api:
        assert (await api.post("/workers/w")).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4747", "127.0.0.1.evil.example", "localhost.evil.example"]
)
async def test_a_name_that_a_stranger_gave_to_this_machine_is_refused(store: Store, host: str) -> None:
    async with _local(store) as api:
        for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
            for method, path in (("GET", "/rollouts"), ("POST", "/workers/w"), ("GET", "//metrics")):
                answer = await api.send(method, path, headers=headers)
                assert answer.status == 403, answer
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with api.session.ws_connect(api.url + LOG_SOCKET, headers={"Host": host, "Origin": f"http://{host}"}):
                pass
    assert (await store.query_workers()).total == 0


NAMES = ("localhost:4747", "LOCALHOST", "app.localhost", "127.0.0.1", "[::1]:4747", "192.168.0.7:80", "a.test:99")


async def test_its_own_names_are_not(store: Store) -> None:
    async with _local(store, "https://a.test") as api:
        for host in NAMES:
            assert (await api.get("/rollouts", headers={"Host": host})).status == 200, host


async def test_public_server_accepts_any_host_name(store: Store) -> None:
    async with speaking_to(Partitions(store)) as api:
        assert (await api.get("/rollouts", headers={"Host": "rollbook.internal"})).status == 200


async def test_with_keys_any_name_will_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keyed.db'}"
    keys = await Keys.open(url, create=True)
    _, key = await keys.create("reader")
    await keys.enforce()
    await keys.close()
    ring = await KeyRing.open(url)
    async with await open_store(url) as store, speaking_to(Partitions(store), is_local=True, ring=ring) as api:
        headers = {"Host": "rollbook.internal"}
        assert (await api.get("/rollouts", headers={**headers, **bearer(key)})).status == 200
        assert (await api.get("/rollouts", headers=headers)).status == 401
    await ring.close()


async def test_a_store_server_refuses_them_too(store: Store) -> None:
    server = StoreServer(store, port=0)
    async with server, aiohttp.ClientSession() as session:
        for headers in ({"Host": "evil.example"}, {"Origin": EVIL}):
            async with session.post(f"{server.endpoint}/v1/agl/workers/w", headers=headers) as answer:
                assert answer.status == 403


async def test_every_answer_keeps_browsers_from_doing_more_with_it(store: Store) -> None:
    paths = ("/rollouts", "/nothing", "//livez", "//metrics", "//openapi.json", "//docs")
    async with _local(store) as api:
        answers = [await api.get(path, headers=headers) for path in paths for headers in ({}, {"Host": "evil.example"})]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["referrer-policy"] == "no-referrer"
