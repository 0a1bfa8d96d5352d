"""Every error the store raises, in one tree; each is also the builtin a newcomer would catch.

    StoreError                              500
    ├── NotFound (LookupError, ValueError)  404  kind, key, text
    ├── Conflict (ValueError)               409  reason, cure
    │   ├── AlreadyExists                        kind, key, cure
    │   ├── AttemptActive                        rollout_id, attempt
    │   ├── HeadMoved                       412  rollout_id, expected, found
    │   ├── GraphChanged                         checkpoints
    │   ├── CheckpointMissing               424  checkpoint, scopes, phase
    │   └── SideEffectsUnconfirmed          428  phases
    ├── Invalid (ValueError)                422  field, reason
    │   ├── TooLarge                        413  field, size, limit, unit
    │   └── PastUnavailable                      rows, limit
    ├── Unavailable (ConnectionError)       503  reason, retry_after_seconds                  retryable
    │   ├── Busy                                 waiting, limit: the inbox is full            retryable
    │   └── TimedOut (TimeoutError)         504  operation, seconds                           retryable
    ├── Incompatible (RuntimeError)         500  reason, cure
    ├── Corrupt (RuntimeError)              500  what, found, expected
    ├── Unauthorized (PermissionError)      401  reason
    ├── Forbidden (PermissionError)         403  reason, cure
    ├── ReadOnly (PermissionError)          403  operation
    ├── Unsupported (NotImplementedError)   501  operation, store
    ├── WrongProcess (RuntimeError)         500  opened_in, used_in
    └── Closed (RuntimeError)               503  operation

`status` is the HTTP status a server answers with. `retryable` says whether the same call, sent again unchanged, may
succeed. A class builds its message from its arguments, so that a raise site is one line and an error survives pickle
and the wire; every message ends with what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "AlreadyExists",
    "AttemptActive",
    "Busy",
    "CheckpointMissing",
    "Closed",
    "Conflict",
    "Corrupt",
    "Forbidden",
    "GraphChanged",
    "HeadMoved",
    "Incompatible",
    "Invalid",
    "NotFound",
    "PastUnavailable",
    "ReadOnly",
    "SideEffectsUnconfirmed",
    "StoreError",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "WrongProcess",
]


class StoreError(Exception):
    """The root: `except StoreError` catches all that the store raises on purpose."""

    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    retry_after_seconds: float | None = None
    """How long to wait before trying again, in seconds; None where trying again does not help."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own form calls the class with its message; these classes are called with what the message is
        # made of, all of which lies in the instance's dict.
        return _restore, (type(self), self.args, self.__dict__)


class NotFound(StoreError, LookupError, ValueError):
    """What the call names does not exist. The texts are those of Agent-lightning 0.3, whose callers match them."""

    status = 404

    def __init__(self, kind: str, key: str, text: str | None = None) -> None:
        super().__init__(text or f"{kind.capitalize()} {key} not found")
        self.kind = kind
        self.key = key

    @classmethod
    def rollout(cls, rollout_id: str) -> NotFound:
        """For a call that acts on a rollout: start_attempt, update_attempt, add_span."""
        return cls("rollout", rollout_id)

    @classmethod
    def item(cls, **primary_key: str) -> NotFound:
        """For a call that updates a row by its key: `item(rollout_id="ro-1")`."""
        keys = ", ".join(f"{name}={value!r}" for name, value in primary_key.items())
        kind = next(iter(primary_key)).removesuffix("_id")
        return cls(kind, next(iter(primary_key.values())), f"Item does not exist with primary key(s): {keys}")

    @classmethod
    def attempt(cls, attempt_id: str, rollout_id: str) -> NotFound:
        """For an attempt the rollout never had, or whose claim was released."""
        return cls("attempt", attempt_id, f"Attempt {attempt_id} not found for rollout {rollout_id}")

    @classmethod
    def attempts(cls, rollout_id: str) -> NotFound:
        """For a rollout which nobody has claimed or started yet."""
        return cls("attempt", rollout_id, f"No attempts found for rollout {rollout_id}")


class Conflict(StoreError, ValueError):
    """The call contradicts what the store already holds."""

    status = 409

    def __init__(self, reason: str, cure: str = "read the current state and decide again") -> None:
        super().__init__(f"{reason}; {cure}")
        self.reason = reason
        self.cure = cure


class AlreadyExists(Conflict):
    """Something with this key exists already, and is not the same thing."""

    def __init__(self, kind: str, key: str, cure: str = "use another key, or read the one that exists") -> None:
        super().__init__(f"{kind} {key!r} already exists", cure)
        self.kind = kind
        self.key = key


class AttemptActive(Conflict):
    """A re-run was asked for while an attempt is still at work."""

    def __init__(self, rollout_id: str, attempt: int) -> None:
        super().__init__(
            f"attempt {attempt} of rollout {rollout_id} is still active",
            'wait for its end, or give on_active="supersede" to end it and start anew',
        )
        self.rollout_id = rollout_id
        self.attempt = attempt


class HeadMoved(Conflict):
    """The head is not where the caller saw it last: somebody re-ran, resumed, or undid something."""

    status = 412

    def __init__(self, rollout_id: str, expected: int | None, found: int | None) -> None:
        super().__init__(
            f"the head of rollout {rollout_id} is attempt {found}, not {expected}",
            "read the run again, plan anew, and give the head you then see",
        )
        self.rollout_id = rollout_id
        self.expected = expected
        self.found = found


