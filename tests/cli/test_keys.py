"""`rollbook keys`, and how `rollbook serve` depends on them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from store import open_store
from store.cli.output.times import seconds_in
from store.db.url import with_partition
from store.sql.api_keys import Keys, digest
from tests.cli.conftest import Rollbook, runner
from tests.conftest import POSTGRES, SQLITE
from tests.server.keyed import bearer, isolated_database
from tests.server.test_serving import run, serving

KEY = re.compile(r"rbk_([0-9a-f]{10})_[a-z2-7]{32}\n")


ON_BOTH_DATABASES = pytest.mark.parametrize("url", [SQLITE, POSTGRES], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without a store: a file, or what `ON_BOTH_DATABASES` says."""
    return isolated_database(request, tmp_path) if hasattr(request, "param") else f"sqlite:///{tmp_path / 'run.db'}"


@pytest.fixture
def rollbook(url: str, monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    return runner(url, monkeypatch)


async def _stored_hashes(url: str) -> dict[str, bytes]:
    keys = await Keys.open(url, create=False)
    try:
        return {key.key_id: key.hash for key in await keys.all()}
    finally:
        await keys.close()


def test_key_is_printed_on_stdout_and_advice_on_stderr(rollbook: Rollbook, url: str) -> None:
    printed = rollbook("keys", "create", "--role", "runner", "--expires", "30d")
    match = KEY.fullmatch(printed.out)
    assert printed.code == 0
    assert match
    assert asyncio.run(_stored_hashes(url)) == {match[1]: digest(printed.out.strip())}
    assert "shown only once" in printed.err
    assert "rollbook keys enforce" in printed.err
    assert printed.out.strip() not in printed.err
    assert rollbook("keys", "enforce").out == "keys are required\n"
    assert "rollbook keys enforce" not in rollbook("keys", "create", "--role", "admin").err


def test_key_list_shows_metadata_without_secrets(rollbook: Rollbook) -> None:
    created = rollbook("keys", "create", "--role", "reader", "--partition", "one", "--name", "night é", "--json").json
    other = rollbook("keys", "create", "--role", "admin", "--expires", "12h", "--json").json
    for terminal in (False, True):
        listed = rollbook("keys", "ls", terminal=terminal).out
        assert all(key["id"] in listed and key["key"][15:] not in listed for key in (created, other))
    rows = rollbook("keys", "ls").table
    assert [(row["id"], row["role"], row["partition"], row["state"], row["name"]) for row in rows] == [
        (created["id"], "reader", "one", "active", "night é"),
        (other["id"], "admin", "all", "active", ""),
    ]
    assert rows[1]["expires"] > rows[1]["created"] > ""
    as_json = rollbook("keys", "ls", "--json").json
    assert as_json == [{name: value for name, value in key.items() if name != "key"} for key in (created, other)]
    assert as_json[1]["expires_at"] - as_json[1]["created_at"] == pytest.approx(12 * 3600)


@ON_BOTH_DATABASES
def test_a_key_is_revoked_by_its_id_its_beginning_or_itself(rollbook: Rollbook) -> None:
    keys = [rollbook("keys", "create", "--role", "admin", "--json").json for _ in range(3)]
    rollbook("keys", "enforce")
    for prefix, key in zip((keys[0]["id"], keys[1]["id"][:9], keys[2]["key"]), keys, strict=True):
        printed = rollbook("keys", "revoke", prefix)
        assert printed.out == f"{key['id']} revoked\n"
        assert ("No key is left" in printed.err) == (key is keys[2])
    assert rollbook("keys", "ls").table == []
    assert [row["state"] for row in rollbook("keys", "ls", "--all").table] == ["revoked"] * 3
    assert rollbook("keys", "revoke", keys[0]["id"], "--json").json["state"] == "revoked"


@ON_BOTH_DATABASES
def test_keys_are_enforced_after_a_delay_and_no_longer(rollbook: Rollbook) -> None:
    assert rollbook("keys", "enforce").code == 5
    rollbook("partitions", "create", "default")
    refused = rollbook("keys", "enforce")
    assert (refused.code, "rollbook keys create --role admin" in refused.err) == (1, True)
    rollbook("keys", "create", "--role", "admin")
    scheduled = rollbook("keys", "enforce", "--in", "1h")
    assert scheduled.out.startswith("keys are required from 20")
    assert "rollbook keys enforce --off" in scheduled.err
    assert rollbook("keys", "enforce", "--off").out == "keys are no longer required\n"
    assert rollbook("keys", "enforce", "--off", "--in", "1h").code == 2


def test_a_key_is_rotated(rollbook: Rollbook) -> None:
    old = rollbook("keys", "create", "--role", "runner", "--name", "night", "--json").json
    rotated = rollbook("keys", "rotate", old["id"][:9], "--json")
    assert f"The old key {old['id']} stays valid until 20" in rotated.err
    assert (rotated.json["role"], rotated.json["name"]) == ("runner", "night")
    last = rollbook("keys", "rotate", rotated.json["id"], "--now")
    assert KEY.fullmatch(last.out)
    assert f"The old key {rotated.json['id']} is revoked" in last.err
    states = {row["id"]: row["state"] for row in rollbook("keys", "ls", "--all").table}
    assert (states[old["id"]], states[rotated.json["id"]], len(states)) == ("active", "revoked", 3)
    again = rollbook("keys", "rotate", rotated.json["id"])
    assert (again.code, "is revoked" in again.err) == (1, True)
    assert rollbook("keys", "rotate", old["id"], "--now", "--grace", "1h").code == 2


@pytest.mark.slow
def test_missing_or_ambiguous_key_prefix_is_refused(rollbook: Rollbook) -> None:
    rollbook("keys", "create", "--role", "admin")
    rollbook("keys", "create", "--role", "admin")
    missing = rollbook("keys", "revoke", "zz")
    assert (missing.code, "keys ls" in missing.err) == (5, True)
    for _ in range(16):
        rollbook("keys", "create", "--role", "reader")
    firsts = [row["id"][0] for row in rollbook("keys", "ls").table]
    twice = next(prefix for prefix in firsts if firsts.count(prefix) > 1)
    ambiguous = rollbook("keys", "revoke", twice)
    assert (ambiguous.code, "add more characters" in ambiguous.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("create",),
        ("create", "--role", "emperor"),
        ("create", "--role", "admin", "--partition", "../x"),
        ("create", "--role", "admin", "--expires", "soon"),
        ("create", "--role", "admin", "--expires", "0d"),
        ("create", "--role", "admin", "--expires", "5months"),
        ("create", "--role", "admin", "--expires", "999999999d"),
        ("create", "--role", "admin", "--db", "memory://"),
        ("list", "--db", "http://127.0.0.1:4747"),
        ("revoke",),
    ],
    ids=" ".join,
)
def test_mistyped_keys_command_is_a_usage_error(bare: Rollbook, arguments: tuple[str, ...]) -> None:
    printed = bare("keys", *arguments)
    assert (printed.code, printed.out) == (2, "")
    assert printed.err


