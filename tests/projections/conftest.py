"""Fixtures of the tests of the domain."""

from __future__ import annotations

import pytest

from tests.domain.story import Story


@pytest.fixture
def story() -> Story:
    """Nothing has happened yet."""
    return Story()
