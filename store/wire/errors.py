"""Conversion of errors to an HTTP status and a JSON object, and back.

Errors after which a retry may help have the status 503; only `RateLimited` has 429 on routes that these clients do not
call. A missing or invalid key has 401, a key without permission has 403, and a conflict of spans has 409. All other
errors have 400, whatever their class, because clients of Agent-lightning 0.3 repeat a request after 408 and after a
status of 500 or above, and only then. Routes that these clients do not call respond with the status of the error's
class.

The JSON object is `{"detail": text, "error_type": class name, …}`; the other keys are the error's fields. The response
to a body of the wrong shape is 422 with a list of faults, as in FastAPI.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from store import errors
from store.errors import (
    Closed,
    Forbidden,
    Incompatible,
    Invalid,
    QuotaExceeded,
    RateLimited,
    SpanConflict,
    StoreError,
    Unauthorized,
    Unavailable,
    Unsupported,
)

FIELDS: Final[dict[type[StoreError], tuple[str, ...]]] = {
    StoreError: (),
    errors.NotFound: ("kind", "key"),
    errors.Conflict: ("reason", "cure"),
    errors.AlreadyExists: ("reason", "cure", "kind", "key"),
    errors.AttemptActive: ("reason", "cure", "rollout_id", "attempt"),
    errors.HeadMoved: ("reason", "cure", "rollout_id", "expected", "found"),
    errors.GraphChanged: ("reason", "cure", "checkpoints"),
    errors.CheckpointMissing: ("reason", "cure", "checkpoint", "scopes", "phase"),
    errors.SideEffectsUnconfirmed: ("reason", "cure", "phases"),
    errors.SpanConflict: ("reason", "cure", "spans", "indexes", "recorded"),
    Invalid: ("field", "reason"),
    errors.TooLarge: ("field", "reason", "size", "limit", "unit"),
    errors.PastUnavailable: ("field", "reason", "rows", "limit"),
    Unavailable: ("reason", "retry_after_seconds"),
    errors.Busy: ("reason", "retry_after_seconds", "waiting", "limit"),
    RateLimited: ("reason", "retry_after_seconds", "partition", "limit"),
    errors.TimedOut: ("reason", "retry_after_seconds", "operation", "seconds"),
    QuotaExceeded: ("partition", "quota", "used", "needed", "limit"),
    Incompatible: ("reason", "cure"),
    errors.Corrupt: ("what", "found", "expected"),
    Unauthorized: ("reason",),
    Forbidden: ("reason", "cure"),
    errors.ReadOnly: ("operation",),
    Unsupported: ("operation", "store"),
    errors.WrongProcess: ("opened_in", "used_in"),
    Closed: ("operation",),
}
"""The fields of each error class, without the message."""

_BY_NAME: Final = {kind.__name__: kind for kind in FIELDS}
_MAX_TEXT: Final = 500


def status_of(error: StoreError, *, is_rollbook_route: bool = False) -> int:
    """Return the HTTP status of an error: 503 if a retry may help, 401 or 403 for keys, 409 for conflicts of spans.

    Other errors have 400.

    Args:
        error: the error.
        is_rollbook_route: whether the route is one that clients of Agent-lightning 0.3 do not call. `RateLimited` then
            has 429, and other errors have the status of their class if it is below 500, or if the error is
            `Unsupported` or `QuotaExceeded`.
    """
    if is_rollbook_route and isinstance(error, RateLimited):
        return error.status
    if error.retryable or isinstance(error, Closed):
        return 503
    if isinstance(error, Unauthorized | Forbidden | SpanConflict):
        return error.status
    is_kept = error.status < 500 or isinstance(error, Unsupported | QuotaExceeded)
    return error.status if is_rollbook_route and is_kept else 400


def error_body(error: StoreError) -> dict[str, Any]:
    """Return an error as a JSON object from which `error_of` restores it."""
    kind = type(error) if type(error) in FIELDS else next(base for base in type(error).__mro__ if base in FIELDS)
    fields = {name: getattr(error, name) for name in FIELDS[kind]}
    return {"detail": str(error), "error_type": kind.__name__, **fields}


def retry_after(error: StoreError) -> str:
    """Return the value of the header `Retry-After` of a response with status 429 or 503: whole seconds, at least 1."""
    return str(max(1, math.ceil(error.retry_after_seconds or 1.0)))


def error_of(status: int, body: bytes, call: str) -> StoreError:
    """Return the error in a server's response.

    Args:
        status: the status, 400 or above.
        body: the body of the response, which may have any content.
        call: the method and the path, for the message of an error without a better description.
    """
    fields = _object(body)
    named = named_error(fields)
    if named is not None:
        return named
    if status == 422:
        return _of_faults(cast("list[dict[str, Any]]", fields.get("detail")))
    text = str(fields.get("detail") or body[:_MAX_TEXT].decode(errors="replace") or "nothing more")
    if status >= 500 or status in {408, 429}:
        return Unavailable(f"{call} failed with status {status}: {text}")
    if status in {401, 407}:
        return Unauthorized(f"{call} failed with status {status}: {text}")
    if status == 403:
        return Forbidden(f"{call} failed with status {status}: {text}")
    if status in {404, 405}:
        return Incompatible(f"{call} failed with status {status}: {text}", "check the URL; is it a Rollbook server's?")
    return Invalid(call, f"failed with status {status}: {text}")


def named_error(fields: Mapping[str, Any]) -> StoreError | None:
    """Return the error that `error_body` converted to a JSON object; None for any other object."""
    kind = _BY_NAME.get(str(fields.get("error_type")))
    if kind is None or not isinstance(fields.get("detail"), str):
        return None
    # The class is not called, because the message is already complete.
    error = kind.__new__(kind, fields["detail"])
    error.args = (fields["detail"],)
    error.__dict__.update({name: fields[name] for name in FIELDS[kind] if name in fields})
    return error


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _of_faults(faults: list[dict[str, Any]]) -> Invalid:
    """Return the first fault in a response with status 422 as an error.

    The key `loc` of a fault is the path of the field, such as `["body", "rollouts", 0, "mode"]`.
    """
    try:
        first = dict(faults[0])
    except (TypeError, ValueError, IndexError):
        return Invalid("body", f"has the wrong shape: {faults}")
    where = [str(part) for part in first.get("loc", [])]
    field = ".".join(where[1:]) or ".".join(where) or "body"
    return Invalid(field, str(first.get("msg", "has the wrong shape")))
