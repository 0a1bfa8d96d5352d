"""Batches of the records of a reader. The rollouts of a batch are stored at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Final

from store.errors import StoreError
from store.imports.report import Skipped
from store.imports.rollouts import ForeignResources, ForeignRollout, size_of

ROLLOUTS_AT_ONCE: Final = 64
"""The most rollouts of a batch."""
BYTES_AT_ONCE: Final = 8_000_000
"""The total size of spans in bytes at which a batch gets no further record."""

Record = ForeignRollout | ForeignResources | Skipped
Records = Iterable[Record] | AsyncIterable[Record]


async def batches(records: Records) -> AsyncIterator[list[Record]]:
    """Yield the records in batches that fit into memory. No two rollouts of a batch have the same key.

    Args:
        records: the records; a plain iterator is called in a thread.

    Raises:
        StoreError: the reader raised this error. The records before it were yielded.
    """
    batch: list[Record] = []
    keys: set[str] = set()
    size = 0
    error: StoreError | None = None
    iterator = aiter(records) if isinstance(records, AsyncIterable) else _in_thread(records)
    while True:
        try:
            record = await anext(iterator, None)
        except StoreError as reader_error:
            record, error = None, reader_error
        is_repeated = isinstance(record, ForeignRollout) and record.key in keys
        if batch and (record is None or is_repeated or len(batch) >= ROLLOUTS_AT_ONCE or size >= BYTES_AT_ONCE):
            yield batch
            batch, size = [], 0
            keys.clear()
        if record is None:
            break
        batch.append(record)
        if isinstance(record, ForeignRollout):
            keys.add(record.key)
            size += sum(size_of(span) for span in record.spans)
    if error is not None:
        raise error


async def _in_thread(records: Iterable[Record]) -> AsyncIterator[Record]:
    iterator = iter(records)
    # `next` returns None at the end, because a future cannot raise StopIteration.
    while (record := await asyncio.to_thread(next, iterator, None)) is not None:
        yield record
