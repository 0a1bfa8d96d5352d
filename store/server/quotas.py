"""Quotas of partitions: limits on the events and the bytes of a partition, and on its calls per second. Decision 67.

A quota protects the other users of a server or a database. Events and bytes are checked by the writer of the partition,
so the limit on events holds for all processes together. The calls are counted in each process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from store.domain.annotations import AnnotateRollout
from store.domain.commands import (
    AmendRollout,
    Command,
    Enqueue,
    NumberSpans,
    PublishResources,
    RecordSpans,
    StartRollout,
    UpdateAttempt,
)
from store.domain.run_commands import AppendToRun, Fork
from store.domain.scanners import AddScanner, RecordScans
from store.domain.scores import RecordScores
from store.domain.thread_commands import CopyThread, KeepInThread
from store.domain.trainer_metrics import LogMetrics
from store.errors import QuotaExceeded, RateLimited, StoreError
from store.interface.store import Store
from store.runtime.rates import TokenBucket
from store.server.errors import refusal
from store.server.routing import WEBSOCKET, Protected, RouteIndex, path_within, refuse
from store.sql.database import database_of
from store.wire.paths import HEALTH

logger = logging.getLogger("store.server")

Monotonic = Callable[[], float]
Kind = Literal["events", "bytes", "calls"]

_MEASURE_INTERVAL_SECONDS: Final = 5.0
"""The time after which the size of a partition is measured again, when a batch begins."""
_MEASURE_TIMEOUT_SECONDS: Final = 1.0
"""The longest time for which a batch waits for the measurement."""
_UNCOUNTED: Final = frozenset({"/livez", "/readyz", "/metrics", HEALTH})
COUNTED: Final = "rollbook.counted"
"""The key in the scope of a request that was counted already."""
# A client that has waited exactly as long as the answer said must not be refused because of a rounding error.
_ROUNDING_SECONDS: Final = 1e-9

_ADDING: Final = frozenset[type[Command]](
    {
        Enqueue,
        StartRollout,
        Fork,
        RecordSpans,
        NumberSpans,
        AppendToRun,
        PublishResources,
        RecordScores,
        LogMetrics,
        AddScanner,
        RecordScans,
        KeepInThread,
        CopyThread,
    }
)
"""The commands that add data. Other commands finish or free work, or add almost nothing."""


def adds(command: Command) -> bool:
    """Return whether a partition that has reached its quota refuses the command."""
    if isinstance(command, AmendRollout | UpdateAttempt):
        return command.body is not None and command.status is None
    if isinstance(command, AnnotateRollout):
        return command.body is not None
    return type(command) in _ADDING


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a partition; None for no limit."""

    events: int | None = None
    """The maximum number of events in the log."""
    bytes: int | None = None
    """The maximum size on disk."""
    calls: int | None = None
    """The maximum number of calls per second in each process. Up to this number of calls may come at once."""

    def limits(self) -> dict[Kind, int]:
        """Return the limits that are set."""
        kinds: tuple[Kind, ...] = ("events", "bytes", "calls")
        return {kind: limit for kind in kinds if (limit := getattr(self, kind)) is not None}


class PartitionQuota:
    """The quota of one partition in this process: its token bucket, and the numbers of admitted and refused calls."""

    def __init__(self, partition: str, quota: Quota, monotonic: Monotonic) -> None:
        self.partition = partition
        self.quota = quota
        self.calls = 0
        """The number of calls that were admitted, if there is a limit on calls."""
        self.refused: dict[Kind, int] = dict.fromkeys(quota.limits(), 0)
        """The numbers of refused calls, by limit."""
        self.refused_unavailable = 0
        """The number of calls that were refused with status 503 because of the limit on calls."""
        self._bucket = None if quota.calls is None else TokenBucket(quota.calls, quota.calls, monotonic)

    def take_call(self) -> float:
        """Count a call and return 0; if the calls are used up, return the seconds until the next one is possible."""
        if self._bucket is None:
            return 0.0
        is_admitted, wait = self._bucket.take(_ROUNDING_SECONDS)
        if not is_admitted:
            return wait
        self.calls += 1
        return 0.0

    def refuse_call(self, wait: float, *, own_status: bool) -> RateLimited:
        """Count a refused call, and return its error.

        Args:
            wait: the seconds until the next call is possible.
            own_status: whether the response has status 429, as the error's class; otherwise it has 503.
        """
        self.refused["calls"] += 1
        self.refused_unavailable += not own_status
        assert self.quota.calls is not None  # without a limit, no call is refused
        return RateLimited(self.partition, self.quota.calls, wait)

    def check(self, kind: Literal["events", "bytes"], used: int, needed: int) -> None:
        """Raise an error if a call would exceed a limit, and count the refused call.

        Raises:
            QuotaExceeded: the call would exceed the limit.
        """
        limit = self.quota.events if kind == "events" else self.quota.bytes
        if limit is not None and used + needed > limit:
            self.refused[kind] += 1
            raise QuotaExceeded(self.partition, kind, used, needed, limit)


