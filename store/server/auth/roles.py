"""Which role each route asks for. What is not in this table does not exist for whoever needs a key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from store.dashboard.site import ROUTES as PAGES
from store.server.routes import dashboard, viewer
from store.server.streaming.paths import LOG_SOCKET, VIEWER_SOCKET
from store.sql.api_keys import ROLES, Role
from store.wire import paths

Access = Role | Literal["open"]

WEBSOCKET: Final = "WEBSOCKET"
"""Stands for the method where a WebSocket is opened."""

_OPEN: Final = (
    # Who asks whether the server lives has no key, and learns nothing else.
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", paths.HEALTH),
    # The same for every server of this version; and a browser that opens a page sends no key.
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/docs/oauth2-redirect"),
    ("GET", "/redoc"),
    # Where a key is given, and what the page is drawn with.
    ("GET", dashboard.LOGIN),
    ("POST", dashboard.LOGIN),
    ("POST", dashboard.LOGOUT),
    ("GET", dashboard.STATIC),
)
_READER: Final = (
    ("GET", "/metrics"),
    ("GET", paths.STATISTICS),
    ("GET", paths.CAPABILITIES),
    ("GET", paths.STORE),
    ("GET", paths.ROLLOUTS),
    ("POST", paths.ROLLOUTS_SEARCH),
    ("GET", paths.ROLLOUT),
    ("GET", paths.HISTORY),
    ("GET", paths.ATTEMPTS),
    ("POST", paths.ATTEMPTS_SEARCH),
    ("GET", paths.LATEST_ATTEMPT),
    ("GET", paths.SPANS),
    ("POST", paths.SPANS_SEARCH),
    ("GET", paths.RESOURCES),
    ("GET", paths.LATEST_RESOURCES),
    ("GET", paths.RESOURCES_BY_ID),
    ("GET", paths.WORKERS),
    ("POST", paths.WORKERS_SEARCH),
    ("GET", paths.WORKER),
    ("GET", paths.ATTEMPT),
    ("GET", paths.ANNOTATIONS),
    ("GET", paths.RUN_EVENTS),
    ("GET", paths.RUN_GRAPH),
    ("POST", paths.RUN_GRAPH),
    ("GET", paths.CHECKPOINTS),
    ("GET", paths.LATEST_CHECKPOINT),
    ("GET", paths.CHECKPOINT),
    ("GET", paths.ARTIFACTS),
    ("GET", paths.SCOPE_HISTORY),
    ("POST", paths.PLAN_FORK),
    ("GET", paths.LINEAGE),
    ("GET", paths.COMPARE),
    ("POST", paths.WAIT),
    ("GET", paths.LOG),
    (WEBSOCKET, LOG_SOCKET),
    ("GET", paths.RUN_STREAM),
    (WEBSOCKET, paths.RUN_SOCKET),
    ("GET", viewer.RUNS),
    ("GET", viewer.RUN),
    (WEBSOCKET, VIEWER_SOCKET),
    ("GET", dashboard.LIVE),
)
# What Agent-lightning's runner and tracer call while they work on what somebody else queued.
_RUNNER: Final = (
    ("POST", paths.DEQUEUE),
    ("POST", paths.ROLLOUTS),
    ("POST", paths.ATTEMPTS),
    ("POST", paths.ATTEMPT),
    ("POST", paths.WORKER),
    ("POST", paths.SPANS),
    ("POST", paths.SPANS_BATCH),
    ("POST", paths.NEXT_SPAN),
    ("POST", paths.NEXT_SPANS),
    ("POST", paths.ATTEMPT_EVENTS),
    ("POST", paths.CHECKPOINTS),
    ("POST", paths.ARTIFACTS),
    ("POST", paths.RETRACT_ARTIFACT),
    ("POST", paths.OTLP_TRACES),
    *(("POST", path) for path in paths.NOT_TAKEN),
)
_ALGORITHM: Final = (
    ("POST", paths.ENQUEUE),
    ("POST", paths.ROLLOUT),
    ("POST", paths.ANNOTATIONS),
    ("POST", paths.RESOURCES),
    ("POST", paths.RESOURCES_BY_ID),
    ("POST", paths.FORKS),
    ("POST", viewer.RERUN_NODE),
    ("POST", viewer.RUN),
    ("DELETE", viewer.PORTFOLIO_STAGE),
    ("POST", paths.RESUME),
    ("POST", paths.HEAD),
)
# They read or write the whole log.
_ADMIN: Final = (
    ("POST", paths.VERIFY),
    ("POST", paths.REBUILD),
    ("POST", paths.SEAL),
)

_GROUPS: Final[tuple[tuple[Access, tuple[tuple[str, str], ...]], ...]] = (
    ("open", _OPEN),
    ("reader", _READER),
    ("runner", _RUNNER),
    ("algorithm", _ALGORITHM),
    ("admin", _ADMIN),
    *((page.role, ((page.method, page.path),)) for page in PAGES),
)

ACCESS: Final[Mapping[tuple[str, str], Access]] = MappingProxyType(
    {route: access for access, routes in _GROUPS for route in routes}
)
"""By method and template of the path within a partition."""

OF_ALL_PARTITIONS: Final = frozenset({"/metrics"})
"""What tells of all partitions at once, and so asks for a key of all."""

_RANKS: Final = {role: rank for rank, role in enumerate(ROLES)}


def may(role: Role, needed: Role) -> bool:
    """Say whether a role may do what asks for another; one that a database made up may do nothing."""
    return _RANKS.get(role, -1) >= _RANKS[needed]
