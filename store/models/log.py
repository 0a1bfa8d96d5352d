"""The log as it is read, and the reports about it. Positions are the log's; times are float seconds since the epoch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, computed_field

from store.models.enums import Frozen


class HistoryEvent(Frozen):
    """One fact, as `history` prints it."""

    number: int = Field(ge=1)
    """The event's version in its own stream: 1, 2, 3 … without holes."""
    position: int
    """Its place in the whole log; what `as_at` takes."""
    at: float
    """When the store recorded it."""
    type: str
    """`rollout.enqueued`, `attempt.started`, `span.recorded` …; a name never changes its meaning."""
    shape: int = 1
    """Which form of the type's fields it was written in; `data` is already in the newest form."""
    actor: str | None
    """Who caused it: `worker:<id>`, `key:<id>`, `watchdog`, `cli`, `store`; None when the caller was not known."""
    cause: int | None
    """The position of the earlier event it follows from, where there is one."""
    data: dict[str, Any]
    """Ids, enumerations, numbers and hashes; its times are integer microseconds, as in the log."""
    body: dict[str, Any] | None
    """The payload, keyed by field; None where the event has none, where it was not asked for, or was dropped."""
    body_hash: str | None = None
    """SHA-256 of the payload's uncompressed bytes in hex, kept when they are dropped; None where there were none."""


class LoggedEvent(HistoryEvent):
    """One fact of any stream, as `tail` delivers it."""

    stream: str
    """`<kind>/<id>`: `rollout/ro-…`, `thread/…`, `worker/…`, `resources/…`, or `store`."""
    commit_id: int
    cursor: str
    """Where a reader stands after this event: `tail(after=cursor)` goes on with the next one."""


class Difference(Frozen):
    """One point at which the database and its log disagree."""

    check: str
    """What was compared: `chain`, `guards`, `bodies`, `blobs`, `totals`, `counters`, `seal`, or a projection's name."""
    key: str
    """The row, commit or object: its primary key as text."""
    field: str | None
    """The column; None where the whole row is missing or too many."""
    expected: Any
    """What the log says."""
    found: Any
    """What the table holds; None where it has no such row."""


class VerifyReport(Frozen):
    """What `verify` checked and what it found."""

    store_id: str
    commits: int
    events: int
    streams: int
    rows: dict[str, int]
    """How many rows of each projection were compared with the fold of the log."""
    last_position: int
    """Of the snapshot that was checked; 0 for an empty log."""
    chain_head: str
    """Hash of the last commit in hex: equal for a copied log."""
    state_hash: str
    """Hash of all projected rows in hex: equal for the same commands at the same stamps, on every database."""
    seal_checked: bool
    """Whether a seal was given, and so the part of the log before it was compared with it."""
    differences: list[Difference]
    """The first twenty."""
    difference_count: int
    """All of them."""
    seconds: float

    @computed_field
    @property
    def ok(self) -> bool:
        """Whether the database is what its log says."""
        return self.difference_count == 0


class RebuildReport(Frozen):
    """What `rebuild` folded and what it had to mend."""

    events: int
    streams: int
    rows: dict[str, int]
    """How many rows of each projection were folded from the log."""
    written: dict[str, int]
    """How many rows of each projection differed and were written or removed; empty when nothing did."""
    differences: list[Difference]
    """The first twenty, as they were before."""
    state_hash: str
    """As in `VerifyReport`, afterwards."""
    seconds: float


class Seal(Frozen):
    """The head of the log at one moment, to be kept where the database's owner cannot change it."""

    form: Literal[1] = 1
    """Of this file."""
    store_id: str
    commit_id: int
    """The last commit sealed; 0 for an empty log."""
    position: int
    """The last event sealed; 0 for an empty log."""
    chain_head: str
    """Hash of that commit in hex; it covers every commit before it."""
    sealed_at: float
