"""Bodies of requests and responses about webhooks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from store.models.enums import Frozen


class NewWebhook(Frozen):
    """POST /webhooks."""

    url: Annotated[str, Field(max_length=2000)]
    """The address of the receiver."""
    conditions: dict[str, dict[str, float]] = Field(default_factory=dict)
    """The settings of conditions by name; without conditions, all that need no scanner are used."""


class WebhookSummary(Frozen):
    """A webhook without its secret. Times are seconds since the epoch."""

    id: str
    url: str
    conditions: dict[str, dict[str, float]]
    holds_since: dict[str, float]
    """The conditions that hold now, with the times at which checks first saw them."""
    created_at: float


class WebhookWithSecret(WebhookSummary):
    """A new webhook. No other response contains the secret."""

    secret: str


class WebhookMessage(Frozen):
    """A message with its attempts and its last result. Times are seconds since the epoch."""

    id: str
    webhook_id: str
    type: str
    status: Literal["waiting", "delivered", "failed"]
    attempts: int
    created_at: float
    attempted_at: float | None
    next_at: float | None
    """The time of the next attempt; None if there is none."""
    response_status: int | None
    error: str | None
    body: Any


class WebhookMessagesQuery(Frozen):
    """GET /webhooks/deliveries."""

    webhook_id: str | None = None
    """Only messages of this webhook."""
    limit: Annotated[int, Field(ge=1, le=10_000)] = 50
