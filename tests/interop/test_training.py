"""Complete trainings with Agent-lightning's trainer: through our server, and on our store in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peer import ENVIRONMENT, Peer, finished
from tests.postgres import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SERVED = [
    pytest.param("sqlite", marks=pytest.mark.xdist_group("interop-sqlite")),
    pytest.param("postgres", marks=[pytest.mark.xdist_group("interop-postgres"), pytest.mark.postgres]),
]


@pytest.mark.parametrize("served", SERVED, indirect=True)
def test_its_trainer_finds_the_better_prompt_through_our_server(peer: Peer, served: tuple[str, str]) -> None:
    _, url = served
    strategy = _as_option(type="cs", n_runners=2)
    peer.run("trainer", "--store", "client", "--url", url, strategy, served_at=url, AGL_MANAGED_STORE="false")


@pytest.mark.parametrize("served", SERVED[1:], indirect=True)
def test_an_algorithm_of_its_own_runs_through_our_server(peer: Peer, served: tuple[str, str]) -> None:
    _, url = served
    arguments = ["--store", "client", "--url", url, "--algorithm", "baseline"]
    peer.run("trainer", *arguments, served_at=url, AGL_MANAGED_STORE="false")


@pytest.mark.parametrize("served", SERVED[:1], indirect=True)
def test_algorithm_and_runners_may_be_started_apart(peer: Peer, served: tuple[str, str]) -> None:
    """One runner is handed a client, the other finds the server by the variables a trainer's own server goes by."""
    _, url = served
    arguments = ["--store", "client", "--url", url]
    host, _, port = url.removeprefix("http://").partition(":")
    environment: dict[str, str] = {"AGL_MANAGED_STORE": "false"}
    with (
        peer.started(
            "trainer", *arguments, "--max-rollouts", "6", served_at=url, AGL_CURRENT_ROLE="runner", **environment
        ) as one,
        peer.started(
            *("trainer", *arguments, "--max-rollouts", "6"),
            served_at=url,
            AGL_CURRENT_ROLE="runner",
            AGL_SERVER_HOST=host,
            AGL_SERVER_PORT=port,
        ) as other,
    ):
        peer.run("trainer", *arguments, served_at=url, AGL_CURRENT_ROLE="algorithm", **environment)
        finished(one)
        finished(other)


IN_PROCESS: dict[str, dict[str, Any]] = {
    "behind_its_own_server": {"type": "cs", "n_runners": 2},
    "opened_anew_in_each_forked_runner": {"type": "cs", "n_runners": 2, "managed_store": False},
    "shared_by_threads": {"type": "shm", "managed_store": False, "main_thread": "algorithm"},
}


@pytest.mark.xdist_group("interop-sqlite")
@pytest.mark.skipif(ENVIRONMENT == "today", reason="its own server does not work with today's packages")
@pytest.mark.parametrize("how", IN_PROCESS)
def test_its_trainer_runs_on_our_store_in_process(peer: Peer, how: str, tmp_path: Path) -> None:
    strategy = _as_option(**IN_PROCESS[how])
    url = f"sqlite:///{tmp_path / 'run.db'}"
    peer.run("trainer", "--store", "rollbook", "--url", url, strategy, AGL_SERVER_PORT=str(free_port()))


@pytest.mark.postgres
@pytest.mark.xdist_group("interop-postgres")
def test_forked_runners_share_a_postgres_store_in_process(peer: Peer, postgres_url: str) -> None:
    strategy = _as_option(**IN_PROCESS["opened_anew_in_each_forked_runner"])
    peer.run("trainer", "--store", "rollbook", "--url", postgres_url, strategy)


def _as_option(**strategy: Any) -> str:
    return f"--strategy={json.dumps(strategy)}"
