"""Errors of the store, in one class hierarchy. Most are also subclasses of a builtin exception.

    StoreError                              500
    ├── NotFound (LookupError, ValueError)  404  kind, key, text
    ├── Conflict (ValueError)               409  reason, cure
    │   ├── AlreadyExists                        kind, key, cure
    │   ├── AttemptActive                        rollout_id, attempt
    │   ├── HeadMoved                       412  rollout_id, expected, found
    │   ├── GraphChanged                         checkpoints
    │   ├── CheckpointMissing               424  checkpoint, scopes, phase
    │   ├── SideEffectsUnconfirmed          428  phases
    │   └── SpanConflict                         spans, indexes, recorded
    ├── Invalid (ValueError)                422  field, reason
    │   ├── TooLarge                        413  field, size, limit, unit
    │   └── PastUnavailable                      rows, limit
    ├── Unavailable (ConnectionError)       503  reason, retry_after_seconds                  retryable
    │   ├── Busy                                 waiting, limit: the inbox is full            retryable
    │   ├── RateLimited                     429  partition, limit                             retryable
    │   └── TimedOut (TimeoutError)         504  operation, seconds                           retryable
    ├── QuotaExceeded                       507  partition, quota, used, needed, limit
    ├── Incompatible (RuntimeError)         500  reason, cure
    ├── Corrupt (RuntimeError)              500  what, found, expected
    ├── Unauthorized (PermissionError)      401  reason
    ├── Forbidden (PermissionError)         403  reason, cure
    ├── ReadOnly (PermissionError)          403  operation
    ├── Unsupported (NotImplementedError)   501  operation, store
    ├── WrongProcess (RuntimeError)         500  opened_in, used_in
    └── Closed (RuntimeError)               503  operation

`status` is the HTTP status of the error in a server's response. `retryable` states whether the unchanged call may
succeed when it is repeated. A class builds its message from its arguments, so that an error can be pickled and sent
over the wire. Every message except that of `NotFound` ends with a remedy.
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
    "QuotaExceeded",
    "RateLimited",
    "ReadOnly",
    "SideEffectsUnconfirmed",
    "SpanConflict",
    "StoreError",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "WrongProcess",
]


class StoreError(Exception):
    """Base class of all errors that the store raises deliberately."""

    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    retry_after_seconds: float | None = None
    """The time to wait before a retry, in seconds; None if a retry does not help."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default method would call the class with the message. These classes have other arguments, which are
        # attributes of the instance.
        return _restore, (type(self), self.args, self.__dict__)


class NotFound(StoreError, LookupError, ValueError):
    """An object of the call does not exist.

    The messages are equal to those of Agent-lightning 0.3, because clients of Agent-lightning compare the texts.
    """

    status = 404

    def __init__(self, kind: str, key: str, text: str | None = None) -> None:
        super().__init__(text or f"{kind.capitalize()} {key} not found")
        self.kind = kind
        self.key = key

    @classmethod
    def rollout(cls, rollout_id: str) -> NotFound:
        """Return the error of a call that acts on a rollout: start_attempt, update_attempt, add_span."""
        return cls("rollout", rollout_id)

    @classmethod
    def item(cls, **primary_key: str) -> NotFound:
        """Return the error of a call that updates a row by its key: `item(rollout_id="ro-1")`."""
        keys = ", ".join(f"{name}={value!r}" for name, value in primary_key.items())
        kind = next(iter(primary_key)).removesuffix("_id")
        return cls(kind, next(iter(primary_key.values())), f"Item does not exist with primary key(s): {keys}")

    @classmethod
    def attempt(cls, attempt_id: str, rollout_id: str) -> NotFound:
        """Return the error for an attempt that never existed, or whose claim was released."""
        return cls("attempt", attempt_id, f"Attempt {attempt_id} not found for rollout {rollout_id}")

    @classmethod
    def attempts(cls, rollout_id: str) -> NotFound:
        """Return the error for a rollout that has no attempts yet."""
        return cls("attempt", rollout_id, f"No attempts found for rollout {rollout_id}")


class Conflict(StoreError, ValueError):
    """The call conflicts with the state of the store."""

    status = 409

    def __init__(self, reason: str, cure: str = "read the current state and decide again") -> None:
        super().__init__(f"{reason}; {cure}")
        self.reason = reason
        self.cure = cure


class AlreadyExists(Conflict):
    """Another object with this key already exists."""

    def __init__(self, kind: str, key: str, cure: str = "use another key, or read the one that exists") -> None:
        super().__init__(f"{kind} {key!r} already exists", cure)
        self.kind = kind
        self.key = key


