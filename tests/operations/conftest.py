"""Fixtures of the tests of copies: stores to copy, and places for copies."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import POSTGRES, SQLITE
from tests.operations.filled_stores import fill

MakeURL = Callable[[str], str]


@pytest.fixture
def make_url(tmp_path: Path, request: pytest.FixtureRequest) -> MakeURL:
    """A function from a kind of database to the URL of a store that does not exist."""

    def make(kind: str) -> str:
        name = f"c{uuid4().hex[:12]}"
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / name}.db"
        return f"{request.getfixturevalue('postgres_server')}?partition={name}"

    return make


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled file that tests get copies of."""
    path = tmp_path_factory.mktemp("operations") / "original.db"
    asyncio.run(fill(f"sqlite:///{path}"))
    return path


@pytest.fixture
def full(original: Path, tmp_path: Path) -> str:
    """The URL of a file with something of everything."""
    shutil.copy(original, tmp_path / "full.db")
    return f"sqlite:///{tmp_path / 'full.db'}"


@pytest.fixture(scope="session")
def full_postgres(postgres_server: str) -> str:
    """The URL of a partition with something of everything, which tests only read."""
    url = f"{postgres_server}?partition=c{uuid4().hex[:12]}"
    asyncio.run(fill(url))
    return url


@pytest.fixture(params=[SQLITE, POSTGRES])
def source(request: pytest.FixtureRequest) -> str:
    """The URL of a store with something of everything, on each database in turn."""
    return request.getfixturevalue("full" if request.param == "sqlite" else "full_postgres")
