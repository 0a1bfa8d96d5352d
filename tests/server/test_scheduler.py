"""Scheduled operations of a server: once for all servers of a database, again after a kill, without blocking requests.

Intervals are tenths of seconds. The processes of the operations take most of the time.
"""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from store import open_store
from store.db.queries import operation_runs
from store.db.queries.operation_runs import OperationRun
from store.db.url import parse
from store.errors import Conflict
from store.operations.schedule import BackupPlan, Schedule
from store.runtime.clock import system_clock
from store.server.partitions import Partitions
from store.server.process.scheduler import Scheduler
from store.sql.store import SQLStore
from tests.conftest import POSTGRES, SQLITE
from tests.journal.database_helpers import run_sql
from tests.server.api import speaking_to
from tests.server.forked_operations import forked_operations
from tests.server.test_serving import finish, serving

__all__ = ["forked_operations"]

HANG = 200
QUICK = Schedule(sample_seconds=0.2, verify_at=None)
# That a lease belongs to one process is tested on both databases in tests/operations/test_runs.py.
_SQLITE_IN_TORTURE = pytest.param("sqlite", id="sqlite", marks=pytest.mark.torture_only)
ON_POSTGRES = pytest.mark.parametrize("url", [_SQLITE_IN_TORTURE, POSTGRES], indirect=True)


