"""Paths of a server's routes for the calls of a store, and the names of headers.

A server serves its default partition at its root, and every other partition below `/p/<partition>`. All paths in this
module are relative to the root or to such a prefix.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

PREFIX: Final = "/v1/agl"

HEALTH: Final = f"{PREFIX}/health"
STATISTICS: Final = f"{PREFIX}/statistics"

DEQUEUE: Final = f"{PREFIX}/queues/rollouts/dequeue"

ROLLOUTS: Final = f"{PREFIX}/rollouts"
ROLLOUTS_SEARCH: Final = f"{ROLLOUTS}/search"
ROLLOUT: Final = f"{ROLLOUTS}/{{rollout_id}}"
HISTORY: Final = f"{ROLLOUT}/history"
ATTEMPTS: Final = f"{ROLLOUT}/attempts"
ATTEMPTS_SEARCH: Final = f"{ATTEMPTS}/search"
LATEST_ATTEMPT: Final = f"{ATTEMPTS}/latest"
ATTEMPT: Final = f"{ATTEMPTS}/{{attempt_id}}"

ANNOTATIONS: Final = f"{ROLLOUT}/annotations"

LABELS_SEARCH: Final = f"{PREFIX}/labels/search"
METRICS_SEARCH: Final = f"{PREFIX}/metrics/search"
SCANNERS: Final = f"{PREFIX}/scanners"
SCANS_SEARCH: Final = f"{PREFIX}/scans/search"
UNSCANNED: Final = f"{PREFIX}/scans/unscanned"
SCORES_SEARCH: Final = f"{PREFIX}/scores/search"
SCORE_VERSIONS: Final = f"{PREFIX}/scores/versions"

RUN_EVENTS: Final = f"{ROLLOUT}/events"
RUN_STREAM: Final = f"{RUN_EVENTS}/stream"
RUN_SOCKET: Final = f"{RUN_EVENTS}/ws"
RUN_GRAPH: Final = f"{ROLLOUT}/graph"
CHECKPOINTS: Final = f"{ROLLOUT}/checkpoints"
LATEST_CHECKPOINT: Final = f"{CHECKPOINTS}/latest"
CHECKPOINT: Final = f"{CHECKPOINTS}/{{checkpoint_id}}"
ARTIFACTS: Final = f"{ROLLOUT}/artifacts"
SCOPE_HISTORY: Final = f"{PREFIX}/artifacts"
PLAN_FORK: Final = f"{ROLLOUT}/forks:plan"
LINEAGE: Final = f"{ROLLOUT}/lineage"
COMPARE: Final = f"{ROLLOUT}/compare"

WORKERS: Final = f"{PREFIX}/workers"
WORKERS_SEARCH: Final = f"{WORKERS}/search"
WORKER: Final = f"{WORKERS}/{{worker_id}}"

RESOURCES: Final = f"{PREFIX}/resources"
LATEST_RESOURCES: Final = f"{RESOURCES}/latest"
RESOURCES_BY_ID: Final = f"{RESOURCES}/{{resources_id}}"

SPANS: Final = f"{PREFIX}/spans"
SPANS_SEARCH: Final = f"{SPANS}/search"
SPANS_BATCH: Final = f"{SPANS}/batch"

WAIT: Final = f"{PREFIX}/waits/rollouts"

CAPABILITIES: Final = f"{PREFIX}/capabilities"
STORE: Final = f"{PREFIX}/store"
LOG: Final = f"{PREFIX}/log"
SEARCH: Final = f"{PREFIX}/search"
LOG_POSITION: Final = f"{LOG}/position"
USAGE_SEARCH: Final = f"{PREFIX}/usage/search"
VERIFY: Final = f"{PREFIX}/verify"
REBUILD: Final = f"{PREFIX}/rebuild"
SEAL: Final = f"{PREFIX}/seal"

WEBHOOKS: Final = f"{PREFIX}/webhooks"
WEBHOOK: Final = f"{WEBHOOKS}/{{webhook_id}}"
WEBHOOK_TEST: Final = f"{WEBHOOK}/test"
WEBHOOK_DELIVERIES: Final = f"{WEBHOOKS}/deliveries"

OTLP_TRACES: Final = "/v1/traces"
UNSUPPORTED_OTLP_PATHS: Final = ("/v1/metrics", "/v1/logs", "/v1/development/profiles")
"""Paths to which OpenTelemetry exporters may post other data than traces; the server responds with 501."""

PARTITIONS: Final = "/p/"

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
"""Request header: 32 hex digits that a client generates for each call, and sends again with each retry of the call."""
REQUEST_ID: Final = "X-Request-ID"
"""Header of requests and responses that identifies one request in the server's logs.

The server generates the id if the request does not contain one.
"""

RESERVED_ROLLOUT_IDS: Final = frozenset({"search"})
"""Rollout ids that the path of a POST cannot contain, because they are names of routes."""


def path(template: str, **ids: str) -> str:
    """Return a path from a template; each id becomes one percent-encoded segment.

    >>> path(ATTEMPT, rollout_id="ro-1", attempt_id="a/b")
    '/v1/agl/rollouts/ro-1/attempts/a%2Fb'
    """
    return template.format(**{name: quote(value, safe="") for name, value in ids.items()})
