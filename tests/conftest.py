"""Fixtures for every test: a clock, a Postgres, a fresh empty store on each backend.

`store` is imported inside the fixtures, so that a test of one part needs only that part.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests import postgres, wheel_environment
from tests.torture import IS_TORTURE, Rounds, rounds

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.testing import ManualClock
    from tests.partition_pool import PartitionPool

pytest_plugins = ["tests.costs"]

# The contract lies in the package, where pytest would not look for asserts to explain.
pytest.register_assert_rewrite("store.testing.contract")

# A shell that starts the tests in the background has them ignore Ctrl+C, and all that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_MEMORY = Path("/dev/shm")
"""A directory of Linux whose files are in memory."""
_REQUIRED_BYTES = 12 * 2**30
"""Files of tests are kept in memory only if this much is free. A run of all tests needs about half of it."""


def _has_enough_memory() -> bool:
    try:
        disk = os.statvfs(_MEMORY)
    except OSError:
        return False
    # Some tests start programs from these files.
    can_run_programs = not disk.f_flag & getattr(os, "ST_NOEXEC", 0)
    free = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available)
    return can_run_programs and os.access(_MEMORY, os.W_OK) and free >= _REQUIRED_BYTES


# In memory, a commit does not wait for a disk, and thousands of files are deleted at once. Test processes and the
# programs that they start inherit the variable.
if "TMPDIR" not in os.environ and _has_enough_memory():
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None

# A client of HTTP reads all authorities that the system trusts, which takes 20 ms. No test calls another machine.
_AUTHORITY = str(Path(__file__).with_name("authority.pem"))
if os.environ.get("SSL_CERT_FILE") != _AUTHORITY:
    # Test processes inherit both variables. `tests.peer_environment` installs packages with the second.
    os.environ["ROLLBOOK_TEST_AUTHORITIES"] = os.environ.get("SSL_CERT_FILE", "")
    os.environ["SSL_CERT_FILE"] = _AUTHORITY

# The duration of an example has no limit, because the machine may be loaded. Each run uses the same examples, so a
# failure can be reproduced. The torture tests use new examples.
settings.register_profile(
    "suite", deadline=None, derandomize=not IS_TORTURE, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

SQLITE = pytest.param("sqlite", id="sqlite")
POSTGRES = pytest.param("postgres", id="postgres", marks=pytest.mark.postgres)

_OVER_HTTP = frozenset({"client", "dashboard", "llm_proxy", "server"})
"""The folders whose tests start a server."""
_ON_POSTGRES = frozenset({"postgres_server", "postgres_url", "postgres_database", "private_postgres"})
"""The fixtures that start a Postgres."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of `make torture`, and mark what `make test-fast` leaves out, by folder and parameters."""
    here = Path(__file__).parent
    if not IS_TORTURE:
        full = [item for item in items if item.get_closest_marker("torture_only")]
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if not item.get_closest_marker("torture_only")]
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if item.path.relative_to(here).parts[0] in _OVER_HTTP or "http" in values:
            item.add_marker(pytest.mark.http)
        if "postgres" in values or not _ON_POSTGRES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.postgres)


def pytest_collection(session: pytest.Session) -> None:
    """Import a part of the tests before all of them are collected, in each of several processes a different part.

    In the same order, each process would compile every module, because they all come to it at about the same time.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    here = Path(__file__).parent
    number = int(worker["workerid"].removeprefix("gw"))
    for path in sorted(here.rglob("test_*.py"))[number :: worker["workercount"]]:
        # Collection imports it again, and reports why it cannot be imported.
        with contextlib.suppress(Exception, pytest.fail.Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(here.parent).with_suffix("").parts))


def pytest_sessionstart() -> None:
    """Turn off garbage collection until all tests are collected. Collection creates many objects and no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Turn on garbage collection for new objects only, so that it never visits the modules and the collected tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until a test moves it."""
    from store.testing import ManualClock

    return ManualClock()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout. Tests that use it belong to the group `install`, so that it is built once."""
    return wheel_environment.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what it depends on."""
    environment = tmp_path_factory.mktemp("environment")
    wheel_environment.install_wheel(wheel, environment)
    return environment


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of the suite's Postgres, one for each test process: ours, or that of ROLLBOOK_TEST_POSTGRES_URL."""
    if postgres.EXTERNAL_URL:
        yield postgres.EXTERNAL_URL
        return
    # A statistic that is collected while a test inserts its first rows says that the tables are empty. Postgres then
    # joins thousands of rows without an index, so no statistics are collected unless a test does it.
    settings = {"autovacuum_analyze_threshold": "2000000000", "autovacuum_vacuum_insert_threshold": "-1"}
    with postgres.PostgresServer.start(**settings) as server:
        yield server.url


@pytest.fixture(scope="session")
def partition_pool(postgres_server: str) -> Iterator[PartitionPool]:
    """The partitions that tests of this process use one after the other."""
    from tests.partition_pool import PartitionPool

    pool = PartitionPool(postgres_server)
    yield pool
    pool.close()


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: str) -> Iterator[str]:
    """The URL of an empty partition, which exists and which no other test uses at the same time.

    With `new_partition`, it does not exist yet. With `own_database`, there is no other partition in its database. On a
    server that is not ours, each test gets a new partition, because only a superuser may empty one.
    """
    if "own_database" in request.keywords:
        database = postgres.create_database(postgres_server)
        yield postgres.with_partition(database)
        postgres.drop_database(database)
    elif postgres.EXTERNAL_URL:
        url = postgres.with_partition(postgres_server)
        yield url
        postgres.drop_partition(url)
    elif "new_partition" in request.keywords:
        # Our own server goes away as a whole; dropping each schema would only cost time.
        yield postgres.with_partition(postgres_server)
    else:
        pool: PartitionPool = request.getfixturevalue("partition_pool")
        partition = pool.take()
        yield partition.url
        pool.put_back(partition)


@pytest.fixture
def postgres_database(postgres_server: str) -> Iterator[Callable[..., str]]:
    """A function that creates an empty database with the given defaults and returns its URL, without a partition."""
    created: list[str] = []

    def create(**settings: str) -> str:
        created.append(postgres.create_database(postgres_server, **settings))
        return created[-1]

    yield create
    for url in created:
        postgres.drop_database(url)


@pytest.fixture
def private_postgres() -> Iterator[postgres.PostgresServer]:
    """A Postgres that belongs to one test, which may stop, crash, freeze and restart it."""
    with postgres.PostgresServer.start() as server:
        yield server


@pytest.fixture(params=[SQLITE, POSTGRES])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, on each database in turn. On SQLite, its file does not exist yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rollbook.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def store_url(durable_url: str) -> str:
    """As `durable_url`. Folders whose tests do not depend on the database override it."""
    return durable_url


@pytest.fixture
async def store(store_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """An open, empty store that sweeps whenever it is asked, with the test's clock."""
    from store import open_store

    opened = await open_store(store_url, clock=clock, scan_debounce_seconds=0)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture(scope="session", name="rounds")
def _rounds() -> Rounds:
    """The function `tests.torture.rounds`, for tests marked `torture`."""
    return rounds
