"""The key of a call that may be sent twice: what reaches the writer beside the call's arguments."""

from contextvars import ContextVar

from store.domain.commands import Idempotency

__all__ = ["Idempotency", "current"]

current: ContextVar[Idempotency | None] = ContextVar("rollbook_idempotency", default=None)
"""The key under which the calls of this task are made; None for calls that are made once."""
