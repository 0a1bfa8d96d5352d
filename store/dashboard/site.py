"""All routes of the dashboard, and its navigation."""

from __future__ import annotations

from typing import Final

from store.dashboard.page import Route
from store.dashboard.pages import (
    admin,
    annotations,
    audit,
    checks,
    compare,
    cost,
    failures,
    groups,
    overview,
    payload,
    resources,
    rewards,
    rollout_list,
    rollout_tabs,
    rollout_transcript,
    run_actions,
    runs,
    search,
    tasks,
    waterfall,
    workers,
)

_MODULES: Final = (
    annotations,
    admin,
    checks,
    payload,
    audit,
    run_actions,
    runs,
    overview,
    failures,
    resources,
    workers,
    rewards,
    rollout_list,
    rollout_tabs,
    rollout_transcript,
    search,
    compare,
    groups,
    tasks,
    waterfall,
    cost,
)
ROUTES: Final[tuple[Route, ...]] = tuple(route for module in _MODULES for route in module.pages.routes)

NAVIGATION: Final[tuple[tuple[str, str], ...]] = (
    ("", "Overview"),
    ("rollouts", "Rollouts"),
    ("failures", "Failures"),
    ("groups", "Groups"),
    ("rewards", "Rewards"),
    ("resources", "Resources"),
    ("cost", "Cost"),
    ("workers", "Workers"),
    ("runs", "Runs"),
    ("audit", "Audit"),
    ("admin", "Admin"),
)
"""The first path segment and the title of each entry."""
