"""The option that selects the core of the contract or the full contract."""

from __future__ import annotations

import os

import pytest

from tests.backends.core import NAMES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the promises outside of the core to `make torture`, unless ROLLBOOK_WHOLE_CONTRACT is set."""
    if os.environ.get("ROLLBOOK_WHOLE_CONTRACT"):
        return
    for item in items:
        if item.get_closest_marker("repeat") and item.name.partition("[")[0] not in NAMES:
            item.add_marker(pytest.mark.torture_only)
