"""Many partitions on one server: separate data, opened on demand, and closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from store import open_store
from store.db.url import parse
from store.errors import Unavailable
from store.interface.store import Store
from store.server.partitions import Partitions, with_partition
from tests.runs.trading_runs import auto_run
from tests.server.api import ON_BOTH_DATABASES, Api, speaking_to

HANG = 20


async def _open(url: str) -> Store:
    return await open_store(url, create=False, scan_debounce_seconds=0)


async def _create(url: str, count: int) -> list[str]:
    """Create partitions and return their names, which no other test has."""
    names = [f"p{uuid4().hex[:12]}" for _ in range(count)]
    for name in names:
        await (await open_store(with_partition(url, name))).close()
    return names


@pytest.fixture
async def partitions(store: Store, store_url: str) -> AsyncIterator[Partitions]:
    partitions = Partitions(store, store_url, _open, limit=2)
    yield partitions
    await partitions.close()


@pytest.fixture
async def api(partitions: Partitions) -> AsyncIterator[Api]:
    async with speaking_to(partitions) as api:
        yield api


def _in(name: str, path: str) -> str:
    return f"//p/{name}/v1/agl{path}"


async def test_location_of_a_fork_is_inside_its_partition(api: Api, store_url: str) -> None:
    (one,) = await _create(store_url, 1)
    async with await open_store(with_partition(store_url, one)) as beside:
        run = await auto_run(beside, tickers=["RIG"])
    part = {"phase": "risk", "scopes": ["RIG"], "confirm_side_effects": True}
    begun = await api.post(_in(one, f"/rollouts/{run.rollout_id}/forks"), part)
    attempt = begun.ok(201)["attempt"]
    assert begun.headers["location"] == f"/p/{one}/v1/agl/rollouts/{run.rollout_id}/attempts/{attempt['attempt_id']}"
    assert (await api.get("/" + begun.headers["location"])).ok() == attempt
    assert (await api.get(f"/rollouts/{run.rollout_id}/lineage")).status == 404


@ON_BOTH_DATABASES
async def test_partitions_never_mix(api: Api, store_url: str) -> None:
    one, two = await _create(store_url, 2)
    body = {"rollouts": [{"input": "for one"}]}
    (created,) = (await api.post(_in(one, "/queues/rollouts/enqueue"), body)).ok(201)
    for elsewhere in (_in(two, ""), ""):
        assert (await api.post(f"{elsewhere}/queues/rollouts/dequeue")).ok() == []
        assert (await api.get(f"{elsewhere}/rollouts/{created['rollout_id']}")).ok() is None
    (claimed,) = (await api.post(_in(one, "/queues/rollouts/dequeue"))).ok()
    assert claimed["rollout_id"] == created["rollout_id"]
    stores = [(await api.get(path)).ok() for path in ("/store", _in(one, "/store"), _in(two, "/store"))]
    assert [entry["partition"] for entry in stores][1:] == [one, two]
    assert len({entry["store_id"] for entry in stores}) == 3


async def test_the_partition_at_the_root_has_its_name_too(api: Api, store_url: str) -> None:
    name = parse(store_url).partition
    await api.enqueue("here")
    assert (await api.get(_in(name, "/rollouts"))).ok()["total"] == 1


@ON_BOTH_DATABASES
async def test_a_partition_that_does_not_exist_says_how_it_is_made(api: Api, store_url: str) -> None:
    name = f"p{uuid4().hex[:12]}"
    answer = await api.get(_in(name, "/health"))
    assert answer.status == 404
    assert answer.json["error_type"] == "NotFound"
    assert f"rollbook partitions create {name}" in answer.detail
    await (await open_store(with_partition(store_url, name))).close()
    assert (await api.get(_in(name, "/health"))).status == 200


async def test_no_other_name_reaches_anything(api: Api, store_url: str) -> None:
    names = ["", "..", ".", "%2e%2e", "..%2f..%2fetc", "Upper", "1st", "a-b", "a" * 41, "a%00", "x'--", "é"]
    statuses = {name: (await api.get(_in(name, "/health"))).status for name in names}
    assert {name: status for name, status in statuses.items() if status not in {400, 404}} == {}
    path = parse(store_url).path
    assert path is not None
    assert {file.suffix for file in path.parent.iterdir()} <= {".db", ".db-wal", ".db-shm", ".lock"}


async def test_traversal_does_not_leave_the_partition(api: Api, store_url: str) -> None:
    (one,) = await _create(store_url, 1)
    assert (await api.get(f"//p/{one}/../../v1/agl/health")).status == 404
    assert (await api.get(f"//p/{one}")).status == 404
    assert (await api.get(f"//p/{one}/p/{one}/v1/agl/health")).status == 404


async def test_percent_encoded_ids_work_in_a_partition(api: Api, store_url: str) -> None:
    (one,) = await _create(store_url, 1)
    assert (await api.post(_in(one, "/workers/a%2Fb"))).ok()["worker_id"] == "a/b"


async def test_the_least_recently_used_partition_is_let_go(api: Api, store_url: str, partitions: Partitions) -> None:
    one, two, three = await _create(store_url, 3)
    for name in (one, two, one, three, two, one):
        assert (await api.post(_in(name, f"/workers/{name}"))).status == 200
        assert len(partitions) <= 2
    for name in (one, two, three):
        assert (await api.get(_in(name, "/workers"))).ok()["total"] == 1


async def test_a_partition_in_use_is_never_let_go(api: Api, store_url: str, partitions: Partitions) -> None:
    one, two, three = await _create(store_url, 3)
    async with asyncio.timeout(HANG), partitions.use(one), partitions.use(two):
        refused = await api.get(_in(three, "/health"))
        assert (refused.status, refused.json["error_type"]) == (503, Unavailable.__name__)
    async with asyncio.timeout(HANG):
        assert (await api.get(_in(three, "/health"))).status == 200


@ON_BOTH_DATABASES
async def test_a_partition_asked_for_by_many_at_once_is_opened_once(store: Store, store_url: str) -> None:
    (one,) = await _create(store_url, 1)
    opened: list[str] = []

    async def open_slowly(url: str) -> Store:
        opened.append(url)
        return await _open(url)

    partitions = Partitions(store, store_url, open_slowly)
    try:
        async with speaking_to(partitions) as api, asyncio.timeout(HANG):
            answers = await asyncio.gather(*[api.get(_in(one, "/store")) for _ in range(20)])
    finally:
        await partitions.close()
    assert len({answer.ok()["store_id"] for answer in answers}) == 1
    # The server also opens the partitions of other tests in this database, to look for overdue attempts.
    assert len([url for url in opened if one in url]) == 1


async def test_a_store_in_memory_has_no_other_partitions() -> None:
    async with await open_store("memory://") as store, speaking_to(Partitions(store)) as api:
        assert (await api.get(_in("default", "/health"))).status == 200
        assert (await api.get(_in("other", "/health"))).status == 404


@pytest.mark.parametrize(
    "url,name,expected",
    [
        ("sqlite:///run.db", "a", "sqlite:///run.db?partition=a"),
        ("sqlite:////tmp/run.db?durability=normal", "a", "sqlite:////tmp/run.db?durability=normal&partition=a"),
        ("postgresql://u:p@h:5432/db?partition=x", "a", "postgresql://u:p@h:5432/db?partition=a"),
        ("postgresql://h/db?partition=x", "default", "postgresql://h/db"),
    ],
)
def test_a_url_names_another_partition(url: str, name: str, expected: str) -> None:
    assert with_partition(url, name) == expected
    assert parse(expected).partition == name


def test_partitions_of_a_file_lie_beside_it() -> None:
    assert parse(with_partition("sqlite:///runs/run.db", "a")).path == Path("runs/run.a.db")
