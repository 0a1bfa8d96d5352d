"""The id of the request that the current task answers, for log records."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("rollbook_request_id", default=None)
"""The id of the request that the current task answers; None outside requests."""
