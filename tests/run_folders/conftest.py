"""Fixtures of the tests of run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SQLITE

POSTGRES_TOO = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])
"""Run folders use only the interface of stores, so `make test` shows most claims on SQLite alone."""


@pytest.fixture(params=[SQLITE, POSTGRES_TOO])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store in a file, or on Postgres."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rollbook.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
