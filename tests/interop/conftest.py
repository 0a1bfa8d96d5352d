"""Fixtures: Agent-lightning's environment, and a server of each kind for the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import postgres
from tests.interop.peer import Peer, environment, rollbook


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "interop: runs Agent-lightning in an environment of its own; `make test-interop`"
    )


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave this directory alone unless it is asked for: the environment takes a minute to make."""
    asked: str = config.option.markexpr
    return None if "interop" in asked and "not interop" not in asked else True


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return Peer(environment().python(), tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="session")
def sqlite_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rollbook(f"sqlite:///{tmp_path_factory.mktemp('served') / 'run.db'}") as url:
        yield url


@pytest.fixture(scope="session")
def postgres_served(postgres_server: str) -> Iterator[str]:
    with rollbook(postgres.with_partition(postgres_server)) as url:
        yield url


@pytest.fixture(scope="session")
def upstream_served(peer: Peer) -> Iterator[str]:
    with peer.server() as url:
        yield url


@pytest.fixture
def served(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The kind of server that the test's parameter names, and its URL."""
    return request.param, request.getfixturevalue(f"{request.param}_served")


@pytest.fixture(scope="session")
def sqlite_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('database') / 'run.db'}"


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> str:
    return postgres.with_partition(postgres_server)


@pytest.fixture(scope="session")
def served_database(sqlite_served: str) -> str:
    """Of a server: the store in process is then our own client."""
    return sqlite_served


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """The URL of a database of the kind that the test's parameter names."""
    return request.getfixturevalue(f"{request.param}_database")