class AttemptActive(Conflict):
    """A re-run was requested while an attempt is still active."""

    def __init__(self, rollout_id: str, attempt: int) -> None:
        super().__init__(
            f"attempt {attempt} of rollout {rollout_id} is still active",
            'wait for its end, or give on_active="supersede" to end it and start a new one',
        )
        self.rollout_id = rollout_id
        self.attempt = attempt


class HeadMoved(Conflict):
    """The head is not the attempt that the caller expected. The head moved after the caller had read the rollout."""

    status = 412

    def __init__(self, rollout_id: str, expected: int | None, found: int | None) -> None:
        super().__init__(
            f"the head of rollout {rollout_id} is attempt {found}, not {expected}",
            "read the run again, make a new plan, and give the current head",
        )
        self.rollout_id = rollout_id
        self.expected = expected
        self.found = found


class GraphChanged(Conflict):
    """A checkpoint was saved under another phase graph than the re-run's phase graph."""

    def __init__(self, checkpoints: Sequence[str]) -> None:
        super().__init__(
            f"the phase graph is not the one under which {', '.join(checkpoints)} was saved",
            "re-run from an earlier phase, or give allow_graph_change=True if the saved state still fits",
        )
        self.checkpoints = list(checkpoints)


class CheckpointMissing(Conflict):
    """A re-run cannot start at the requested phase, because a checkpoint is missing or outdated."""

    status = 424

    def __init__(self, checkpoint: str, scopes: Sequence[str], phase: str) -> None:
        super().__init__(
            f"phase {phase} starts from {checkpoint}, which {', '.join(scopes)} does not have in this view",
            'start from an earlier phase, or give on_missing="full" to run all phases of the scope again',
        )
        self.checkpoint = checkpoint
        self.scopes = list(scopes)
        self.phase = phase


class SideEffectsUnconfirmed(Conflict):
    """A re-run would repeat side effects that cannot be undone, such as orders, messages or payments."""

    status = 428

    def __init__(self, phases: Sequence[str]) -> None:
        super().__init__(
            f"running {', '.join(phases)} again repeats side effects",
            "give confirm_side_effects=True to confirm this, or cascade=False to run no other scopes",
        )
        self.phases = list(phases)


class SpanConflict(Conflict):
    """Spans of the call have the keys of stored spans, but other content. All other spans of the call are stored.

    Args:
        spans: rollout_id, attempt_id and span_id of each refused span.
        indexes: the indexes of the refused spans in the call.
        recorded: the index in the call and the sequence id of each span that the call stored.
    """

    def __init__(
        self, spans: Sequence[Sequence[str]], indexes: Sequence[int], recorded: Sequence[Sequence[int]] = ()
    ) -> None:
        rollout_id, attempt_id, span_id = spans[0]
        more = f" (and {len(spans) - 1:,} more spans of the call)" if len(spans) > 1 else ""
        super().__init__(
            f"span {span_id} of attempt {attempt_id} of rollout {rollout_id} is stored with other content{more}",
            "give each span an id of its own, and do not repeat the other spans of the call, which are stored",
        )
        self.spans = [list(key) for key in spans]
        self.indexes = list(indexes)
        self.recorded = [list(pair) for pair in recorded]


class Invalid(StoreError, ValueError):
    """The store cannot accept a value. A retry does not help: correct the field."""

    status = 422

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class TooLarge(Invalid):
    """A value or a call exceeds a documented size."""

    status = 413

    def __init__(self, field: str, size: int, limit: int, unit: str = "bytes") -> None:
        super().__init__(field, f"{size:,} {unit} is more than the limit of {limit:,}; shorten or split it")
        self.size = size
        self.limit = limit
        self.unit = unit


class PastUnavailable(Invalid):
    """A read with `as_at` would compute too many rows from events, because these rows changed after that moment."""

    def __init__(self, rows: int, limit: int) -> None:
        super().__init__(
            "as_at",
            f"{rows:,} rows changed since then and would have to be computed from events, more than {limit:,}; "
            "select fewer rollouts, filter more narrowly, or page with limit and offset",
        )
        self.rows = rows
        self.limit = limit


