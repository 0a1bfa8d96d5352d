"""Access to the dashboard: a key on the login page, a cookie, and the rights of each role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from store import open_store
from store.dashboard.site import ROUTES
from store.db.url import with_partition
from store.interface.store import Store
from store.server.auth import admission
from store.server.routes.dashboard import COOKIE
from store.testing import ManualClock
from tests.conftest import SQLITE
from tests.server.api import Answer
from tests.server.keyed import Keyed, isolated_database, keyed_server

HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(params=[SQLITE])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return isolated_database(request, tmp_path)


@pytest.fixture
async def keyed(
    store: Store, store_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Keyed]:
    monkeypatch.setattr(admission, "CHECK_SECONDS", 0.02)
    async with keyed_server(store, store_url, clock) as keyed:
        yield keyed


async def visit(keyed: Keyed, path: str, key: str | None = None, **headers: str) -> Answer:
    """Ask for a page as a browser does that keeps a key."""
    return await keyed.ask(None, "GET", f"/{path}", headers=cookie(key) | HTML | headers, allow_redirects=False)


async def send(keyed: Keyed, path: str, fields: dict[str, str], key: str | None = None, **headers: str) -> Answer:
    """Send a form as a browser does."""
    sent = {"Origin": keyed.api.url} | cookie(key) | HTML | headers
    return await keyed.ask(None, "POST", f"/{path}", data=fields, headers=sent, allow_redirects=False)


def cookie(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Cookie": f"{COOKIE}={key}"}


def set_cookie(answer: Answer) -> Any:
    return SimpleCookie(answer.headers["set-cookie"])[COOKIE]


async def test_login_returns_to_the_requested_page(keyed: Keyed, subtests: pytest.Subtests) -> None:
    key = await keyed.key("reader")
    for path in ("/", "/ui/", "/ui/rollouts?status=failed&q=%C3%A9%26", "/ui/rollouts/a%2Fb%3Fc%20%C3%A9"):
        with subtests.test(path=path):
            sent_on = await visit(keyed, path)
            assert sent_on.status == 303
            login = sent_on.headers["location"]
            assert login.startswith("/ui/login?next=%2F")
            page = await visit(keyed, login)
            assert page.status == 200
            target = page.body.decode().partition('name="next" value="')[2].partition('"')[0].replace("&amp;", "&")
            logged_in = await send(keyed, "/ui/login", {"key": key, "next": target})
            assert logged_in.status == 303
            assert logged_in.headers["location"] == path


async def test_a_key_that_does_not_count_opens_nothing_and_is_not_repeated(keyed: Keyed) -> None:
    await keyed.key("reader")
    for wrong in ("", "secret", "rbk_0123456789_" + "a" * 32):
        refused = await send(keyed, "/ui/login", {"key": wrong, "next": "/ui/"})
        assert refused.status == 422
        assert "set-cookie" not in refused.headers
        assert not wrong or wrong not in refused.body.decode()
        assert "<form" in refused.body.decode()


async def test_the_cookie_is_for_this_server_and_no_program_of_a_page(keyed: Keyed) -> None:
    key = await keyed.key("reader")
    for forwarded, is_secure in ({}, False), ({"X-Forwarded-Proto": "https"}, True):
        origin = keyed.api.url.replace("http", "https") if is_secure else keyed.api.url
        cookie = set_cookie(await send(keyed, "/ui/login", {"key": f" {key}\n"}, Origin=origin, **forwarded))
        assert cookie.value == key
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        assert bool(cookie["secure"]) == is_secure
        # It ends with the browser's session, and at the latest with its key.
        assert (cookie["expires"], cookie["max-age"]) == ("", "")


ELSEWHERE = (
    "//evil.example/", "/\\evil.example", "\\\\evil.example", "https://evil.example/ui/", "javascript:alert(1)",
    "/ui/\r\nSet-Cookie: a=b", "/\t/evil.example", "", "evil", "/%0d%0a", "///evil.example", "//[", "http://[x",
)  # fmt: skip


async def test_the_login_leads_nowhere_else(keyed: Keyed, subtests: pytest.Subtests) -> None:
    key = await keyed.key("reader")
    for next_ in ELSEWHERE:
        with subtests.test(next=next_):
            assert (await visit(keyed, f"/ui/login?next={quote(next_, safe='')}")).status == 200
            logged_in = await send(keyed, "/ui/login", {"key": key, "next": next_})
            location = logged_in.headers["location"]
            assert location == "/ui/" or (location == next_ and next_ == "/%0d%0a")
            assert list(SimpleCookie(logged_in.headers["set-cookie"])) == [COOKIE]


async def test_a_key_is_found_among_the_cookies_that_others_on_this_machine_keep(
    keyed: Keyed, subtests: pytest.Subtests
) -> None:
    key = await keyed.key("reader")
    for others in ('seen={"a": 1}; ', "=; ", "a b; ", 'x="', "\xe9=\xe9; ", "{}; [](); "):
        with subtests.test(others=others):
            cookies = f"{others}; {COOKIE}={key}; last={{}}"
            assert (await visit(keyed, "/ui/rollouts", Cookie=cookies)).status == 200


async def test_login_is_skipped_when_no_key_is_required(keyed: Keyed) -> None:
    assert (await visit(keyed, "/ui/rollouts")).status == 200
    assert "No key is needed here" in (await visit(keyed, "/ui/login")).body.decode()
    sent = await send(keyed, "/ui/login", {"key": "x", "next": "/ui/rollouts"})
    assert (sent.status, sent.headers["location"]) == (303, "/ui/rollouts")
    assert "set-cookie" not in sent.headers


async def test_logout_clears_the_cookie(keyed: Keyed) -> None:
    key = await keyed.key("reader")
    assert (await visit(keyed, "/ui/rollouts", key)).status == 200
    out = await send(keyed, "/ui/logout", {}, key)
    assert (out.status, out.headers["location"]) == (303, "/ui/login")
    assert (set_cookie(out).value, set_cookie(out)["max-age"]) == ("", "0")


async def test_cookie_grants_the_access_of_its_key(keyed: Keyed) -> None:
    key = await keyed.key("reader")
    assert (await visit(keyed, "/ui/rollouts", key)).status == 200
    assert (await visit(keyed, "/ui/rollouts.json", key)).json["rollouts"] == []
    # The routes of programs too: pages of ours may ask them.
    assert (await visit(keyed, "/v1/agl/statistics", key)).status == 200
    assert (await visit(keyed, "/ui/rollouts.json")).status == 401
    assert (await keyed.ask(None, "HEAD", "//ui/rollouts", headers=cookie(key))).status == 200
    missing = await visit(keyed, "/ui/nothing", key)
    assert (missing.status, "There is no such page" in missing.body.decode()) == (404, True)
    assert (await keyed.ask(None, "GET", "//ui/nothing")).status == 401


ORIGINS = (None, "null", "", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1.evil.example")


async def test_changes_with_a_cookie_require_the_same_origin(keyed: Keyed, subtests: pytest.Subtests) -> None:
    key = await keyed.key("admin")
    for origin, path in product(ORIGINS, ("//ui/rollouts/ro-1/cancel", "/queues/rollouts/enqueue")):
        with subtests.test(origin=origin, path=path):
            headers = cookie(key) | HTML | ({} if origin is None else {"Origin": origin})
            refused = await keyed.ask(None, "POST", path, json={"rollouts": []}, headers=headers, allow_redirects=False)
            assert refused.status in {401, 403}
    headers = cookie(key) | {"Origin": keyed.api.url}
    enqueued = await keyed.ask(
        None, "POST", "/queues/rollouts/enqueue", json={"rollouts": [{"input": 1}]}, headers=headers
    )
    assert enqueued.status == 201, enqueued


async def test_reader_may_not_change_anything(keyed: Keyed, subtests: pytest.Subtests) -> None:
    await keyed.key("admin")
    key = await keyed.key("reader")
    paths = [route.path for route in ROUTES if route.method == "POST"]
    assert paths
    for path in paths:
        with subtests.test(path=path):
            refused = await send(keyed, path.replace("{", "").replace("}", ""), {}, key)
            assert refused.status == 403
            assert "requires the role" in refused.body.decode()


async def test_a_key_of_a_partition_opens_its_partition_alone(keyed: Keyed) -> None:
    url = with_partition(keyed.url, "mine")
    async with await open_store(url, scan_debounce_seconds=0) as mine:
        rollout = await mine.enqueue_rollout(1)
    key = await keyed.key("reader", partition="mine")
    logged_in = await send(keyed, "/ui/login", {"key": key, "next": "/ui/"})
    assert logged_in.headers["location"] == "/p/mine/ui/"
    assert rollout.rollout_id in (await visit(keyed, "/p/mine/ui/rollouts", key)).body.decode()
    for path in ("/ui/rollouts", "/p/other/ui/rollouts", "/ui/rollouts.json", "/ui/live"):
        assert (await visit(keyed, path, key)).status == 403
    refused = await visit(keyed, "/ui/rollouts?status=failed", key)
    assert "valid for the partition &#39;mine&#39; only" in refused.body.decode()
    assert 'href="/ui/login?next=/ui/rollouts%3Fstatus%3Dfailed"' in refused.body.decode()
    # What it may not look at is not named to it either.
    assert "/p/default/" not in (await visit(keyed, "/p/mine/ui/rollouts", key)).body.decode()


async def test_the_news_end_with_the_key(keyed: Keyed) -> None:
    await keyed.key("admin")
    key, text = await keyed.make("reader")
    address = f"{keyed.api.url}/ui/live?after=0"
    async with keyed.api.session.get(address, headers=cookie(text)) as stream:
        assert stream.status == 200
        assert await stream.content.readline() == b"retry: 1000\n"
        await keyed.revoke(key)
        assert b"data" not in await stream.content.read()
    assert (await visit(keyed, "/ui/live", text)).status in {303, 401}


async def test_every_answer_has_a_strict_content_security_policy(keyed: Keyed, store: Store) -> None:
    key = await keyed.key("reader")
    await store.enqueue_rollout(1)
    for path in (
        "/ui/login",
        "/ui/rollouts",
        "/ui/rollouts.json",
        "/ui/nothing",
        "/ui/rollouts",
        "/ui/static/0/app.js",
    ):
        headers = (await visit(keyed, path, key)).headers
        rules = [rule.strip().partition(" ") for rule in headers["content-security-policy"].split(";")]
        policy = {name: sources for name, _, sources in rules}
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
    async with keyed.api.session.get(f"{keyed.api.url}/ui/live?after=0", headers=cookie(key)) as stream:
        assert "default-src 'none'" in stream.headers["content-security-policy"]
