"""Context variables for the store calls that an asyncio task makes: their actor and their idempotency key."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from store.domain.commands import Idempotency

actor: Final[ContextVar[str | None]] = ContextVar("rollbook_actor", default=None)
"""The person or program that makes the calls, as the log records it: `key:<id>`, `dashboard` …; None if unknown.

If a command names an actor of its own, the log records that actor instead.
"""

idempotency_key: Final[ContextVar[Idempotency | None]] = ContextVar("rollbook_idempotency", default=None)
"""The idempotency key of the calls of this task; None if they have no key."""
