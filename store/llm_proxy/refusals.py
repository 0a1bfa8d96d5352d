"""Error responses of the proxy itself, in the form of the client's protocol."""

from __future__ import annotations

import math
from typing import Any, Final

import orjson
from starlette.types import Send

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class Refusal(Exception):
    """An error response of the proxy itself, as opposed to an error of a backend.

    Attributes:
        status: the HTTP status.
        code: a machine-readable code, or None.
        retry_after_seconds: the value of the `Retry-After` header, or None.
    """

    def __init__(
        self, status: int, message: str, code: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    def body(self, *, is_anthropic: bool) -> dict[str, Any]:
        """Return the error in the form of OpenAI's protocol, or of Anthropic's protocol."""
        kind = _TYPES.get(self.status, "api_error")
        if is_anthropic:
            return {"type": "error", "error": {"type": kind, "message": str(self)}}
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}

    async def send(self, send: Send, *, is_anthropic: bool = False) -> None:
        """Send the error as the response."""
        # OpenAI's clients would repeat a call for an ended attempt twice. This header prevents such useless retries.
        headers = {"x-should-retry": "true" if self.retry_after_seconds is not None else "false"}
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_seconds)))
        await send_json(send, self.status, self.body(is_anthropic=is_anthropic), headers)


async def send_json(send: Send, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
    """Send a JSON response of the proxy itself."""
    await send_body(send, status, orjson.dumps(value), "application/json", headers)


async def send_body(
    send: Send, status: int, body: bytes, content_type: str, headers: dict[str, str] | None = None
) -> None:
    """Send a response of the proxy itself."""
    fields = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
