"""Context of the calls that a task makes: their actor and their idempotency key."""

from contextvars import ContextVar
from typing import Final

from store.domain.commands import Idempotency

actor: Final[ContextVar[str | None]] = ContextVar("rollbook_actor", default=None)
"""The actor as the log names it: `key:<id>`, `dashboard` …; None where only the call itself knows it. A command that
names its actor keeps it."""

idempotency_key: Final[ContextVar[Idempotency | None]] = ContextVar("rollbook_idempotency", default=None)
"""The idempotency key of the calls of this task; None for calls without one."""