def test_keys_of_a_store_that_is_not_there_are_not_found(bare: Rollbook) -> None:
    assert bare("keys", "ls").code == bare("keys", "revoke", "0").code == 5


@ON_BOTH_DATABASES
def test_a_database_without_the_partition_that_holds_keys_has_none(rollbook: Rollbook, url: str) -> None:
    one, two = with_partition(url, "one"), with_partition(url, "two")
    rollbook("partitions", "create", "one")
    assert rollbook("keys", "ls", db=one).table == []
    assert rollbook("keys", "ls", db=two).code == 5
    created = rollbook("keys", "create", "--role", "admin", "--json", db=one).json
    assert [row["id"] for row in rollbook("keys", "ls", db=one).table] == [created["id"]]
    assert rollbook("partitions", "ls").out.split() == ["default", "one"]


@pytest.mark.parametrize("text,seconds", [("30d", 30 * 86400), ("12h", 43200), ("1.5 m", 90), ("90S", 90)])
def test_a_length_of_time_is_read(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.slow
def test_other_machines_are_let_in_with_keys_alone(make_url: Callable[[str], str]) -> None:
    refused = run("serve", "--db", make_url("run.db"), "--host", "0.0.0.0", "--port", "0")
    assert (refused.exit_code, "rollbook keys create" in refused.stderr) == (2, True)
    assert not Path(make_url("run.db").removeprefix("sqlite:///")).exists()


async def _status(url: str, key: str | None = None) -> int:
    headers = {} if key is None else bearer(key)
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/v1/agl/statistics") as answer:
        return answer.status


async def _until(url: str, status: int, key: str | None = None) -> None:
    async with asyncio.timeout(60):
        while await _status(url, key) != status:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


@pytest.mark.slow
def test_a_server_that_runs_gets_a_partition_and_follows_enforcement(url: str, rollbook: Rollbook) -> None:
    with serving("serve", "--db", url, "--port", "0") as (_, endpoint):
        created = rollbook("partitions", "create", "one", db=endpoint)
        assert (created.code, created.out) == (0, f"{endpoint}/p/one\n")
        assert rollbook("ls", "rollouts", db=f"{endpoint}/p/one").code == 0
        assert rollbook("ls", "rollouts", db=f"{endpoint}/p/two").code == 5
        asyncio.run(_enforce_and_stop(url, endpoint))
    assert rollbook("partitions", "ls").out.split() == ["default", "one"]


async def _enforce_and_stop(url: str, endpoint: str) -> None:
    assert await _status(endpoint) == 200
    keys = await Keys.open(url, create=False)
    _, text = await keys.create("reader")
    await keys.enforce()
    await _until(endpoint, 401)
    assert await _status(endpoint, text) == 200
    await keys.stop_enforcing()
    await _until(endpoint, 200)
    await keys.close()


@pytest.mark.slow
async def test_a_server_for_other_machines_stays_shut_when_its_last_key_is_revoked(url: str) -> None:
    keys = await Keys.open(url, create=True)
    key, text = await keys.create("reader")
    with serving("serve", "--db", url, "--port", "0", "--host", "0.0.0.0") as (_, listening):
        endpoint = f"http://127.0.0.1:{listening.rpartition(':')[2]}"
        assert await _status(endpoint, text) == 200
        await keys.revoke(key.key_id)
        await _until(endpoint, 401, text)
        assert await _status(endpoint) == 401
    await keys.close()


@pytest.mark.slow
async def test_the_keys_of_a_database_count_for_a_server_of_any_of_its_partitions(url: str) -> None:
    keys = await Keys.open(url, create=True)
    _, of_one = await keys.create("admin", partition="one")
    _, of_default = await keys.create("admin", partition="default")
    await keys.enforce()
    await keys.close()
    one = with_partition(url, "one")
    await (await open_store(one)).close()
    with serving("serve", "--db", one, "--port", "0") as (_, endpoint):
        assert [await _status(endpoint, key) for key in (None, of_default, of_one)] == [401, 403, 200]
