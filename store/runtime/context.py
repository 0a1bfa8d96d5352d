"""Context of the calls that a task makes: their actor and their idempotency key."""

from contextvars import ContextVar
from typing import Final

from store.domain.commands import Idempotency

actor: Final[ContextVar[str | None]] = ContextVar("rollbook_actor", default=None)
"""The actor for the log: `key:<id>`, `dashboard` …; None if there is none.

If a command has its own actor, that actor is recorded instead.
"""

idempotency_key: Final[ContextVar[Idempotency | None]] = ContextVar("rollbook_idempotency", default=None)
"""The idempotency key of the calls of this task; None if they have no key."""
