"""Which request a task answers, for whoever logs."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("rollbook_request_id", default=None)
"""The id of the request this task answers."""
