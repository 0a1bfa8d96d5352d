"""Events that are read from the log, and reports about the log. Times are float seconds since the epoch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, computed_field

from store.models.enums import Frozen


class HistoryEvent(Frozen):
    """One event, as `history` returns it."""

    number: int = Field(ge=1)
    """The event's version in its own stream: 1, 2, 3 … without gaps."""
    position: int
    """The position of the event in the whole log. The argument `as_at` of reads takes such a position."""
    at: float
    """When the store recorded the event."""
    type: str
    """The type: `rollout.enqueued`, `attempt.started`, `span.recorded` … The meaning of a type never changes."""
    shape: int = 1
    """The version of the fields with which the event was written. `data` is already converted to the newest version."""
    actor: str | None
    """The caller: `worker:<id>`, `key:<id>`, `watchdog`, `cli`, `store`; None if the caller was not known."""
    cause: int | None
    """The position of the earlier event that caused this one, if there is one."""
    data: dict[str, Any]
    """Ids, enumerations, numbers and hashes. Times in here are integer microseconds, as in the log."""
    body: dict[str, Any] | None
    """The payload by field. None if the event has no payload, if the reader did not request it, or if it was dropped.

    To drop a payload means to remove its text from the log; the event itself remains.
    """
    body_hash: str | None = None
    """SHA-256 of the payload's uncompressed bytes in hex, also if the payload was dropped. None if it never existed."""

    def notebook_row(self) -> dict[str, object]:
        """Return the values that a notebook shows."""
        from store.runtime.html import Moment

        return {
            "number": self.number,
            "position": self.position,
            "time": Moment(self.at),
            "type": self.type,
            "actor": self.actor,
            "data": self.data,
            "body": self.body,
        }

    def _repr_html_(self) -> str:
        from store.runtime import html

        return html.titled(self.type, html.fields(self.notebook_row()))


class History(list[HistoryEvent]):
    """The events of a rollout, a list that notebooks show as a table."""

    def _repr_html_(self) -> str:
        from store.runtime import html

        return html.titled(f"History: {len(self):,} events", html.items(self))


class LoggedEvent(HistoryEvent):
    """One event of any stream, as `tail` returns it."""

    stream: str
    """The name of the stream: `rollout/<id>`, `thread/<id>`, `worker/<id>`, `resources/<id>`, or `store`."""
    commit_id: int
    cursor: str
    """The reader's position after this event: `tail(after=cursor)` continues with the next event."""


class LogPosition(Frozen):
    """A moment of a store's log."""

    store_id: str
    """The id of the store."""
    position: int
    """The position of the last event up to the moment, rounded down so that it is not inside a call; 0 for none."""


class Difference(Frozen):
    """One difference between the database and its log."""

    check: str
    """The failed check: `chain`, `guards`, `sequences`, `bodies`, `blobs`, `totals`, `counters`, `seal`, or the name of
    the table whose rows differ."""
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
    """By projection, the number of rows that were compared with the rows computed from the log."""
    last_position: int
    """The last position of the log in the database snapshot that was checked; 0 for an empty log."""
    chain_head: str
    """Hash of the last commit in hex. It covers all commits before, so a complete copy of the log has the same hash."""
    state_hash: str
    """Hash of the rows of all projections in hex.

    The same commands at the same times give the same hash on every database.
    """
    seal_checked: bool
    """Whether the caller gave a seal, so that the log up to the seal was compared with it."""
    differences: list[Difference]
    """The differences, at most the first 1,000."""
    difference_count: int
    """The number of all differences."""
    seconds: float

    @computed_field
    @property
    def ok(self) -> bool:
        """Whether the database agrees with its log."""
        return self.difference_count == 0

    def _repr_html_(self) -> str:
        from store.runtime import html

        sizes = {"store": self.store_id, "events": self.events, "commits": self.commits, "seconds": self.seconds}
        title = "The database agrees with its log" if self.ok else f"{self.difference_count:,} differences"
        differences = "" if self.ok else html.items(self.differences, self.difference_count)
        return html.titled(title, html.fields(sizes) + differences)


class RebuildReport(Frozen):
    """The result of `rebuild`, which computes all rows of projections from the log and repairs those that differ."""

    events: int
    streams: int
    rows: dict[str, int]
    """By projection, the number of rows that were computed from the log."""
    written: dict[str, int]
    """By table, the number of rows that differed and were written or removed; empty if no row differed.

    The tables are the projections, and `span_counters`, `watch` and `queue_epoch`.
    """
    differences: list[Difference]
    """The differences before the rebuild, at most the first 1,000."""
    state_hash: str
    """Hash of the rows of all projections after the rebuild, in hex, as in `VerifyReport`."""
    seconds: float


class Seal(Frozen):
    """A description of the log's end at one moment, which later shows whether the log before it was changed.

    The seal must be stored where the owner of the database cannot change it.
    """

    form: Literal[1] = 1
    """The version of the file format."""
    store_id: str
    commit_id: int
    """The id of the last commit that the seal covers; 0 for an empty log."""
    position: int
    """The position of the last event that the seal covers; 0 for an empty log."""
    chain_head: str
    """Hash of the commit `commit_id` in hex. It covers all earlier commits too."""
    sealed_at: float
