"""All routes of the dashboard, and its navigation."""

from __future__ import annotations

from typing import Final

from store.dashboard.page import Route
from store.dashboard.pages import (
    admin,
    annotations,
    audit,
    bulk,
    checks,
    compare,
    cost,
    effects,
    exploring,
    failures,
    groups,
    metrics,
    overview,
    payload,
    resources,
    rewards,
    rollout_list,
    rollout_tabs,
    rollout_transcript,
    run_actions,
    runs,
    saved_views,
    scanners,
    search,
    tasks,
    training_sums,
    waterfall,
    webhooks,
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
    metrics,
    scanners,
    bulk,
    rollout_list,
    rollout_tabs,
    rollout_transcript,
    search,
    saved_views,
    compare,
    effects,
    groups,
    exploring,
    tasks,
    training_sums,
    waterfall,
    cost,
    webhooks,
)
ROUTES: Final[tuple[Route, ...]] = tuple(route for module in _MODULES for route in module.pages.routes)

_GROUPS: Final = (
    ("Observe", (("", "Overview"), ("rollouts", "Rollouts"), ("failures", "Failures"))),
    (
        "Learn",
        (
            ("rewards", "Rewards"),
            ("metrics", "Metrics"),
            ("groups", "Groups"),
            ("effects", "Effects"),
            ("scanners", "Scanners"),
            ("cost", "Cost"),
            ("resources", "Resources"),
        ),
    ),
    (
        "Operate",
        (
            ("runs", "Pipelines"),
            ("workers", "Workers"),
            ("audit", "Audit"),
            ("webhooks", "Webhooks"),
            ("admin", "Admin"),
        ),
    ),
)
_PAGES: Final = frozenset(route.path for route in ROUTES if route.method == "GET")
NAVIGATION: Final[tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = tuple(
    (group, tuple((segment, title) for segment, title in entries if f"/ui/{segment}" in _PAGES))
    for group, entries in _GROUPS
)
"""By group, the first path segment and the title of each page that this program has."""
HAS_SEARCH: Final = "/ui/search" in _PAGES
"""Whether there is a page of results for the search field of all pages."""
