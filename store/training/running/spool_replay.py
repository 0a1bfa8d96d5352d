"""Storing of the spans that a dead process left in its spool, files in which spans wait for the store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from store.errors import StoreError
from store.interface.numbering import record
from store.models import Span
from store.training.tracing.recorder import BATCH

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.tracing.spool import SpanSpool

logger = logging.getLogger("store.training.leftovers")


async def replay(store: Store, spool: SpanSpool) -> None:
    """Store the spans that dead processes of this machine left in a spool, and remove the files.

    A file stays if its attempt does not exist in the store, or if the attempt is unresponsive: a new span would set an
    unresponsive attempt to running.
    """
    for path in spool.left_behind():
        try:
            reason = await _replay(store, path)
        except (StoreError, OSError) as error:
            reason = str(error)
        if reason is None:
            path.unlink(missing_ok=True)
        else:
            logger.warning("spans of a dead process stay in %s: %s", path, reason)


async def _replay(store: Store, path: Path) -> str | None:
    """Store the spans of a file. Return None, or the reason why the spans were not stored."""
    spans = _read_spans(path)
    if not spans:
        return None
    rollout_id, attempt_id = spans[0].rollout_id, spans[0].attempt_id
    statuses = {attempt.attempt_id: attempt.status for attempt in await store.query_attempts(rollout_id)}
    status = statuses.get(attempt_id)
    if status is None or status == "unresponsive":
        return f"attempt {attempt_id} of rollout {rollout_id} is {status or 'unknown'}"
    for start in range(0, len(spans), BATCH):
        await record(store, spans[start : start + BATCH])
    logger.info("stored %d spans of a dead process in attempt %s", len(spans), attempt_id)
    return None


def _read_spans(path: Path) -> list[Span]:
    spans: list[Span] = []
    for line in path.read_bytes().splitlines():
        try:
            spans.append(Span.model_validate_json(line))
        except ValidationError:
            # The process died while it wrote this line, so this line is the last one.
            break
    return spans