class Unavailable(StoreError, ConnectionError):
    """The database or the server cannot be reached, or currently cannot write."""

    status = 503
    retryable = True
    is_disk_full: bool = False
    """Whether the database rolled a transaction back for lack of space. If True, the transaction had no effect."""

    def __init__(self, reason: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(f"{reason}; try again in {retry_after_seconds:g} s")
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds

    @classmethod
    def disk_full(cls, detail: str) -> Unavailable:
        """Return the error of a transaction that a database rolled back for lack of space."""
        error = cls(f"the disk is full: {detail}; free some space; no acknowledged call is lost")
        error.is_disk_full = True
        return error


class Busy(Unavailable):
    """The writer's queue of waiting calls is full; the call had no effect."""

    def __init__(self, waiting: int, limit: int, retry_after_seconds: float = 0.1) -> None:
        super().__init__(f"{waiting:,} calls already wait to be written, the most is {limit:,}", retry_after_seconds)
        self.waiting = waiting
        self.limit = limit


class RateLimited(Unavailable):
    """The partition has exceeded its limit of calls per second; the call had no effect."""

    status = 429

    def __init__(self, partition: str, limit: int, retry_after_seconds: float = 1.0) -> None:
        super().__init__(f"the quota of partition {partition!r} is {limit:,} calls per second", retry_after_seconds)
        self.partition = partition
        self.limit = limit


class TimedOut(Unavailable, TimeoutError):
    """There was no response in time. The call may have taken effect: read the state before a retry."""

    status = 504

    def __init__(self, operation: str, seconds: float, retry_after_seconds: float = 1.0) -> None:
        super().__init__(
            f"{operation} had no answer after {seconds:g} s and may have taken effect", retry_after_seconds
        )
        self.operation = operation
        self.seconds = seconds


class QuotaExceeded(StoreError):
    """The call would exceed the quota of events or bytes that the server has for the partition; the call had no effect.

    Calls that finish work are still possible.
    """

    status = 507

    def __init__(self, partition: str, quota: str, used: int, needed: int, limit: int) -> None:
        cure = (
            "remove payload with `rollbook retention` and `rollbook compact`, or raise `--quota` of the server"
            if quota == "bytes"
            else "raise `--quota` of the server, or use another partition"
        )
        super().__init__(
            f"partition {partition!r} has {used:,} {quota}, the call needs {needed:,} more, and the quota is {limit:,};"
            f" {cure}"
        )
        self.partition = partition
        self.quota = quota
        self.used = used
        self.needed = needed
        self.limit = limit


class Incompatible(StoreError, RuntimeError):
    """The program and the database do not match: another schema version, or a cursor of another store."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"{reason}; {cure}")
        self.reason = reason
        self.cure = cure


class Corrupt(StoreError, RuntimeError):
    """The database contains data that no writer of this log has written."""

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(
            f"{what}: found {found}, expected {expected}; run `rollbook verify` for every difference, "
            "then rebuild the projections or restore a backup of the log"
        )
        self.what = what
        self.found = str(found)
        self.expected = str(expected)


class Unauthorized(StoreError, PermissionError):
    """The server requires a valid key."""

    status = 401

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; give the key as api_key=… or in ROLLBOOK_API_KEY, `rollbook keys create` makes one"
        )
        self.reason = reason


class Forbidden(StoreError, PermissionError):
    """The key is valid but does not permit the call, or the request comes from a page of another origin."""

    status = 403

    def __init__(self, reason: str, cure: str = "use a key that permits the call") -> None:
        super().__init__(f"{reason}; {cure}")
        self.reason = reason
        self.cure = cure


class ReadOnly(StoreError, PermissionError):
    """A call would write, but the store was opened read-only."""

    status = 403

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} would write, and this store was opened with read_only=True; open it without read_only=True"
        )
        self.operation = operation


class Unsupported(StoreError, NotImplementedError):
    """The store does not support the operation."""

    status = 501

    def __init__(self, operation: str, store: str) -> None:
        super().__init__(f"{store} has no {operation}; open the database itself with open_store(url)")
        self.operation = operation
        self.store = store


class WrongProcess(StoreError, RuntimeError):
    """A forked child used its parent's store, or opened a SQLite file that its parent had open during the fork.

    The child does not have the threads and connections of the parent's store. SQLite's locks do not survive a fork.
    A forked child also cannot record spans of an attempt that runs in its parent; `operation` is then the refused call.
    """

    def __init__(self, opened_in: int, used_in: int, operation: str | None = None) -> None:
        super().__init__(
            f"the store was open in process {opened_in} when process {used_in} was forked from it; close the "
            "store before the fork and call open_store(url) again in the child, or start the child with the method "
            "spawn of multiprocessing and pass the store to it by pickle"
            if operation is None
            else f"{operation} in process {used_in}, which was forked from process {opened_in} during an attempt; "
            "return the result to the parent and record it there, or run the child's function as "
            "contextvars.Context().run(function), which records nothing"
        )
        self.opened_in = opened_in
        self.used_in = used_in


class Closed(StoreError, RuntimeError):
    """The store was closed before or during the call. A call that had not begun had no effect."""

    status = 503

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} on a closed store; open it again with open_store(url)")
        self.operation = operation


def _restore(kind: type[StoreError], args: tuple[Any, ...], state: dict[str, Any]) -> StoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
