"""Tests that share an expensive resource, such as a browser or an installation, run in one process."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("alone")
def test_groups_are_passed_to_the_scheduler_of_tests(request: pytest.FixtureRequest) -> None:
    # An option of the test processes; where there is but one, all tests are one group.
    is_spread = request.config.getoption("loadgroup", default=False)
    name = str(request.node.nodeid)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  untyped
    assert name.endswith("@alone") == bool(is_spread)
