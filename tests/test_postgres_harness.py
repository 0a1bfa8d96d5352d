"""The Postgres server of the tests: it crashes on demand and never outlives its process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import postgres

pytestmark = pytest.mark.postgres

START_AND_WAIT = """
import sys, time
from tests.postgres import PostgresServer
server = PostgresServer.start()
print(*server.pids(), server.directory, flush=True)
time.sleep(60)
"""


def eventually(holds: Callable[[], bool], seconds: float = 250.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def test_a_server_dies_with_a_killed_test_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as owner:
        assert owner.stdout is not None
        *pids, directory = owner.stdout.readline().split()
        owner.kill()
    assert eventually(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids))
    assert eventually(lambda: not Path(directory).exists())


def test_crashed_server_restarts_with_its_committed_data(private_postgres: postgres.PostgresServer) -> None:
    postgres.execute(private_postgres.url, "CREATE TABLE kept AS SELECT 7 AS n")
    private_postgres.stop("immediate")
    assert not private_postgres.is_running
    with pytest.raises(subprocess.CalledProcessError):
        postgres.execute(private_postgres.url, "SELECT 1")
    private_postgres.restart()
    assert private_postgres.is_running
    assert postgres.execute(private_postgres.url, "SELECT n FROM kept") == "7"
    assert "not properly shut down" in private_postgres.log()


def test_a_frozen_server_answers_when_it_is_thawed(private_postgres: postgres.PostgresServer) -> None:
    private_postgres.freeze()
    frozen = [psutil.Process(pid) for pid in private_postgres.pids()]
    # A process on another core stops at its next turn, not at once; one that was ending stays unburied by its parent.
    still = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    for _ in range(1200):
        if all(process.status() in still for process in frozen):
            break
        time.sleep(0.05)
    else:
        pytest.fail("some of the server's processes went on")
    private_postgres.thaw()
    assert postgres.execute(private_postgres.url, "SELECT 1") == "1"


def test_a_frozen_server_can_be_stopped() -> None:
    server = postgres.PostgresServer.start()
    pids = server.pids()
    server.freeze()
    server.remove()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_database_has_the_defaults_it_was_created_with(postgres_database: Callable[..., str]) -> None:
    url = postgres_database(default_transaction_isolation="repeatable read")
    assert postgres.execute(postgres.with_partition(url), "SHOW transaction_isolation") == "repeatable read"


def test_every_partition_is_new(postgres_server: str) -> None:
    urls = {postgres.with_partition(postgres_server) for _ in range(100)}
    assert len(urls) == 100
    assert all(url.startswith(postgres_server.partition("?")[0]) for url in urls)
