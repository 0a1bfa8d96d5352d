"""Fixtures of the tests of run folders."""

from __future__ import annotations

import pytest


@pytest.fixture
def store_url(durable_url: str) -> str:
    """A file or a Postgres; what is in memory is a file, too."""
    return durable_url
