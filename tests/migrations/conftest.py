"""Fixtures: databases for tests of `migrate`, which changes an entire database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import postgres
from tests.conftest import POSTGRES, SQLITE


@pytest.fixture(params=[SQLITE, POSTGRES])
def isolated_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a partition that does not exist yet, in a database that holds no other."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rollbook.db'}"
    create: Callable[..., str] = request.getfixturevalue("postgres_database")
    return postgres.with_partition(create(), "default")
