"""Functions that move the data of events into blocks. Other processes may write meanwhile. Decision 72.

The data of an event is its JSON text without payload. A block contains the data of 128 events, compressed together.
Other events may lie between these events; their data stays in their rows. Each transaction is short: it stores one
block, and
replaces the data of the events by references to the block. So a call that is stopped at any moment leaves a correct
store, and the next call continues after the last block.

Some data stays in its row, for one of three reasons. SQL statements read the rewards of spans
(`store.db.queries.rewards`) and the names of blobs (`store.db.queries.removal`, `store.verification.log_scan`). A
writer reads reserved numbers of spans while it holds the write lock. Long data would make the reads of the other events
of its block slower.
"""

from __future__ import annotations

import time
from typing import Any, Final

from store.db.data_blocks import EVENTS_PER_BLOCK, LONGEST_DATA, MARK, pack, reference, unpack
from store.db.dialect import Changes, TablePart, WriteSession
from store.db.queries import data_blocks as queries
from store.db.tables import core as core_tables
from store.domain.events import SpanNumbersReserved, SpanRecorded
from store.operations.pace import Pace
from store.runtime.progress import OnProgress, OperationProgress
from store.verification.log_scan import REFERRING

_READ_AT_ONCE: Final = 2000
_DATA: Final = TablePart(core_tables.events, ("data",))


async def pack_events(session: WriteSession, pace: Pace, until: int, on_progress: OnProgress) -> int:
    """Store the data of events in blocks, and return the number of these events.

    The data of the last events stays in its rows until there are enough events for a block. If another process stores
    blocks at the same time, this call ends early.

    Args:
        session: a session that writes to the database.
        pace: determines the pauses between transactions. Each transaction changes the events of one block.
        until: the last position whose event may be stored in a block.
        on_progress: called with the last position that was read.

    Raises:
        RuntimeError: a block does not contain the data of its events. The block was not stored.
    """
    async with session.dialect.read() as reader:
        after = await queries.last_position(reader)
    packed = 0
    waiting: list[tuple[int, str]] = []
    while True:
        async with session.dialect.read() as reader:
            events = await queries.events_after(reader, after, until, _READ_AT_ONCE)
        if not events:
            return packed
        after = events[-1].position
        waiting += [(event.position, event.data) for event in events if not _stays(event.type, event.data)]
        while len(waiting) >= EVENTS_PER_BLOCK:
            block, waiting = waiting[:EVENTS_PER_BLOCK], waiting[EVENTS_PER_BLOCK:]
            if not await _store(session, pace, block):
                return packed
            packed += EVENTS_PER_BLOCK
        on_progress(OperationProgress("compressing events", after, until))


def _stays(type_: str, data: Any) -> bool:
    """Return whether the data of an event stays in its row."""
    # The data of a damaged event may be any text, and on SQLite any value.
    if not isinstance(data, str) or len(data) > LONGEST_DATA or "\n" in data or data.startswith(MARK):
        return True
    if type_ == SpanNumbersReserved.type or (type_ == SpanRecorded.type and '"rewards":' in data):
        return True
    return type_ in REFERRING and "sha256" in data


async def _store(session: WriteSession, pace: Pace, events: list[tuple[int, str]]) -> bool:
    """Store a block; return False if another process stores blocks at the same time."""
    first, last = events[0][0], events[-1][0]
    body = pack(events)
    if unpack(first, body) != dict(events):
        message = f"a new block does not contain the data of events {first} to {last}, so it was not stored"
        raise RuntimeError(message)
    stored = reference(first)
    await session.begin()
    began = time.monotonic()
    try:
        if await queries.last_position(session) >= first:
            await session.rollback()
            return False
        changes = Changes(
            {core_tables.data_blocks: [(first, last, body)]},
            {},
            {},
            {_DATA: [(position, stored) for position, _ in events]},
        )
        await session.write(changes)
        await session.commit()
    except BaseException:
        await session.rollback()
        raise
    await pace.pause(time.monotonic() - began)
    await session.rest()
    return True
