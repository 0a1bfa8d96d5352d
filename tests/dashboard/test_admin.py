"""The admin page: secrets are displayed once, and the key of the current login cannot be revoked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.operations.schedule import Schedule
from store.server.partitions import Partitions
from store.server.process.scheduler import Scheduler
from store.server.quotas import Quota, Quotas
from store.testing import ManualClock
from tests.conftest import SQLITE
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, succeeded
from tests.journal.database_helpers import run_sql
from tests.server.api import Answer, Api, speaking_to
from tests.server.forked_operations import forked_operations
from tests.server.keyed import Keyed, isolated_database, keyed_server

__all__ = ["forked_operations"]


@pytest.fixture(params=[SQLITE])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return isolated_database(request, tmp_path)


@pytest.fixture
async def keyed(store: Store, store_url: str, clock: ManualClock) -> AsyncIterator[Keyed]:
    async with keyed_server(store, store_url, clock) as keyed:
        yield keyed


async def create_key(keyed: Keyed, key: str | None, **fields: str) -> Answer:
    """Send the form that makes a key."""
    answer = await keyed.ask(key, "POST", "//ui/admin/keys", data=fields)
    keyed.grow_old()
    return answer


def secret_in(answer: Answer) -> str:
    """Return the key that a page shows."""
    match = re.search(r"rbk_[0-9a-f]{10}_[a-z2-7]{32}", answer.body.decode())
    assert match is not None, answer
    return match[0]


async def enforced(keyed: Keyed, key: str | None, delay: str) -> Answer:
    """Send the form that makes keys required."""
    answer = await keyed.ask(key, "POST", "//ui/admin/enforce", data={"delay": delay}, allow_redirects=False)
    keyed.grow_old()
    return answer


async def test_keys_are_required_from_the_page_once_one_of_them_opens_it(keyed: Keyed) -> None:
    assert "There are no keys" in Read((await keyed.ask(None, path="//ui/admin")).body).text
    secret_in(await create_key(keyed, None, role="admin", partition="default"))
    secret_in(await create_key(keyed, None, role="reader"))
    refused = await enforced(keyed, None, "")
    assert refused.status == 409
    assert "no visitor could open this page" in Read(refused.body).text
    first = secret_in(await create_key(keyed, None, role="admin", name="me"))
    assert "Keys are not required" in Read((await keyed.ask(None, path="//ui/admin")).body).text
    assert (await enforced(keyed, None, "3600")).status == 303
    page = await keyed.ask(None, path="//ui/admin")
    assert "clients without a key get a warning" in Read(page.body).text
    assert "warning" in page.headers
    assert (await enforced(keyed, first, "")).status == 303
    assert (await keyed.ask(None, path="//ui/admin.json")).status == 401
    assert "Every request needs a key." in Read((await keyed.ask(first, path="//ui/admin")).body).text
    row = (await keyed.ask(first, path="//ui/admin.json")).ok()["keys"][-1]
    assert (row["name"], row["role"], row["partition"], row["state"], row["is_own"]) == (
        "me",
        "admin",
        None,
        "active",
        True,
    )


async def test_a_secret_is_shown_once_and_nowhere_else(keyed: Keyed) -> None:
    admin = await keyed.key("admin")
    answer = await create_key(keyed, admin, role="runner", name=HOSTILE, days="7")
    secret = secret_in(answer)
    assert answer.headers["cache-control"] == "no-store"
    assert (await keyed.ask(secret, path="/statistics")).status == 200
    for path in ("//ui/admin", "//ui/admin.json", "//ui/admin?all=1"):
        page = await keyed.ask(admin, path=path)
        assert secret.encode() not in page.body
        assert secret.rpartition("_")[2].encode() not in page.body
    read = Read((await keyed.ask(admin, path="//ui/admin")).body)
    assert HOSTILE in read.text
    assert not [mark for mark in read.marks if "onerror" in mark]
    rows = {row["name"]: row for row in (await keyed.ask(admin, path="//ui/admin.json")).ok()["keys"]}
    assert rows[HOSTILE]["expires_at"] - rows[HOSTILE]["created_at"] == 7 * 86_400 * 1_000_000


async def test_a_revoked_key_counts_no_more_and_ones_own_is_not_revoked(keyed: Keyed) -> None:
    admin_key, admin = await keyed.make("admin")
    other, text = await keyed.make("reader")
    refused = await keyed.ask(admin, "POST", f"//ui/admin/keys/{admin_key.key_id}/revoke")
    assert refused.status == 409
    assert "log in with another admin key" in Read(refused.body).text
    done = await keyed.ask(admin, "POST", f"//ui/admin/keys/{other.key_id}/revoke", allow_redirects=False)
    assert (done.status, done.headers["location"]) == (303, "/ui/admin")
    keyed.grow_old()
    assert (await keyed.ask(text)).status == 401
    assert (await keyed.ask(admin)).status == 200
    page = (await keyed.ask(admin, path="//ui/admin.json")).ok()
    assert ([row["key_id"] for row in page["keys"]], page["ended"]) == ([admin_key.key_id], 1)
    every = (await keyed.ask(admin, path="//ui/admin.json?all=1")).ok()["keys"]
    assert [row["state"] for row in every] == ["active", "revoked"]
    assert (await keyed.ask(admin, "POST", "//ui/admin/keys/nope/revoke")).status == 404


async def test_only_admins_see_keys_and_seals(keyed: Keyed) -> None:
    await keyed.key("admin")
    other, _ = await keyed.make("reader")
    key = await keyed.key("algorithm")
    for method, path in (
        ("GET", "//ui/admin.json"),
        ("GET", "//ui/admin/checks.json"),
        ("POST", "//ui/admin/keys"),
        ("POST", f"//ui/admin/keys/{other.key_id}/revoke"),
        ("GET", "//ui/audit/seal"),
        ("POST", "//ui/audit/verify"),
    ):
        assert (await keyed.ask(key, method, path)).status == 403, path
    assert "Seal" not in Read((await keyed.ask(key, path="//ui/audit")).body).text


async def test_an_admin_of_a_partition_has_to_do_with_its_keys_alone(keyed: Keyed) -> None:
    head, _ = await keyed.make("admin")
    key = await keyed.key("admin", partition="default")
    page = (await keyed.ask(key, path="//ui/admin.json")).ok()
    assert [row["partition"] for row in page["keys"]] == ["default"]
    assert [partition["name"] for partition in page["partitions"]] == ["default"]
    assert (await keyed.ask(key, "POST", f"//ui/admin/keys/{head.key_id}/revoke")).status == 403
    assert (await enforced(keyed, key, "")).status == 403
    await create_key(keyed, key, role="admin", partition="")
    assert [row.partition for row in await keyed.keys.unrevoked()].count(None) == 1
    links = Read((await keyed.ask(key, path="//ui/admin")).body).links
    assert "/metrics" not in links
    assert "/ui/admin/checks" not in links
    refused = await keyed.ask(key, path="//ui/admin/checks.json")
    assert (refused.status, "for all partitions" in refused.body.decode()) == (403, True)


@ON_BOTH
async def test_the_database_is_described_without_its_password(keyed: Keyed, store: Store) -> None:
    await succeeded(store)
    page: Any = (await keyed.ask(None, path="//ui/admin.json")).ok()
    counts = page["whole"]
    assert (counts["rollouts"], counts["attempts"]) == (1, 1)
    assert counts["size_bytes"] > 0
    assert counts["events"] == len([event async for event in store.log.tail()])
    assert counts["chain_head"] == (await store.log.verify()).chain_head
    text = Read((await keyed.ask(None, path="//ui/admin")).body).text
    assert "no event is deleted" in text
    assert re.search(r"Migrations revision \d{4}", text)


@ON_BOTH
async def test_checks_show_problems_and_their_remedies(keyed: Keyed, store_url: str) -> None:
    diagnosis = (await keyed.ask(None, path="//ui/admin/checks.json")).ok()["diagnosis"]
    names = [check["name"] for check in diagnosis["checks"]]
    assert {"schema", "guards", "sequences", "open files"} <= set(names)
    assert "port" not in names
    # Whether the disk has enough space depends on the machine.
    assert [
        check for check in diagnosis["checks"] if check["outcome"] == "problem" and check["name"] != "disk space"
    ] == []
    await run_sql(store_url, "DROP INDEX ix_idempotency_expires_at")
    text = Read((await keyed.ask(None, path="//ui/admin/checks")).body).text
    assert re.search(r"guards problem .*idempotency.* is missing", text)
    assert "rollbook verify --db" in text


async def test_the_checks_of_a_store_in_memory_are_a_note() -> None:
    async with await open_store("memory://") as store, speaking_to(Partitions(store)) as api:
        assert (await api.get("//ui/admin/checks.json")).ok()["diagnosis"] is None
        assert "The store of this server is in memory" in Read((await api.get("//ui/admin/checks")).body).text


async def test_a_server_that_takes_no_keys_says_so(api: Api) -> None:
    page = (await api.get("//ui/admin.json")).ok()
    assert (page["takes_keys"], page["keys"], page["partitions"]) == (False, [], None)
    refused = await api.send("POST", "//ui/admin/keys", data={"role": "admin"})
    assert refused.status == 422


async def test_a_server_without_a_schedule_says_so(api: Api) -> None:
    assert (await api.get("//ui/admin.json")).ok()["operations"] is None
    assert "This server runs no operations by itself" in Read((await api.get("//ui/admin")).body).text
    refused = await api.send("POST", "//ui/admin/operations/verify/run")
    assert refused.status == 409


@pytest.mark.usefixtures("forked_operations")
async def test_an_operation_is_started_from_the_page(store: Store, store_url: str) -> None:
    partitions = Partitions(store, store_url)
    scheduler = Scheduler(partitions, store_url, Schedule(sample_seconds=None, verify_at=time(3)))
    async with speaking_to(partitions, scheduler=scheduler) as api:
        verify, sample, compress = (await api.get("//ui/admin.json")).ok()["operations"]
        assert [operation["operation"] for operation in (sample, compress)] == ["verify_sample", "compress"]
        assert (sample["next_at"], compress["next_at"]) == (None, None)
        assert (verify["operation"], verify["state"], verify["attempted_at"]) == ("verify", None, None)
        assert verify["next_at"] is not None
        page = Read((await api.get("//ui/admin")).body)
        assert "Verify everything" in page.text
        assert page.marked("action").count("/ui/admin/operations/verify/run") == 1
        assert page.marked("action").count("/ui/admin/operations/compress/run") == 1
        for operation in ("backup", "retention", "remove", "unknown"):
            refused = await api.send("POST", f"//ui/admin/operations/{operation}/run")
            assert refused.status in {409, 422}, operation
        started = await api.send("POST", "//ui/admin/operations/verify/run", allow_redirects=False)
        assert (started.status, started.headers["location"]) == (303, "/ui/admin")
        async with asyncio.timeout(60):
            while not verify["ended_at"]:
                await asyncio.sleep(0.05)
                verify = (await api.get("//ui/admin.json")).ok()["operations"][0]
        assert (verify["state"], verify["differences"], verify["runs"]) == ("succeeded", 0, 1)
        text = Read((await api.get("//ui/admin")).body).text
        assert "0 differences" in text
        # It is not scheduled, but needs no setting.
        started = await api.send("POST", "//ui/admin/operations/compress/run", allow_redirects=False)
        assert started.status == 303
        async with asyncio.timeout(60):
            while not compress["ended_at"]:
                await asyncio.sleep(0.05)
                compress = (await api.get("//ui/admin.json")).ok()["operations"][2]
        assert compress["state"] == "succeeded"
    await scheduler.close()


async def test_only_an_admin_starts_an_operation(keyed: Keyed) -> None:
    reader = secret_in(await create_key(keyed, None, role="reader"))
    refused = await keyed.ask(reader, "POST", "//ui/admin/operations/verify/run")
    assert refused.status == 403


async def test_the_quota_of_a_partition_is_one_line(store: Store, store_url: str) -> None:
    quota = Quota(events=5_000_000, bytes=20 * 10**9, calls=500)
    async with speaking_to(Partitions(store, quotas=Quotas(quota))) as api:
        await api.enqueue(1, 2)
        text = Read((await api.get("//ui/admin")).body).text
        assert re.search(r"Quota\s*2 of 5,000,000 events; \d+ KiB of 18\.6 GiB; 500 calls per second", text), text
        values = (await api.get("//ui/admin.json")).ok()
        size = values["whole"]["size_bytes"]
        assert values["quota"] == [
            {"kind": "events", "limit": 5_000_000, "used": 2},
            {"kind": "bytes", "limit": 20 * 10**9, "used": size},
            {"kind": "calls", "limit": 500, "used": None},
        ]
    async with speaking_to(Partitions(store)) as api:
        assert (await api.get("//ui/admin.json")).ok()["quota"] == []
        assert "Quota" not in Read((await api.get("//ui/admin")).body).text
