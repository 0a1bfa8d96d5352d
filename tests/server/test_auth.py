"""Keys: a request without a valid key gets no data, on every database."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from store import open_store
from store.errors import StoreError, Unavailable
from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.interface.store import Store
from store.server.app import ROUTES, build_app
from store.server.auth import admission as auth_admission
from store.server.auth import keyring
from store.server.auth.keyring import STALE_SECONDS, KeyRing
from store.server.authentication import may
from store.server.partitions import Partitions
from store.server.routes.dashboard import DASHBOARD_ROUTES
from store.server.routing import WEBSOCKET
from store.server.streaming.paths import SOCKETS
from store.sql.api_keys import ROLES, KeyRules, Keys, Role, digest
from store.testing import ManualClock
from tests import databases
from tests.conftest import POSTGRES, SQLITE
from tests.server.api import Api
from tests.server.front_end import PROTECTED
from tests.server.keyed import Keyed, bearer, isolated_database, keyed_server
from tests.server.loopback_server import served

STRANGERS = "rbk_0123456789_" + "a" * 32


ON_ONE = pytest.mark.parametrize("store_url", [SQLITE], indirect=True)
"""What is decided from what the server knows of keys, however they are stored."""


@pytest.fixture(params=[SQLITE, POSTGRES])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return isolated_database(request, tmp_path)


@pytest.fixture
async def keyed(store: Store, store_url: str, clock: ManualClock) -> AsyncIterator[Keyed]:
    async with keyed_server(store, store_url, clock) as keyed:
        yield keyed


async def test_keys_are_required_once_that_is_enforced_and_no_sooner(keyed: Keyed) -> None:
    keyed.enforces = False
    assert (await keyed.ask(STRANGERS)).status == 200
    key = await keyed.key("reader")
    for sent, method, path, status in (
        (None, "GET", "/statistics", 200),
        (None, "POST", "/rebuild", 200),
        (key, "GET", "/statistics", 200),
        (key, "POST", "/rebuild", 403),
        (STRANGERS, "GET", "/statistics", 401),
    ):
        assert (await keyed.ask(sent, method, path)).status == status, (sent, path)
    await keyed.keys.enforce()
    keyed.grow_old()
    assert (await keyed.ask(None)).status == 401
    assert (await keyed.ask(key)).status == 200
    await keyed.keys.stop_enforcing()
    keyed.grow_old()
    assert (await keyed.ask(None)).status == 200


@ON_ONE
async def test_clients_without_a_key_are_warned_until_the_time_has_come(
    keyed: Keyed, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    keyed.enforces = False
    key = await keyed.key("algorithm")
    begins = await keyed.keys.enforce(in_seconds=3600)
    keyed.grow_old()
    clock.advance((begins - clock()) / 1e6 - 1)
    caplog.set_level(logging.WARNING)
    enqueue: dict[str, Any] = {
        "method": "POST",
        "path": "/queues/rollouts/enqueue",
        "data": b'{"rollouts": [{"input": 1}]}',
        "headers": {"Content-Type": "application/json"},
    }
    for _ in range(2):
        warned = await keyed.ask(None)
        assert warned.status == 200
        assert "requires an API key from" in warned.headers["warning"]
    assert "warning" in (await keyed.ask(None, **enqueue)).headers
    assert len([record for record in caplog.records if "requires an API key from" in record.getMessage()]) == 1
    assert "warning" not in (await keyed.ask(key)).headers
    clock.advance(1)
    refused = await keyed.ask(None)
    assert (refused.status, "warning" in refused.headers) == (401, False)
    assert (await keyed.ask(None, **enqueue)).status == 401
    assert (await keyed.ask(key, **enqueue)).status == 201


@ON_ONE
async def test_a_call_that_waits_without_a_key_ends_when_keys_are_required(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_admission, "CHECK_SECONDS", 0.02)
    keyed.enforces = False
    key = await keyed.key("runner")
    body = b'{"limit": 1, "worker_id": "w", "wait_seconds": 600}'
    headers = {"Content-Type": "application/json"}
    claims = [
        asyncio.ensure_future(keyed.ask(sent, "POST", "/queues/rollouts/dequeue", data=body, headers=headers))
        for sent in (None, key)
    ]
    await keyed.api.until_parked(2)
    await keyed.keys.enforce()
    keyed.grow_old()
    assert (await asyncio.wait_for(claims[0], 60)).status == 401
    assert not claims[1].done()
    claims[1].cancel()


async def test_enforcement_that_would_lock_out_all_clients_is_refused(keyed: Keyed) -> None:
    keyed.enforces = False
    await keyed.key("admin", expires_seconds=1e-6)
    for delay, problem in (
        (-1.0, "is not between"),
        (1e12, "is not between"),
        (0.0, "no key is active"),
        (60.0, "no key"),
    ):
        with pytest.raises(StoreError, match=problem):
            await keyed.keys.enforce(in_seconds=delay)
        assert (await keyed.keys.rules()).enforced_at is None, delay


async def test_a_rotated_key_keeps_its_rights_and_the_old_one_ends(keyed: Keyed, clock: ManualClock) -> None:
    first, text = await keyed.make("runner", partition="default", name="night", expires_seconds=86_400)
    old, new, successor = await keyed.keys.rotate(first.key_id, grace_seconds=3600)
    keyed.grow_old()
    assert (new.role, new.partition, new.name) == (first.role, first.partition, first.name)
    assert new.expires_at is not None
    assert new.expires_at - new.created_at == 86_400_000_000
    assert old.expires_at is not None
    clock.advance((old.expires_at - clock()) / 1e6 - 1)
    assert [(await keyed.ask(secret)).status for secret in (text, successor)] == [200, 200]
    clock.advance(1)
    assert [(await keyed.ask(secret)).status for secret in (text, successor)] == [401, 200]
    # Without a grace period, the old key is refused at once.
    _, _, last = await keyed.keys.rotate(new.key_id, grace_seconds=0)
    keyed.grow_old()
    assert [(await keyed.ask(secret)).status for secret in (successor, last)] == [401, 200]
    with pytest.raises(StoreError, match="is revoked"):
        await keyed.keys.rotate(new.key_id, grace_seconds=0)
    with pytest.raises(StoreError, match="is not between"):
        await keyed.keys.rotate(new.key_id, grace_seconds=-1)


@ON_ONE
async def test_the_log_of_a_refused_request_names_the_key(
    keyed: Keyed, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reader, text = await keyed.make("reader", expires_seconds=60)
    assert (await keyed.ask(text, "POST", "/rebuild")).status == 403
    await keyed.revoke(reader)
    assert (await keyed.ask(text)).status == 401
    assert (await keyed.ask(STRANGERS)).status == 401
    assert (await keyed.ask("no key at all")).status == 401
    told = [
        vars(record)
        for record in caplog.records
        if record.name == "store.server.access" and vars(record)["status"] > 400
    ]
    assert [entry["key"] for entry in told] == [reader.key_id, reader.key_id, "0123456789", None]


@ON_ONE
async def test_however_long_keys_take_to_read_they_count_once_they_are_read(store: Store, store_url: str) -> None:
    # Each look at this clock finds it later by more than keys are good for.
    ring = KeyRing(store_url, monotonic=count(step=2 * STALE_SECONDS).__next__)
    try:
        await ring.refresh()
        assert not ring.is_used
    finally:
        await ring.close()


@ON_ONE
async def test_keys_are_reloaded_in_the_background_of_requests(keyed: Keyed) -> None:
    await keyed.ask(None)
    await keyed.keys.create("reader")
    await keyed.keys.enforce()
    keyed.steps.now += 1.9
    assert (await keyed.ask(None)).status == 200
    keyed.steps.now += 0.2
    # This one need not wait for it, but it begins.
    await keyed.ask(None)
    while not len(keyed.ring):
        await keyed.ask(None)
    assert (await keyed.ask(None)).status == 401


@ON_ONE
async def test_a_key_that_was_revoked_counts_no_more(keyed: Keyed) -> None:
    await keyed.key("admin")
    revoked, text = await keyed.make("admin")
    assert (await keyed.ask(text)).status == 200
    await keyed.revoke(revoked)
    refused = await keyed.ask(text)
    assert refused.status == 401
    assert refused.json["error_type"] == "Unauthorized"
    assert text not in refused.body.decode()


async def test_the_last_key_that_is_revoked_opens_no_server(store: Store, store_url: str, clock: ManualClock) -> None:
    for always, status in ((False, 200), (True, 401)):
        async with keyed_server(store, store_url, clock, always=always) as keyed:
            key, text = await keyed.make("admin")
            assert (await keyed.ask(text)).status == 200
            await keyed.revoke(key)
            assert (await keyed.ask(None)).status == 401
            await keyed.keys.stop_enforcing()
            keyed.grow_old()
            assert (await keyed.ask(None)).status == status


@ON_ONE
async def test_a_key_ends_when_its_time_is_over_and_still_keeps_the_door_shut(keyed: Keyed, clock: ManualClock) -> None:
    key = await keyed.key("reader", expires_seconds=3600)
    expiring = (await keyed.keys.all())[0]
    assert expiring.expires_at is not None
    clock.advance((expiring.expires_at - clock()) / 1e6 - 1)
    assert (await keyed.ask(key)).status == 200
    clock.advance(1)
    assert (await keyed.ask(key)).status == 401
    assert (await keyed.ask(None)).status == 401


async def test_requests_get_503_while_keys_cannot_be_read(keyed: Keyed, store_url: str) -> None:
    key = await keyed.key("admin")
    assert (await keyed.ask(key)).status == 200
    database = await databases.connect(store_url)
    await database.execute("ALTER TABLE keys RENAME TO gone")
    try:
        keyed.grow_old()
        for sent in (key, None):
            refused = await keyed.ask(sent)
            assert (refused.status, "retry-after" in refused.headers) == (503, True)
    finally:
        await database.execute("ALTER TABLE gone RENAME TO keys")
        await database.close()
    assert (await keyed.ask(key)).status == 200


@ON_ONE
async def test_keys_of_the_last_read_are_valid_while_the_database_is_away(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = await keyed.key("admin")
    assert (await keyed.ask(key)).status == 200

    async def away(_: Keys) -> KeyRules:
        raise Unavailable("the database is away")

    async def hang(_: Keys) -> KeyRules:
        await answer.wait()
        raise Unavailable("the database was away")

    answer = asyncio.Event()
    monkeypatch.setattr(keyring, "_PATIENCE_SECONDS", 0.05)
    for outage in (away, hang):
        monkeypatch.setattr(Keys, "rules", outage)
        for _ in range(15):
            keyed.steps.now += 1
            assert (await keyed.ask(key)).status == 200
            assert (await keyed.ask(None)).status == 401
        answer.set()
    assert [record.message for record in caplog.records if "keys cannot be read" in record.message] == [
        "keys cannot be read: the database is away; try again in 1 s"
    ]


REFUSED: dict[str, list[tuple[str, str]]] = {
    "none": [],
    "empty": [("Authorization", "")],
    "no text": [("Authorization", "Bearer ")],
    "another scheme": [("Authorization", "Token {key}")],
    "digest": [("Authorization", 'Digest username="a", response="{key}"')],
    "the key alone": [("Authorization", "{key}")],
    "two keys in one": [("Authorization", "Bearer {key}, Bearer {key}")],
    "two headers": [("Authorization", "Bearer {key}"), ("Authorization", "Bearer {key}")],
    "two kinds of header": [("Authorization", "Bearer {key}"), ("x-api-key", "{key}")],
    "one good and one bad": [("x-api-key", "{key}"), ("x-api-key", "no")],
    "huge": [("Authorization", "Bearer " + "a" * 30_000)],
    "not ASCII": [("x-api-key", "clé")],
    "in the wrong case": [("x-api-key", "{KEY}")],
    "cut short": [("x-api-key", "{short}")],
    "with more": [("x-api-key", "{key}a")],
    "a stranger's": [("x-api-key", STRANGERS)],
    "another secret": [("x-api-key", "{forged}")],
    "not Basic": [("Authorization", "Basic !!!")],
    "Basic without a password": [("Authorization", "Basic {nobody}")],
    "in a cookie": [("Cookie", "api_key={key}")],
}


@ON_ONE
async def test_malformed_and_unknown_keys_get_401(keyed: Keyed) -> None:
    key = await keyed.key("admin")
    texts = {
        "key": key,
        "KEY": key.upper(),
        "short": key[:-1],
        "forged": key[:-1] + ("a" if key[-1] != "a" else "b"),
        "nobody": base64.b64encode(key.encode()).decode(),
    }
    for case, lines in REFUSED.items():
        headers = [(name, value.format(**texts)) for name, value in lines]
        answer = await keyed.api.get("/rollouts", headers=headers)
        assert answer.status == 401, (case, answer)
        assert answer.headers["www-authenticate"].startswith("Bearer"), case
        assert answer.json["error_type"] == "Unauthorized", case
        assert "rollbook keys create" in answer.detail, case
        assert key[16:] not in answer.body.decode(), case
    # None of them ended the server or took the key away.
    assert (await keyed.ask(key)).status == 200


@ON_ONE
async def test_a_key_in_the_url_is_none(keyed: Keyed) -> None:
    key = await keyed.key("admin")
    assert (await keyed.api.get(f"/rollouts?api_key={key}")).status == 401


@ON_ONE
async def test_a_key_comes_in_either_header(keyed: Keyed) -> None:
    key = await keyed.key("reader")
    for header in ("Authorization", "authorization", "x-api-key", "X-API-Key"):
        value = key if header.lower() == "x-api-key" else f"bearer  {key}"
        assert (await keyed.api.get("/rollouts", headers={header: value})).status == 200, header


@ON_ONE
async def test_a_client_whose_url_may_hold_a_password_sends_the_key_as_one(keyed: Keyed) -> None:
    key = await keyed.key("reader")
    url = keyed.api.url.replace("http://", f"http://agent:{key}@")
    async with keyed.api.session.get(f"{url}/v1/agl/rollouts") as answer:
        assert answer.status == 200


async def test_key_changed_in_the_database_grants_nothing(keyed: Keyed, store_url: str) -> None:
    key, text = await keyed.make("reader")
    database = await databases.connect(store_url)
    try:
        other = digest(STRANGERS).hex()
        literal = f"X'{other}'" if store_url.startswith("sqlite") else f"'\\x{other}'::bytea"
        await database.execute(f"UPDATE keys SET hash = {literal}")
        keyed.grow_old()
        assert (await keyed.ask(text)).status == 401
        good = "X'" + key.hash.hex() + "'" if store_url.startswith("sqlite") else f"'\\x{key.hash.hex()}'::bytea"
        await database.execute(f"UPDATE keys SET hash = {good}, role = 'emperor'")
        keyed.grow_old()
        assert (await keyed.ask(text)).status == 403
    finally:
        await database.close()


async def test_only_a_hash_is_kept_and_nothing_is_logged(
    keyed: Keyed, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key, text = await keyed.make("reader")
    assert (await keyed.ask(text)).status == 200
    assert (await keyed.ask(text, "POST", "/rebuild")).status == 403
    assert (await keyed.ask(text + "x")).status == 401
    database = await databases.connect(store_url)
    (row,) = await database.rows("SELECT * FROM keys")
    await database.close()
    secret = text[16:]
    assert secret not in repr(row)
    assert bytes(row[1]) == digest(text)
    assert secret not in repr(key)
    told = [record for record in caplog.records if not record.name.startswith(("asyncio", "aiosqlite"))]
    assert not any(secret in repr(vars(record)) for record in told)
    assert any(vars(record).get("key") == key.key_id for record in told)


async def test_every_route_has_one_role() -> None:
    async with await open_store("memory://") as store:
        app = build_app(Partitions(store), front_end=TradingFrontEnd())
    protected = [(guarded.method, guarded.path) for guarded in PROTECTED]
    assert len(set(protected)) == len(protected)
    served = {
        (endpoint.method, endpoint.path)
        for endpoint in (*ROUTES, *DASHBOARD_ROUTES, *TradingFrontEnd.protected(), *SOCKETS)
    }
    for route in app.router.routes:
        assert isinstance(route, Route | WebSocketRoute)
        methods: set[str] = {WEBSOCKET} if isinstance(route, WebSocketRoute) else route.methods or set()
        served |= {(method, route.path) for method in methods - {"HEAD"}}
    assert served == set(protected)


def test_each_role_includes_the_roles_below_it() -> None:
    for place, role in enumerate(ROLES):
        assert [needed for needed in ROLES if may(role, needed)] == list(ROLES[: place + 1])


@ON_ONE
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.slow
async def test_role_may_use_exactly_the_routes_that_declare_it(keyed: Keyed, role: Role) -> None:
    key = await keyed.key(role)
    for route in PROTECTED:
        method, template, access = route.method, route.path, route.role
        # What does not end is asked for in tests of its own.
        if method == WEBSOCKET or template == "/ui/live":
            continue
        path = template.replace("{", "").replace("}", "")
        body: Any = None if method == "GET" else b'{"limit": 0}'
        headers = {"Content-Type": "application/json"}
        answer = await keyed.ask(key, method, f"/{path}", data=body, headers=headers)
        if access == "open" or may(role, access):
            assert answer.status not in {401, 403, 405}, (method, path, answer)
            # A route that is not there names no error; pages say it to people.
            is_page = path.startswith("/ui/")
            assert is_page or answer.status != 404 or answer.json["error_type"] == "NotFound", (method, path, answer)
        else:
            assert answer.status == 403, (method, path, answer)
            assert answer.json["error_type"] == "Forbidden"
            assert f"the role {access}" in answer.detail
        nobody = await keyed.api.send(method, f"/{path}", data=body, headers=headers)
        assert (nobody.status == 401) == (access != "open"), (method, path, nobody)


@ON_ONE
async def test_route_without_a_declared_role_is_not_found(store: Store, keyed: Keyed) -> None:
    key = await keyed.key("admin")

    async def secret(request: Any) -> Response:
        del request
        return Response("secret")

    app = build_app(Partitions(store), ring=keyed.ring)
    app.add_route("/secret", secret, ["GET", "POST"])
    async with served(app) as url, aiohttp.ClientSession() as session:
        for method, headers, status in (("GET", bearer(key), 404), ("POST", bearer(key), 405), ("GET", {}, 401)):
            async with session.request(method, f"{url}/secret", headers=headers) as answer:
                assert answer.status == status


SPELLINGS = [
    ("POST", "/rollouts/x%2Fattempts"),
    ("POST", "/rollouts/search%2F..%2Fx"),
    ("POST", "/rollouts/%73earch"),
    ("POST", "//v1/agl/../agl/rebuild"),
    ("POST", "//v1/agl/%72ebuild"),
    ("POST", "//v1/agl/rebuild/"),
    ("POST", "//V1/AGL/REBUILD"),
    ("POST", "//p/default/v1/agl/rebuild"),
    ("POST", "//p/%64efault/v1/agl/rebuild"),
    ("POST", "//p/%64efault/v1/agl/%72ebuild"),
    ("POST", "//p%2Fdefault/v1/agl/rebuild"),
    ("POST", "//livez/../v1/agl/rebuild"),
    ("POST", "//livez%2f..%2fv1/agl/rebuild"),
    ("PUT", "/rebuild"),
    ("GET", "/rebuild"),
]


@ON_ONE
async def test_no_spelling_of_a_path_gives_a_reader_more(keyed: Keyed) -> None:
    key = await keyed.key("reader")
    headers = {"Content-Type": "application/json"}
    for method, path in SPELLINGS:
        for sent, statuses in ((key, {403, 404, 405}), (None, {401})):
            answer = await keyed.ask(sent, method, path, data=b"{}", headers=headers)
            assert answer.status in statuses, (method, path, answer)


def _in(partition: str, path: str) -> str:
    return f"//p/{partition}/v1/agl{path}"


@ON_ONE
async def test_a_key_of_one_partition_opens_no_other(keyed: Keyed) -> None:
    admin, of_default = await keyed.key("admin"), await keyed.key("admin", partition="default")
    (await keyed.ask(admin, "PUT", _in("one", "/store"))).ok()
    assert (await keyed.ask(admin, path=_in("one", "/statistics"))).status == 200
    of_one = await keyed.key("admin", partition="one")
    assert (await keyed.ask(of_one, path=_in("one", "/statistics"))).status == 200
    assert (await keyed.ask(of_default)).status == 200
    assert (await keyed.ask(of_default, path=_in("default", "/statistics"))).status == 200
    for path in ("/statistics", _in("default", "/statistics"), _in("two", "/statistics"), "//metrics"):
        assert (await keyed.ask(of_one, path=path)).status == 403, path
    # It tells of all partitions, wherever it is asked for.
    assert (await keyed.ask(of_one, path="//p/one/metrics")).status == 403
    assert (await keyed.ask(admin, path="//metrics")).status == 200


@ON_ONE
async def test_comparison_reads_only_partitions_of_the_key(keyed: Keyed) -> None:
    admin, of_default = await keyed.key("admin"), await keyed.key("reader", partition="default")
    (await keyed.ask(admin, "PUT", _in("one", "/store"))).ok()
    path = "//ui/cohorts.json?a=&b=partition%3D"
    assert (await keyed.ask(admin, path=f"{path}one")).status == 200
    assert (await keyed.ask(of_default, path=f"{path}default")).status == 200
    for name in ("one", "none"):
        assert (await keyed.ask(of_default, path=f"{path}{name}")).status == 403


async def test_only_an_admin_creates_partitions(keyed: Keyed) -> None:
    admin, of_one = await keyed.key("admin"), await keyed.key("admin", partition="one")
    algorithm = await keyed.key("algorithm")
    for name in ("one", "two"):
        for key in (algorithm, admin):
            assert (await keyed.ask(key, path=_in(name, "/store"))).status == 404
        assert (await keyed.ask(algorithm, "PUT", _in(name, "/store"))).status == 403
        assert (await keyed.ask(None, "PUT", _in(name, "/store"))).status == 401
    assert (await keyed.ask(of_one, "PUT", _in("two", "/store"))).status == 403
    assert (await keyed.ask(of_one, "PUT", _in("one", "/store"))).ok()["partition"] == "one"
    for _ in range(2):
        assert (await keyed.ask(admin, "PUT", _in("two", "/store"))).ok()["partition"] == "two"
    assert (await keyed.ask(algorithm, path=_in("two", "/store"))).status == 200
    for name in ("No", "..", "%2e%2e", "a" * 41):
        assert (await keyed.ask(admin, "PUT", _in(name, "/store"))).status == 404


@ON_ONE
async def test_a_mistyped_partition_is_not_created_without_keys_either(keyed: Keyed) -> None:
    assert (await keyed.ask(None, path=_in("tpyo", "/store"))).status == 404
    assert (await keyed.ask(None, "POST", _in("tpyo", "/queues/rollouts/dequeue"))).status == 404
    assert (await keyed.ask(None, "PUT", _in("typo", "/store"))).ok()["partition"] == "typo"


@ON_ONE
async def test_refusals_do_not_reveal_which_partitions_exist(keyed: Keyed) -> None:
    admin = await keyed.key("admin")
    (await keyed.ask(admin, "PUT", _in("one", "/store"))).ok()
    answers = [await keyed.ask(None, path=_in(name, "/health")) for name in ("one", "none")]
    assert [(answer.status, answer.body) for answer in answers] == [(401, answers[0].body)] * 2
    of_two = await keyed.key("reader", partition="two")
    answers = [await keyed.ask(of_two, path=_in(name, "/store")) for name in ("one", "none")]
    assert [(answer.status, answer.body) for answer in answers] == [(403, answers[0].body)] * 2


async def test_readiness_hides_database_errors_from_clients_without_a_key(keyed: Keyed, store: Store) -> None:
    await store.close()
    answer = await keyed.api.get("//readyz")
    assert "closed store" in answer.json["missing"]["database"]
    await keyed.key("reader")
    assert (await keyed.ask(None)).status == 401
    answer = await keyed.api.get("//readyz")
    assert (answer.status, answer.json["missing"]) == (503, {"database": "see the server's log"})


@ON_ONE
async def test_idempotency_keys_are_separate_for_each_api_key(keyed: Keyed) -> None:
    one, two = await keyed.key("algorithm"), await keyed.key("algorithm")
    headers = {"Idempotency-Key": "same", "Content-Type": "application/json"}
    body = b'{"rollouts": [{"input": 1}]}'
    ids = [
        (await keyed.ask(key, "POST", "/queues/rollouts/enqueue", data=body, headers=headers)).ok(201)[0]["rollout_id"]
        for key in (one, two, one, two)
    ]
    assert ids == [ids[0], ids[1]] * 2
    assert ids[0] != ids[1]


async def test_it_is_kept_when_a_key_was_last_used(store: Store, store_url: str, clock: ManualClock) -> None:
    async with keyed_server(store, store_url, clock) as keyed:
        used, text = await keyed.make("reader")
        await keyed.make("reader")
        assert (await keyed.ask(text)).status == 200
    keys = await Keys.open(store_url, create=False)
    used_at = {key.key_id: key.used_at for key in await keys.all()}
    await keys.close()
    assert used_at.pop(used.key_id) == clock() - clock() % 60_000_000
    assert list(used_at.values()) == [None]


@ON_ONE
async def test_api_works_with_a_key_of_the_required_role(keyed: Keyed) -> None:
    key = await keyed.key("algorithm")
    keyed.api.session.headers.update(bearer(key))
    api: Api = keyed.api
    rollout_id, attempt_id = await api.claimed()
    done = await api.post(f"/rollouts/{rollout_id}/attempts/{attempt_id}", {"status": "succeeded"})
    assert done.ok()["status"] == "succeeded"
