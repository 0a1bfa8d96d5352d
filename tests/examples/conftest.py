"""Fixtures of the examples, which work alike on every database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import forked_parts

__all__ = ["forked_parts"]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """The URL of a file of SQLite that does not exist yet."""
    return f"sqlite:///{tmp_path / 'rollbook.db'}"
