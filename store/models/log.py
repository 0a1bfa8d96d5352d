"""Events read from the log, and reports about it. Positions are the log's; times are float seconds since the epoch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, computed_field

from store.models.enums import Frozen


class HistoryEvent(Frozen):
    """One event, as `history` returns it."""

    number: int = Field(ge=1)
    """The event's version in its own stream: 1, 2, 3 … without gaps."""
    position: int
    """Its position in the whole log, as `as_at` takes it."""
    at: float
    """When the store recorded it."""
    type: str
    """`rollout.enqueued`, `attempt.started`, `span.recorded` …; a name never changes its meaning."""
    shape: int = 1
    """The version of the type's fields in which it was written; `data` is already in the newest version."""
    actor: str | None
    """The caller: `worker:<id>`, `key:<id>`, `watchdog`, `cli`, `store`; None if the caller was not known."""
    cause: int | None
    """The position of the earlier event that caused this one, if there is one."""
    data: dict[str, Any]
    """Ids, enumerations, numbers and hashes; its times are integer microseconds, as in the log."""
    body: dict[str, Any] | None
    """The payload by field; None if the event has none, if it was not requested, or if it was dropped."""
    body_hash: str | None = None
    """SHA-256 of the payload's uncompressed bytes in hex, kept after a drop; None if there was no payload."""


class LoggedEvent(HistoryEvent):
    """One event of any stream, as `tail` returns it."""

    stream: str
    """`<kind>/<id>`: `rollout/ro-…`, `thread/…`, `worker/…`, `resources/…`, or `store`."""
    commit_id: int
    cursor: str
    """The reader's position after this event: `tail(after=cursor)` continues with the next event."""


class Difference(Frozen):
    """One difference between the database and its log."""

    check: str
    """The failed check: `chain`, `guards`, `sequences`, `bodies`, `blobs`, `totals`, `counters`, `seal`, or a table."""
    key: str
    """The primary key of the row, commit or object, as text."""
    field: str | None
    """The column; None if the whole row is missing or should not exist."""
    expected: Any
    """The value according to the log."""
    found: Any
    """The value in the table; None if the table has no such row."""


class VerifyReport(Frozen):
    """The result of `verify`: the compared rows and the differences."""

    store_id: str
    commits: int
    events: int
    streams: int
    rows: dict[str, int]
    """The number of rows of each projection that were compared with the fold of the log."""
    last_position: int
    """The last position of the snapshot that was checked; 0 for an empty log."""
    chain_head: str
    """Hash of the last commit in hex; a copied log has the same."""
    state_hash: str
    """Hash of all projected rows in hex; the same commands at the same times give the same hash on every database."""
    seal_checked: bool
    """Whether a seal was given, and the part of the log before it was compared with it."""
    differences: list[Difference]
    """The first twenty differences."""
    difference_count: int
    """The number of all differences."""
    seconds: float

    @computed_field
    @property
    def ok(self) -> bool:
        """Whether the database agrees with its log."""
        return self.difference_count == 0


class RebuildReport(Frozen):
    """The result of `rebuild`: the computed rows and the repaired rows."""

    events: int
    streams: int
    rows: dict[str, int]
    """The number of rows of each projection that were folded from the log."""
    written: dict[str, int]
    """The number of rows of each projection that differed and were written or removed; empty if none differed."""
    differences: list[Difference]
    """The first twenty differences before the rebuild."""
    state_hash: str
    """As in `VerifyReport`, after the rebuild."""
    seconds: float


class Seal(Frozen):
    """The end of the log at one moment, to be stored where the owner of the database cannot change it."""

    form: Literal[1] = 1
    """The version of the file format."""
    store_id: str
    commit_id: int
    """The last commit sealed; 0 for an empty log."""
    position: int
    """The last event sealed; 0 for an empty log."""
    chain_head: str
    """Hash of that commit in hex; it covers every commit before it."""
    sealed_at: float