@pytest.fixture
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file, or with the mark `ON_POSTGRES` that database: a process takes a second of processor time."""
    kind = getattr(request, "param", "sqlite")
    return f"sqlite:///{tmp_path / 'rollbook.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def store(url: str) -> AsyncGenerator[SQLStore]:
    async with await SQLStore.open(url) as store:
        await store.enqueue_rollout("something")
        yield store


async def runs(store: SQLStore) -> dict[str, OperationRun]:
    return await store.core.look(operation_runs.all_runs)


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    """Return once something has happened."""
    async with asyncio.timeout(HANG):
        while not await happened():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.05)


async def ran(store: SQLStore, operation: str, times: int = 1) -> None:
    """Return once an operation was run some times."""

    async def has_run() -> bool:
        last = (await runs(store)).get(operation)
        return last is not None and last.runs >= times

    await until(has_run)


@asynccontextmanager
async def scheduling(
    store: SQLStore, url: str, schedule: Schedule = QUICK, **settings: Any
) -> AsyncGenerator[Scheduler]:
    """Give a scheduler that runs."""
    scheduler = Scheduler(Partitions(store, url), url, schedule, **settings)
    running = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await scheduler.close()


def processes() -> list[psutil.Process]:
    """Return the processes of operations that this process started."""
    processes_: list[psutil.Process] = []
    for child in psutil.Process().children():
        # A process that has ended has no command line any more.
        with suppress(psutil.NoSuchProcess):
            if "from store.operations.run import" in " ".join(child.cmdline()):
                processes_.append(child)
    return processes_


async def has_no_processes() -> bool:
    return processes() == []


@ON_POSTGRES
async def test_of_two_servers_one_runs_each_operation(store: SQLStore, url: str) -> None:
    schedule = Schedule(sample_seconds=3600.0, verify_at=None)
    first, second = (Scheduler(Partitions(store, url), url, schedule) for _ in range(2))
    await asyncio.gather(
        *(scheduler.start(store, parse(url).partition, "verify_sample") for scheduler in (first, second))
    )
    await ran(store, "verify_sample")
    await until(has_no_processes)
    last = (await runs(store))["verify_sample"]
    assert (last.runs, last.failures) == (1, 0)
    # The other server sees the run, and waits for its own time from then on.
    (scheduled,) = [operation for operation in await second.operations(store) if operation.operation == "verify_sample"]
    assert scheduled.next_at == last.attempted_at + 3600 * 1_000_000


async def test_an_operation_that_is_running_elsewhere_is_not_started(store: SQLStore, url: str) -> None:
    scheduler = Scheduler(Partitions(store, url), url, QUICK)
    now = system_clock()
    await run_sql(
        url,
        "INSERT INTO operation_runs (operation, runner, lease_until, attempted_at, runs, failures)"
        f" VALUES ('verify_sample', 'elsewhere:1', {now + 10**9}, {now}, 0, 0)",
    )
    with pytest.raises(Conflict, match="elsewhere:1"):
        await scheduler.start(store, "default", "verify_sample")
    with pytest.raises(Conflict, match="not part of this server's schedule"):
        await scheduler.start(store, "default", "backup")


async def test_a_killed_process_is_a_failure_and_the_operation_is_tried_again(
    store: SQLStore, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "store.server.scheduler")
    async with scheduling(store, url):

        async def is_running() -> bool:
            last = (await runs(store)).get("verify_sample")
            return last is not None and last.state(system_clock()) == "running" and bool(processes())

        await until(is_running)
        for process in processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await ran(store, "verify_sample", 2)
    last = (await runs(store))["verify_sample"]
    # The process may have stored its result just before it was killed.
    assert last.failures == len([message for message in caplog.messages if "exit code -9" in message]) <= 1
    assert last.state(system_clock()) in {"succeeded", "running", "interrupted"}


@pytest.mark.usefixtures("forked_operations")
async def test_a_failing_operation_is_logged_and_does_not_stop_the_others(
    store: SQLStore, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = BackupPlan(tmp_path / "none", 1)
    schedule = Schedule(sample_seconds=3.0, verify_at=None, backup_seconds=0.3, backup=plan)
    async with scheduling(store, url, schedule):
        await ran(store, "backup", 2)
        await ran(store, "verify_sample", 1)
    last = (await runs(store))["backup"]
    assert last.failures == last.runs >= 2
    assert last.error
    assert any(
        "the operation backup of the partition" in message and "failed" in message for message in caplog.messages
    )


async def test_operations_are_repeated_and_shown_in_metrics_and_on_the_admin_page(store: SQLStore, url: str) -> None:
    async with scheduling(store, url) as scheduler:
        await ran(store, "verify_sample", 2)
    assert processes() == []
    partition = parse(url).partition
    async with speaking_to(Partitions(store, url), scheduler=scheduler) as api:
        text = (await api.get("//metrics")).body.decode()
        values = (await api.get("//ui/admin.json")).ok()
    labels = f'{{partition="{partition}",operation="verify_sample"}}'
    samples = dict(re.findall(rf"^rollbook_operation_(\w+){re.escape(labels)} (\S+)$", text, re.MULTILINE))
    assert samples["differences"] == samples["failed"] == samples["failures_total"] == "0"
    assert int(samples["runs_total"]) >= 2
    assert abs(float(samples["success_timestamp_seconds"]) - system_clock() / 1e6) < HANG
    assert 0 < float(samples["duration_seconds"]) < HANG
    (scheduled,) = [operation for operation in values["operations"] if operation["operation"] == "verify_sample"]
    assert scheduled["differences"] == 0
    assert scheduled["next_at"] is not None


@pytest.mark.slow
async def test_a_server_verifies_backs_up_and_leaves_no_process_behind(url: str, tmp_path: Path) -> None:
    # With a shorter interval, other runs of an operation would begin while the test waits for the first ones.
    options = ("--verify-sample-every", "3s", "--backup-every", "3s", "--backup-dir", str(tmp_path))
    with serving("serve", "--db", url, "--port", "0", *options, "--backup-keep", "1") as (process, address):
        async with aiohttp.ClientSession() as session:

            async def have_run() -> bool:
                async with session.get(f"{address}/ui/admin.json") as answer:
                    operations = (await answer.json())["operations"]
                ended = {operation["operation"] for operation in operations if operation["runs"]}
                return ended >= {"verify_sample", "backup"}

            await until(have_run)
        began = {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
        process.send_signal(signal.SIGTERM)
        code, log = await asyncio.to_thread(finish, process)
    assert code == 0
    assert [entry for entry in log if entry["level"] == "error"] == []
    assert [pid for pid in began if psutil.pid_exists(pid)] == []
    assert len(list(tmp_path.glob(f"*-{parse(url).partition}-*.backup"))) == 1


@pytest.mark.parametrize(
    "url", [SQLITE, pytest.param("postgres", id="postgres", marks=pytest.mark.torture_only)], indirect=True
)
@pytest.mark.slow
async def test_the_process_of_an_operation_ends_with_a_killed_server_and_the_next_server_repeats_it(
    url: str,
) -> None:
    options = ("serve", "--db", url, "--port", "0", "--verify-sample-every", "0.2s", "--verify-at", "never")
    with serving(*options) as (process, _):
        children: list[psutil.Process] = []
        async with asyncio.timeout(HANG):
            while not children:
                children = psutil.Process(process.pid).children()
                await asyncio.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, children, HANG)
    assert (len(gone), alive) == (len(children), [])
    # Its lease ends some time later; a test does not wait for that.
    await run_sql(url, "UPDATE operation_runs SET lease_until = 1 WHERE runner IS NOT NULL")
    async with await open_store(url) as store:
        assert isinstance(store, SQLStore)
        before = (await runs(store)).get("verify_sample", OperationRun("verify_sample"))
        with serving(*options):
            await ran(store, "verify_sample", before.runs + 1)
        assert (await store.log.verify()).ok
