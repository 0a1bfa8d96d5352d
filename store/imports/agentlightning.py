"""Import from a running server of Agent-lightning 0.3, over its HTTP interface."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from store.client import HTTPStore
from store.imports.batches import Record
from store.imports.report import Skipped
from store.imports.rollouts import SOURCE_KEY, UNENDED, ForeignAttempt, ForeignResources, ForeignRollout
from store.models import Attempt, AttemptError, AttemptStatus, Rollout, Span
from store.models.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery

_LISTED_AT_ONCE: Final = 200
_READ_AT_ONCE: Final = 8
_SPANS_AT_ONCE: Final = 1000
_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})


async def read_server(url: str) -> AsyncIterator[Record]:
    """Yield the resources of a server of Agent-lightning, then its rollouts that have ended.

    The server has only the current version of each id of resources. Rollouts that have not ended are skipped. Attempts
    that a rollout gets after its import are added by the next import.

    Args:
        url: the URL of the server.

    Raises:
        Unavailable: the server does not answer.
        StoreError: the server refuses a request.
    """
    async with await HTTPStore.open(url, read_only=True) as server:
        resources = await server.find_resources(ResourcesQuery())
        for update in sorted(resources, key=lambda update: update.update_time):
            yield ForeignResources(update.resources_id, f"resources {update.resources_id}", update.resources)
        async for record in _Reader(server).records():
            yield record


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of the rollouts of a server."""

    server: HTTPStore

    async def records(self) -> AsyncIterator[ForeignRollout | Skipped]:
        """Yield the rollouts in the order of their creation. Rollouts that cannot be imported are `Skipped`."""
        offset = 0
        while page := await self.server.find_rollouts(RolloutQuery.of(limit=_LISTED_AT_ONCE, offset=offset)):
            for start in range(0, len(page), _READ_AT_ONCE):
                some = page[start : start + _READ_AT_ONCE]
                for record in await asyncio.gather(*map(self._record, some)):
                    yield record
            offset += len(page)

    async def _record(self, rollout: Rollout) -> ForeignRollout | Skipped:
        place = f"rollout {rollout.rollout_id}"
        if rollout.status not in _ENDED:
            return Skipped(place=place, reason=f"is {rollout.status}; import it when it has ended")
        attempts = await self.server.find_attempts(rollout.rollout_id, AttemptQuery())
        if not attempts:
            return Skipped(place=place, reason=f"is {rollout.status} without an attempt")
        spans = await self._spans(rollout.rollout_id)
        foreign: list[ForeignAttempt] = []
        for attempt in attempts:
            of_attempt = [span for span in spans if span.attempt_id == attempt.attempt_id]
            foreign.append(_foreign_attempt(rollout, attempt, of_attempt, is_last=attempt is attempts[-1]))
        # The hash covers the first attempt only: if the rollout runs again after its import, it gets another attempt,
        # and its first attempt does not change.
        first = [span for span in spans if span.attempt_id == attempts[0].attempt_id]
        content = [rollout.input, rollout.mode, *(item.model_dump() for item in (attempts[0], *first))]
        text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        return ForeignRollout(
            rollout.rollout_id,
            place,
            rollout.input,
            foreign,
            mode=rollout.mode,
            metadata=rollout.metadata,
            resources_id=rollout.resources_id,
            is_cancelled=rollout.status == "cancelled",
            start_time=rollout.start_time,
            end_time=rollout.end_time,
            sha256=hashlib.sha256(text).hexdigest(),
        )

    async def _spans(self, rollout_id: str) -> list[Span]:
        spans: list[Span] = []
        while True:
            query = SpanQuery.of(rollout_id=rollout_id, limit=_SPANS_AT_ONCE, offset=len(spans))
            page = await self.server.find_spans(query)
            spans += page
            if len(page) < _SPANS_AT_ONCE:
                return spans


def _foreign_attempt(rollout: Rollout, attempt: Attempt, spans: Sequence[Span], *, is_last: bool) -> ForeignAttempt:
    """Return an attempt with the status that the end of its rollout implies.

    Its metadata contain the id, the status, the worker and the times that the attempt has on the server.
    """
    status: AttemptStatus = attempt.status
    error: AttemptError | None = None
    if not is_last:
        # A later attempt has replaced an attempt that never ended.
        status = "unresponsive" if status in UNENDED else status
    elif rollout.status == "succeeded":
        status = "succeeded"
    elif status in UNENDED or status == "succeeded":
        status = "failed"
    if is_last and rollout.status == "cancelled":
        error = AttemptError(type="Cancelled", message="the rollout was cancelled")
    fields = attempt.model_dump(include={"attempt_id", "status", "worker_id", "start_time", "end_time"})
    origin = {name: value for name, value in fields.items() if value is not None}
    return ForeignAttempt(status, spans, {**(attempt.metadata or {}), SOURCE_KEY: origin}, error)
