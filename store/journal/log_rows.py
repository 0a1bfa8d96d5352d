"""Rows of the log: events, their bodies and the commit, with the hash chain over commits.

The byte format of the hash chain must not change. The running totals of a commit count all events, attempts, bytes of
bodies and so on up to this commit.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Table

from store.db.dialect import NamedRow, Tail
from store.db.tables import core as core_tables
from store.domain.events import AttemptStatusChanged, SpanRecorded, encode
from store.domain.run_commands import IN_BLOBS
from store.domain.working_set import WorkingSet

GENESIS = bytes(32)
_NULL = b"\xff\xff\xff\xff"
_FOUR = struct.Struct(">4q")
_int = struct.Struct(">q").pack
_two = struct.Struct(">qq").pack
_length = struct.Struct(">I").pack
# Adjacent values are packed in one call, because each call takes about as long as the packing itself.
_int_and_length = struct.Struct(">qI").pack
_two_and_length = struct.Struct(">qqI").pack

# For each type of event, the index of the running total that an event of this type increases.
_COUNTED = {
    "rollout.enqueued": 1,
    "rollout.started": 1,
    "attempt.started": 2,
    "span.recorded": 3,
    "resources.published": 4,
    "worker.seen": 5,
}
_EVENTS, _ATTEMPTS, _BODY_BYTES = 0, 2, 6

STORE_STREAM = "store"
"""The stream with the events of the store as a whole."""


class EventRow(NamedTuple):
    """A row of `events`."""

    position: int
    commit_id: int
    stream: str
    version: int
    command: int
    type: str
    shape: int
    at: int
    actor: str | None
    cause: int | None
    data: str
    body_hash: bytes | None


def event_digest(row: EventRow | NamedRow) -> bytes:
    """Return SHA-256 over position, stream, version, command, type, shape, at, actor, cause, data and body_hash.

    An integer is encoded as a big-endian int64. Text and bytes are encoded as a u32 length and the bytes. Null is
    encoded as the length 2**32 - 1.
    """
    stream, type_, data = row.stream.encode(), row.type.encode(), row.data.encode()
    actor = None if row.actor is None else row.actor.encode()
    cause, body_hash = row.cause, row.body_hash
    return hashlib.sha256(
        b"".join(
            (
                _int_and_length(row.position, len(stream)),
                stream,
                _two_and_length(row.version, row.command, len(type_)),
                type_,
                _two(row.shape, row.at),
                _NULL if actor is None else _length(len(actor)) + actor,
                _NULL if cause is None else _int(cause),
                _length(len(data)),
                data,
                _NULL if body_hash is None else _length(len(body_hash)) + body_hash,
            )
        )
    ).digest()


def link(previous: bytes, commit_id: int, first: int, last: int, recorded_at: int, digests: Iterable[bytes]) -> bytes:
    """Return the chain hash of a commit.

    The hash is SHA-256 over the chain hash of the commit before, the numbers of this commit, and the digests of its
    events in the order of the log.
    """
    head = previous + _FOUR.pack(commit_id, first, last, recorded_at)
    return hashlib.sha256(head + b"".join(digests)).digest()


class PositionsHash:
    """SHA-256 over positions of the log as big-endian int64s. The positions must be added in ascending order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0
        """The number of added positions."""

    def add(self, position: int) -> None:
        """Add a position, which must be greater than all positions that were added before."""
        self._hash.update(_int(position))
        self.count += 1

    def hexdigest(self) -> str:
        """Return the hash in hex."""
        return self._hash.hexdigest()


def totals_after(totals: tuple[int, ...], events: list[tuple[str, int]]) -> tuple[int, ...]:
    """Return the running totals after some events.

    Args:
        totals: the running totals before the events.
        events: the type of each event, and the size of its body before compression.
    """
    new_totals = list(totals)
    for type_, body_bytes in events:
        new_totals[_EVENTS] += 1
        new_totals[_BODY_BYTES] += body_bytes
        index = _COUNTED.get(type_)
        if index is not None:
            new_totals[index] += 1
        elif type_ == "claim.released":
            new_totals[_ATTEMPTS] -= 1
    return tuple(new_totals)


def log_rows(
    working_set: WorkingSet, tail: Tail, commit_id: int, batch_key: str, writer: str
) -> dict[Table, list[Sequence[Any]]]:
    """Return the rows of `events`, `bodies`, `commits` and `blobs` that one commit adds to the log.

    Args:
        working_set: the states and the new events of the commit.
        tail: the end of the log before the commit.
        commit_id: the id of the commit.
        batch_key: a unique key, with which the writer can later check whether the commit succeeded.
        writer: the name of the process that writes.
    """
    events: list[Sequence[Any]] = []
    bodies: list[Sequence[Any]] = []
    digests: list[bytes] = []
    counted: list[tuple[str, int]] = []
    for event in working_set.events:
        fact, body = event.fact, event.body
        # The `data` of an event without the fields that later shapes add is the same in all shapes.
        if type(fact) is SpanRecorded:
            details = (fact.tokens_cached, fact.tokens_written, fact.tokens_reasoning, fact.cost)
            shape = 3 if details != (None,) * 4 else 1 if fact.counted_before is None else 2
        else:
            shape = 1 if type(fact) is AttemptStatusChanged and fact.is_counted is None else fact.shape
        row = EventRow(
            event.position,
            commit_id,
            event.stream,
            event.version,
            event.command,
            fact.type,
            shape,
            event.at,
            event.actor,
            event.cause,
            encode(fact),
            None if body is None else body.sha256,
        )
        events.append(row)
        digests.append(event_digest(row))
        # The body of some types of events is stored as a blob. Several events may share a blob, so the size of a
        # blob is not counted.
        if body is None or fact.type in IN_BLOBS:
            counted.append((fact.type, 0))
        else:
            counted.append((fact.type, body.raw_len))
            bodies.append((event.position, body.codec, body.raw_len, body.stored))
    first, last, recorded_at = (
        working_set.events[0].position,
        working_set.events[-1].position,
        working_set.events[-1].at,
    )
    chain_hash = link(tail.chain_hash, commit_id, first, last, recorded_at, digests)
    totals = totals_after(tail.totals, counted)
    commit = (commit_id, batch_key, first, last, recorded_at, writer, chain_hash, *totals)
    written: dict[Table, list[Sequence[Any]]] = {core_tables.events: events, core_tables.commits: [commit]}
    if bodies:
        written[core_tables.bodies] = bodies
    if working_set.new_blobs:
        written[core_tables.blobs] = [
            (name, blob.codec, blob.raw_len, blob.stored) for name, blob in working_set.new_blobs.items()
        ]
    return written
