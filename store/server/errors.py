"""The response to a failed call: its status, JSON and headers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from pydantic import ValidationError

from store.errors import Invalid, StoreError, TooLarge
from store.wire.errors import error_body, retry_after, status_of

logger = logging.getLogger("store.server")

_MAX_FAULTS: Final = 20
_MAX_INPUT: Final = 200
Headers = list[tuple[bytes, bytes]]


class Refused(Invalid):
    """A request refused with the text that clients of Agent-lightning 0.3 know."""

    def __init__(self, field: str, text: str) -> None:
        StoreError.__init__(self, text)
        self.field = field
        self.reason = text


class BodyTooLarge(TooLarge):
    """A request body that is larger than the server's limit. The body was not read to its end."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__("body", size, limit)


class UnknownPartition(StoreError):
    """A path below `/p/` that does not name a partition. The client receives `error`."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


class MalformedRequest(Exception):
    """A body or a query that does not match its model."""

    def __init__(self, faults: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(f"{len(faults)} faults")
        self.faults = faults

    @classmethod
    def of(cls, error: ValidationError, where: str) -> MalformedRequest:
        """Return the faults that pydantic found, in FastAPI's form; `where` is "body" or "query"."""
        return cls(
            [
                {
                    "type": fault["type"],
                    "loc": [where, *fault["loc"]],
                    "msg": fault["msg"],
                    "input": _short(fault["input"]),
                }
                for fault in error.errors(include_url=False)[:_MAX_FAULTS]
            ]
        )

    @classmethod
    def one(cls, kind: str, message: str, *where: str | int) -> MalformedRequest:
        """Return a single fault."""
        return cls([{"type": kind, "loc": list(where), "msg": message, "input": None}])


def _short(value: Any) -> Any:
    """Return the refused value if it is small. A large value is neither sent back nor logged."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_INPUT else None
    return value if isinstance(value, bool | int | float) else None


def refusal(error: Exception, *, own_status: bool = False) -> tuple[int, bytes, Headers]:
    """Return the response to an error: status, JSON body and further headers. A bug is logged with its traceback.

    Args:
        error: the error of the call.
        own_status: whether to use the status of the error's class, for routes that Agent-lightning's clients do not
            call.
    """
    if isinstance(error, MalformedRequest):
        return 422, _dumps({"detail": error.faults}), []
    if isinstance(error, UnknownPartition):
        return 404, _dumps(error_body(error.error)), []
    if isinstance(error, BodyTooLarge):
        # The unread body would precede the next request on this connection, so the connection is closed.
        return 413, _dumps(error_body(error)), [(b"connection", b"close")]
    if isinstance(error, StoreError):
        status = status_of(error, is_rollbook_route=own_status)
        headers = [(b"retry-after", retry_after(error).encode())] if status in {429, 503} else []
        if status == 401:
            headers = [(b"www-authenticate", b'Bearer realm="rollbook"')]
        return status, _dumps(error_body(error)), headers
    logger.error("a request failed on %s", type(error).__name__, exc_info=error)
    return 500, _dumps({"detail": "Internal server error", "error_type": type(error).__name__}), []


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        # The refused value contains a lone surrogate or an integer beyond 64 bits, which orjson cannot write.
        return json.dumps(value).encode()