class StoreLimiter:
    """The limits of an open store on events and bytes, which its writer checks.

    Args:
        quota: the quota of the partition.
        measure: measures the size of the partition in bytes.
        monotonic: a clock that never goes back, in seconds.
    """

    def __init__(self, quota: PartitionQuota, measure: Callable[[], Awaitable[int]], monotonic: Monotonic) -> None:
        self._quota = quota
        self._measure = measure
        self._monotonic = monotonic
        self._measured_at: float | None = None
        self._bytes = 0
        """The size at the last measurement, and the payload that this process has committed since then."""

    async def refresh(self) -> None:
        """Measure the size of the partition if the last measurement is too old."""
        if self._quota.quota.bytes is None:
            return
        now = self._monotonic()
        if self._measured_at is None or now - self._measured_at >= _MEASURE_INTERVAL_SECONDS:
            self._measured_at = now
            try:
                # All connections for reads may be in use, so the batch waits only for a limited time.
                async with asyncio.timeout(_MEASURE_TIMEOUT_SECONDS):
                    self._bytes = await self._measure()
            except (StoreError, TimeoutError) as error:
                logger.warning("the size of the partition %s could not be measured: %r", self._quota.partition, error)
            except Exception:
                logger.exception("the size of the partition %s could not be measured", self._quota.partition)

    def admit(self, command: Command, events: int, added: int) -> None:
        """Raise an error if a command would exceed a limit, unless it finishes work.

        Raises:
            QuotaExceeded: the command would exceed a limit.
        """
        if adds(command):
            items: Any = getattr(command, "items", ())
            self._quota.check("events", events, max(1, len(items)))
            self._quota.check("bytes", self._bytes + added, command.size)

    def committed(self, added: int) -> None:
        """Note the size of the payload of a batch that was committed."""
        self._bytes += added


class Quotas:
    """The quotas of all partitions of a server.

    Args:
        default: the quota of partitions without a quota of their own.
        by_partition: the quotas of single partitions, by name.
        monotonic: a clock that never goes back, in seconds.
    """

    def __init__(
        self,
        default: Quota | None = None,
        by_partition: Mapping[str, Quota] | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._default = default or Quota()
        self._by_partition = by_partition or {}
        self._monotonic = monotonic
        self._used: dict[str, PartitionQuota] = {}

    @property
    def has_call_limit(self) -> bool:
        """Whether there is a limit on the calls of any partition."""
        return any(quota.calls is not None for quota in (self._default, *self._by_partition.values()))

    @property
    def used(self) -> Iterable[PartitionQuota]:
        """The quotas of the partitions that were used in this process."""
        return list(self._used.values())

    def limits(self, partition: str) -> dict[Kind, int]:
        """Return the limits of a partition."""
        return self._by_partition.get(partition, self._default).limits()

    def of(self, partition: str) -> PartitionQuota | None:
        """Return the quota of a partition; None if it has no limits."""
        limited = self._used.get(partition)
        if limited is None:
            quota = self._by_partition.get(partition, self._default)
            if not quota.limits():
                return None
            limited = self._used[partition] = PartitionQuota(partition, quota, self._monotonic)
        return limited

    def guard(self, partition: str, store: Store) -> None:
        """Limit the events and bytes of an open store, if its partition has such limits."""
        quota = self.of(partition)
        database = database_of(store)
        if database is not None and quota is not None and not quota.refused.keys().isdisjoint(("events", "bytes")):
            core = database.core
            core.writer.limiter = StoreLimiter(quota, core.dialect.size_bytes, self._monotonic)


class QuotaLayer:
    """An ASGI layer that refuses calls beyond the calls per second of their partition.

    `PartitionLayer` must run before it.

    Health checks, metrics and the pages of the dashboard are not counted.

    Args:
        app: the next layer.
        quotas: the quotas of the partitions.
        routes: all routes, which the metrics of a refused call need.
    """

    def __init__(self, app: ASGIApp, quotas: Quotas, routes: Iterable[Protected]) -> None:
        self._app = app
        self._quotas = quotas
        self._routes = RouteIndex(routes)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass on a request, or refuse it."""
        if scope["type"] not in {"http", "websocket"} or COUNTED in scope:
            return self._app(scope, receive, send)
        quota = self._quotas.of(scope["rollbook.partition"])
        path = path_within(scope, scope.get("root_path", ""))
        is_page = (path in {"/", "/ui"} or path.startswith("/ui/")) and not path.endswith(".json")
        if quota is None or is_page or path in _UNCOUNTED or not (wait := quota.take_call()):
            return self._app(scope, receive, send)
        method = WEBSOCKET if scope["type"] == "websocket" else scope["method"]
        route = self._routes.find(method, path, {})
        if route is not None:
            scope["rollbook.route"] = route.path
        # Clients of Agent-lightning 0.3 repeat a request after 503, but not after 429.
        own_status = getattr(route, "own_statuses", True)
        error = quota.refuse_call(wait, own_status=own_status)
        return refuse(scope, receive, send, refusal(error, own_status=own_status))
