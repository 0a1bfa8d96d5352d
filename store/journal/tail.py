"""Reads of the log: pages of events with their cursors, and the history of one rollout.

A cursor is a text that identifies a place in the log. It contains the id of the store, the id of a commit, the
beginning of the commit's hash, and the position of an event. The hash of a commit depends on all earlier commits. So a
reader that resumes on another database, or on a database that was restored to an earlier state, gets an error instead
of wrong events.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import blobs, pages, scan
from store.db.queries import log as log_queries
from store.db.queries.bodies import payload
from store.errors import Incompatible, Invalid, NotFound
from store.interface.store import AsAt
from store.journal import as_at as timeline
from store.journal.log_rows import GENESIS
from store.models import HistoryEvent, LoggedEvent
from store.validation import arguments
from store.validation.json_limits import check_text

_FORM = re.compile(r"1\.([^.]+)\.(\d{1,18})\.([0-9a-f]{16})\.(\d{1,18})")
_PREFIX_BYTES = 8
EVENTS_AT_ONCE = 500
_LAST_NUMBER = 2**62


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of a reader in the log: directly after the event at `position`."""

    store_id: str
    commit_id: int = 0
    """The id of the commit that contains the event; 0 before the first event."""
    prefix: str = GENESIS[:_PREFIX_BYTES].hex()
    """The beginning of the commit's hash, in hex."""
    position: int = 0

    def __str__(self) -> str:
        return f"1.{self.store_id}.{self.commit_id}.{self.prefix}.{self.position}"


@dataclass(frozen=True, slots=True)
class TailPage:
    """The next events for a reader."""

    events: list[LoggedEvent]
    place: Cursor
    """The place of the reader after these events, and after the events that the reader's filter excluded."""
    is_last: bool
    """Whether the page reaches the end of the log."""


def parse(text: str) -> Cursor:
    """Return the cursor that a text contains.

    Raises:
        Invalid: the text is not a cursor.
    """
    match = _FORM.fullmatch(arguments.text(text, "after"))
    if match is None:
        raise Invalid("after", f"{text!r} is not a cursor; give the cursor of an event, or None for the beginning")
    store_id, commit_id, prefix, position = match.groups()
    return Cursor(store_id, int(commit_id), prefix, int(position))


async def resume(session: ReadSession, store_id: str, after: str | None) -> Cursor:
    """Return the place in this log at which a reader with the cursor `after` continues.

    If `after` is None, the reader starts at the beginning of the log.

    Raises:
        Invalid: the text is not a cursor.
        Incompatible: the cursor belongs to another store, or to a commit that this database does not have.
    """
    start = Cursor(store_id)
    if after is None:
        return start
    place = parse(after)
    if place.store_id != store_id:
        raise Incompatible(
            f"the cursor belongs to store {place.store_id}, but this is store {store_id}",
            f"open store {place.store_id}, or start from the beginning",
        )
    if place == start:
        return start
    commit = await log_queries.last_commit(session, place.commit_id)
    if commit is None or Cursor(store_id, commit.commit_id, _prefix(commit.chain_hash), place.position) != place:
        raise _incompatible(place, "is not in this log, or follows another history")
    if not commit.first_position <= place.position <= commit.last_position:
        raise _incompatible(place, f"does not contain position {place.position}")
    return place


async def end(session: ReadSession, store_id: str) -> str | None:
    """Return the cursor for the end of the log; None if the log is empty."""
    commit = await log_queries.last_commit(session)
    return None if commit is None else str(_end_of(store_id, commit))


async def before_end(session: ReadSession, store_id: str, count: int) -> str | None:
    """Return the cursor before the last `count` events of the log; None if the log has at most `count` events."""
    last = await log_queries.last_commit(session)
    position = 0 if last is None else last.last_position - count
    commit = await log_queries.commit_at(session, position) if position > 0 else None
    if commit is None:
        return None
    end = _end_of(store_id, commit)
    return str(replace(end, position=min(position, end.position)))


def _end_of(store_id: str, commit: NamedRow) -> Cursor:
    return Cursor(store_id, commit.commit_id, _prefix(commit.chain_hash), commit.last_position)


def _incompatible(place: Cursor, problem: str) -> Incompatible:
    return Incompatible(
        f"commit {place.commit_id} of the cursor {problem}: the database was restored or replaced",
        "start from the beginning, or from a cursor before that commit",
    )


def _prefix(chain_hash: bytes) -> str:
    return bytes(chain_hash[:_PREFIX_BYTES]).hex()


async def page(
    session: ReadSession,
    place: Cursor,
    types: Sequence[str] | None,
    rollout_id: str | None,
    limit: int = EVENTS_AT_ONCE,
) -> TailPage:
    """Return the next events after a place in the log. The session must be a snapshot.

    Args:
        session: a session that reads a snapshot.
        place: the place of the reader.
        types: return only events of these types; None for all types.
        rollout_id: return only events of this rollout; None for all events.
        limit: the maximum number of events.

    Raises:
        Incompatible: the log ends before the commit of the place.
    """
    commit = await log_queries.last_commit(session)
    if commit is None or commit.last_position <= place.position:
        if place.commit_id and (commit is None or commit.commit_id < place.commit_id):
            raise _incompatible(place, "is not in this log any more")
        return TailPage([], place, is_last=True)
    end = _end_of(place.store_id, commit)
    stream = None if rollout_id is None else f"rollout/{rollout_id}"
    rows = await scan.logged(
        session,
        after=place.position,
        until=end.position,
        limit=limit,
        stream=stream,
        types=types,
    )
    events: list[LoggedEvent] = []
    cursor = place
    for row in await blobs.filled(session, rows, lengths=False):
        cursor = Cursor(place.store_id, row.commit_id, _prefix(row.chain_hash), row.position)
        event = LoggedEvent(**_event_fields(row), stream=row.stream, commit_id=row.commit_id, cursor=str(cursor))
        events.append(event)
    is_last = len(rows) < limit
    return TailPage(events, end if is_last else cursor, is_last)


async def history(
    session: ReadSession,
    rollout_id: str,
    as_at: AsAt | None = None,
    *,
    after: int = 0,
    limit: int = -1,
) -> list[HistoryEvent]:
    """Return events of a rollout, oldest first. The session must be a snapshot.

    The other arguments are those of `StoreLog.history`.

    Raises:
        NotFound: the rollout does not exist, or did not exist at that moment.
        Invalid: `as_at` is neither a position nor an aware datetime, or another argument has a wrong type.
    """
    stream = f"rollout/{check_text(rollout_id, 'rollout_id', pages.LONGEST_ID)}"
    arguments.part_of_history(after, limit)
    number = min(after, _LAST_NUMBER)
    until = None if as_at is None else await timeline.moment(session, as_at)
    if not await log_queries.stream_events(session, stream, until=until, limit=1):
        raise NotFound.rollout(rollout_id)
    events: list[HistoryEvent] = []
    while limit < 0 or len(events) < limit:
        at_most = EVENTS_AT_ONCE if limit < 0 else min(EVENTS_AT_ONCE, limit - len(events))
        rows: Sequence[NamedRow] = await log_queries.stream_events(
            session, stream, after=number, until=until, limit=at_most, bodies=True
        )
        filled = await blobs.filled(session, rows, lengths=False)
        events.extend(HistoryEvent(**_event_fields(row)) for row in filled)
        if len(rows) < at_most:
            break
        number = events[-1].number
    return events


def _event_fields(row: NamedRow) -> dict[str, Any]:
    return log_queries.described(row, payload(row.codec, row.body))
