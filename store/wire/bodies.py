"""Models of request bodies and of some query strings.

`store.models.queries` has the models of the other query strings.

The models ignore unknown keys. Some bodies distinguish an absent key from null: `model_fields_set` of the model
contains the keys that the request has.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from store.models import (
    Seal,
    Span,
)
from store.models.enums import Frozen
from store.models.queries import PastQuery


def moment_on_wire(as_at: Any) -> Any:
    """Return the form in which a request sends a moment of the log.

    A position stays unchanged; a datetime becomes RFC 3339 text.
    """
    return as_at.isoformat() if isinstance(as_at, datetime) else as_at


class SpansBatchBody(Frozen):
    """POST /spans/batch. Not part of Agent-lightning 0.3."""

    spans: list[Span]
    number: bool = False
    """Whether the store assigns new sequence numbers to the spans, instead of using the numbers in the request."""


class WaitBody(Frozen):
    """POST /waits/rollouts."""

    rollout_ids: list[str]
    timeout: float | None = None
    """The maximum time to wait, in seconds; null for no limit."""


class VerifyBody(Frozen):
    """POST /verify; the body is optional. Not part of Agent-lightning 0.3."""

    seal: Seal | None = None


class HistoryQuery(PastQuery):
    """GET /rollouts/{rollout_id}/history. Not part of Agent-lightning 0.3."""

    after: int = Field(default=0, ge=0)
    """The number of the last event that the caller has processed."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """The maximum number of events."""


class LogQuery(Frozen):
    """GET /log. Not part of Agent-lightning 0.3."""

    after: str | None = None
    """The cursor of the last event that the caller has processed."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """The maximum number of events."""
    type: list[str] | None = None
    rollout: str | None = None