class GraphChanged(Conflict):
    """A checkpoint was taken under another phase graph than the one that would now continue from it."""

    def __init__(self, checkpoints: Sequence[str]) -> None:
        super().__init__(
            f"the phase graph is not the one under which {', '.join(checkpoints)} was taken",
            "re-run from an earlier phase, or give allow_graph_change=True if its state still fits",
        )
        self.checkpoints = list(checkpoints)


class CheckpointMissing(Conflict):
    """A re-run cannot start where it was asked to: what it would start from is not there, or is out of date."""

    status = 424

    def __init__(self, checkpoint: str, scopes: Sequence[str], phase: str) -> None:
        super().__init__(
            f"phase {phase} starts from {checkpoint}, which {', '.join(scopes)} does not have in this view",
            'start from an earlier phase, or give on_missing="full" to run all of the scope again',
        )
        self.checkpoint = checkpoint
        self.scopes = list(scopes)
        self.phase = phase


class SideEffectsUnconfirmed(Conflict):
    """A re-run would do again what cannot be undone: trade, send, pay."""

    status = 428

    def __init__(self, phases: Sequence[str]) -> None:
        super().__init__(
            f"running {', '.join(phases)} again repeats side effects",
            "give confirm_side_effects=True if that is wanted, or cascade=False to leave other scopes alone",
        )
        self.phases = list(phases)


class Invalid(StoreError, ValueError):
    """A value the store cannot take. Sending it again changes nothing: mend the field."""

    status = 422

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class TooLarge(Invalid):
    """A value, or a whole call, above a documented size."""

    status = 413

    def __init__(self, field: str, size: int, limit: int, unit: str = "bytes") -> None:
        super().__init__(field, f"{size:,} {unit} is more than the {limit:,} a store takes; shorten or split it")
        self.size = size
        self.limit = limit
        self.unit = unit


class PastUnavailable(Invalid):
    """`as_at` would have to fold too many rows that changed since then."""

    def __init__(self, rows: int, limit: int) -> None:
        super().__init__(
            "as_at",
            f"{rows:,} rows changed since then and would have to be folded, more than {limit:,}; "
            "name fewer rollouts, filter more narrowly, or page with limit and offset",
        )
        self.rows = rows
        self.limit = limit


class Unavailable(StoreError, ConnectionError):
    """The database or the server cannot be reached, or cannot write at the moment."""

    status = 503
    retryable = True

    def __init__(self, reason: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(f"{reason}; try again in {retry_after_seconds:g} s")
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Busy(Unavailable):
    """More calls wait for the writer than it accepts; nothing of this one was done."""

    def __init__(self, waiting: int, limit: int, retry_after_seconds: float = 0.1) -> None:
        super().__init__(f"{waiting:,} calls already wait to be written, the most is {limit:,}", retry_after_seconds)
        self.waiting = waiting
        self.limit = limit


class TimedOut(Unavailable, TimeoutError):
    """No answer in time. Whether the call took effect is not known: read, then decide."""

    status = 504

    def __init__(self, operation: str, seconds: float, retry_after_seconds: float = 1.0) -> None:
        super().__init__(
            f"{operation} had no answer after {seconds:g} s and may have taken effect", retry_after_seconds
        )
        self.operation = operation
        self.seconds = seconds


class Incompatible(StoreError, RuntimeError):
    """This program and this database do not fit: schema behind or ahead, or another store than the cursor's."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"{reason}; {cure}")
        self.reason = reason
        self.cure = cure


class Corrupt(StoreError, RuntimeError):
    """The database holds what no writer of this log could have written."""

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(
            f"{what}: found {found}, expected {expected}; run `rollbook verify` for every difference, "
            "then rebuild the projections or restore a backup of the log"
        )
        self.what = what
        self.found = str(found)
        self.expected = str(expected)


class Unauthorized(StoreError, PermissionError):
    """The server asks for a key, and was given none that counts."""

    status = 401

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; give the key as api_key=… or in ROLLBOOK_API_KEY, `rollbook keys create` makes one"
        )
        self.reason = reason


class Forbidden(StoreError, PermissionError):
    """The key counts, and may not do this; or a page of another origin asked."""

    status = 403

    def __init__(self, reason: str, cure: str = "use a key that may") -> None:
        super().__init__(f"{reason}; {cure}")
        self.reason = reason
        self.cure = cure


class ReadOnly(StoreError, PermissionError):
    """The store was opened for reading."""

    status = 403

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} would write, and this store was opened with read_only=True; open it without")
        self.operation = operation


class Unsupported(StoreError, NotImplementedError):
    """This kind of store has no such operation."""

    status = 501

    def __init__(self, operation: str, store: str) -> None:
        super().__init__(f"{store} has no {operation}; open the database itself with open_store(url)")
        self.operation = operation
        self.store = store


class WrongProcess(StoreError, RuntimeError):
    """A forked child used the store of its parent, whose threads and connections it does not have."""

    def __init__(self, opened_in: int, used_in: int) -> None:
        super().__init__(
            f"the store was opened in process {opened_in} and used in its fork {used_in}; "
            "call open_store(url) again in the child, or pass the store to it by pickle"
        )
        self.opened_in = opened_in
        self.used_in = used_in


class Closed(StoreError, RuntimeError):
    """The store was closed before or during the call; a call it had not yet taken was not done."""

    status = 503

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} on a closed store; open it again with open_store(url)")
        self.operation = operation


def _restore(kind: type[StoreError], args: tuple[Any, ...], state: dict[str, Any]) -> StoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
