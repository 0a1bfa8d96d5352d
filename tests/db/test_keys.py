"""Storage of API keys: only hashes, once for all partitions of a database, and never in a log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store import open_store
from store.db.schema import migrate
from store.db.url import with_partition
from store.errors import Conflict, Invalid, NotFound
from store.sql import api_keys as keys_module
from store.sql.api_keys import Keys, digest, key_id_in
from tests import databases
from tests.alembic_check import migrate_from_scratch
from tests.conftest import POSTGRES, SQLITE


@pytest.fixture(params=[SQLITE, POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of its own, in which there is nothing yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keys.db'}"
    create: Callable[[], str] = request.getfixturevalue("postgres_database")
    return create()


@pytest.fixture
async def keys(url: str) -> AsyncIterator[Keys]:
    opened = await Keys.open(url, create=True)
    yield opened
    await opened.close()


async def test_key_is_returned_once_and_stored_as_a_hash(keys: Keys) -> None:
    key, text = await keys.create("runner", partition="one", name="é", expires_seconds=1.5)
    assert re.fullmatch(r"rbk_[0-9a-f]{10}_[a-z2-7]{32}", text)
    assert key_id_in(text) == key.key_id
    assert key.hash == digest(text)
    assert key.expires_at == key.created_at + 1_500_000
    assert await keys.all() == [key]


@pytest.mark.parametrize("url", [SQLITE], indirect=True)
async def test_no_two_keys_are_alike(keys: Keys) -> None:
    texts = [(await keys.create("reader"))[1] for _ in range(20)]
    assert len({text[4:14] for text in texts}) == len({text[15:] for text in texts}) == 20


async def test_every_partition_has_the_keys_of_the_default_one(url: str) -> None:
    other = with_partition(url, "other")
    await (await open_store(other)).close()
    with pytest.raises(NotFound):
        await Keys.open(other, create=False)
    one, two = await Keys.open(other, create=True), await Keys.open(url, create=False)
    key, _ = await one.create("admin")
    assert await two.all() == [key]
    for opened in (one, two):
        await opened.close()


async def test_revoked_key_stays_revoked_and_listed(keys: Keys) -> None:
    first, _ = await keys.create("admin")
    second, _ = await keys.create("admin")
    revoked = await keys.revoke(first.key_id)
    assert revoked.revoked_at is not None
    assert await keys.revoke(first.key_id) == revoked
    assert await keys.unrevoked() == [second]
    assert [key.revoked_at for key in await keys.all()] == [revoked.revoked_at, None]
    with pytest.raises(NotFound, match="rollbook keys ls"):
        await keys.revoke("0000000000")


async def test_when_it_was_used_is_kept_for_those_that_exist(keys: Keys) -> None:
    reader, _ = await keys.create("reader")
    await keys.note_used({reader.key_id: 60_000_000, "0000000000": 1})
    assert [key.used_at for key in await keys.all()] == [60_000_000]


async def test_keys_leave_no_trace_in_the_log_nor_in_its_proof(keys: Keys, url: str) -> None:
    async with await open_store(url) as store:
        await store.enqueue_rollout(1)
        before = await store.log.verify()
        key, _ = await keys.create("reader")
        await keys.revoke(key.key_id)
        after = await store.log.verify()
        assert after.ok
        assert after == before.model_copy(update={"seconds": after.seconds})
        await store.enqueue_rollout(2)
        assert (await store.log.verify()).ok


async def test_keys_are_made_while_others_write(keys: Keys, url: str) -> None:
    async with await open_store(url) as store:
        await asyncio.gather(*(keys.create("reader") for _ in range(5)), *(store.enqueue_rollout(n) for n in range(20)))
        assert (await store.log.verify()).ok
        assert (await store.statistics()).get("total_rollouts") == 20
    assert len(await keys.unrevoked()) == 5


async def test_there_are_only_so_many(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "MAX_KEYS", 2)
    first, _ = await keys.create("reader")
    await keys.create("reader")
    with pytest.raises(Conflict, match="revoke"):
        await keys.create("reader")
    await keys.revoke(first.key_id)
    await keys.create("reader")


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": "No"},
        {"partition": ""},
        {"partition": "../x"},
        {"name": "x" * 201},
        {"name": "\x00"},
        {"expires_seconds": 0},
        {"expires_seconds": -1},
        {"expires_seconds": float("nan")},
        {"expires_seconds": float("inf")},
    ],
    ids=str,
)
async def test_invalid_key_fields_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    keys = await Keys.open(f"sqlite:///{tmp_path / 'keys.db'}", create=True)
    with pytest.raises(Invalid):
        await keys.create("reader", **wrong)  # pyright: ignore[reportArgumentType] - what is wrong with it
    assert await keys.all() == []
    await keys.close()


@pytest.mark.parametrize("url", ["memory://", "http://127.0.0.1:4747", "https://host"])
async def test_only_a_database_keeps_keys(url: str) -> None:
    with pytest.raises(Invalid, match="sqlite"):
        await Keys.open(url, create=True)


@pytest.mark.postgres
async def test_a_role_that_was_let_in_before_keeps_being_let_in(postgres_database: Callable[[], str]) -> None:
    url = postgres_database()
    await migrate_from_scratch(url, "0002")
    database = await databases.connect(url)
    role = "keys_" + url.rpartition("/")[2]
    await database.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA rollbook_default TO {role}")
    await database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency TO {role}")
    await migrate(url)
    await database.execute(f"SET ROLE {role}")
    assert await database.rows("SELECT * FROM keys") == []
    await database.execute("UPDATE keys SET used_at = 1; RESET ROLE")
    await database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await database.close()
