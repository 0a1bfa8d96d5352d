"""Tests of the number of pages that one commit writes to the write-ahead log of SQLite."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import statistics
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from store import open_store
from store.domain.commands import Idempotency
from store.interface.store import Store
from store.models import Attempt, EnqueueRolloutRequest
from store.runtime import context
from store.runtime.ids import call_key
from store.testing.samples import make_span

_PAGE = 4096
_FILE_HEADER, _FRAME_HEADER = 32, 24


def pages_written(path: Path) -> list[int]:
    """Return the numbers of the pages that were written to the write-ahead log since its last restart."""
    content = path.with_name(path.name + "-wal").read_bytes()
    salts = content[16:24]
    numbers: list[int] = []
    for at in range(_FILE_HEADER, len(content), _FRAME_HEADER + _PAGE):
        if content[at + 8 : at + 16] != salts:
            break
        numbers.append(int.from_bytes(content[at : at + 4]))
    return numbers


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Attempt]]:
    """A file with 5,700 spans, and its attempts. Tests write to a copy."""
    path = tmp_path_factory.mktemp("filled") / "run.db"
    return path, asyncio.run(_fill(path))


async def _fill(path: Path) -> list[Attempt]:
    async with await open_store(f"sqlite:///{path}") as store:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=task) for task in range(300)])
        attempts = [rollout.attempt for rollout in await store.dequeue_many_rollouts(300)]
        await store.add_many_spans([make_span(attempt, number) for attempt in attempts for number in range(1, 20)])
    return attempts


@pytest.mark.parametrize(
    "is_drawn,most",
    [
        # Two pages of `events` (the table and its unique index), and one page each of `rollouts`, `attempts`, `spans`,
        # `bodies`, `commits`, `sqlite_sequence` and `span_counters`.
        pytest.param(False, 9, id="the caller numbers the span"),
        # The counter is written when the number is drawn.
        pytest.param(True, 8, id="the store numbers the span"),
    ],
)
async def test_a_commit_with_one_span_writes_few_pages(
    filled: tuple[Path, list[Attempt]], tmp_path: Path, is_drawn: bool, most: int
) -> None:
    source, attempts = filled
    path = Path(shutil.copy(source, tmp_path))
    written: list[int] = []
    async with await open_store(f"sqlite:///{path}") as store:
        for attempt in attempts[100:130]:
            number = 100
            if is_drawn:
                number = await store.get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id)
            before = len(pages_written(path))
            await store.add_span(make_span(attempt, number))
            written.append(len(pages_written(path)) - before)
    # Sometimes a page is full and the commit adds pages, so the median is compared.
    assert statistics.median(written) <= most, written


async def test_the_keys_of_concurrent_calls_are_on_few_pages(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    async with await open_store(f"sqlite:///{path}") as store:
        attempts = [(await store.start_rollout(task)).attempt for task in range(32)]
    rows = sorted((key, "client", bytes(32), 1, "{}", 2**62) for _ in range(5000) for key in (call_key(), uuid4().hex))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO idempotency VALUES (?, ?, ?, ?, ?, ?)", rows)

    async def record(store: Store, attempt: Attempt, number: int, key: str) -> None:
        token = context.idempotency_key.set(Idempotency("client", key, bytes(32)))
        try:
            await store.add_span(make_span(attempt, number))
        finally:
            context.idempotency_key.reset(token)

    written: dict[str, int] = {}
    async with await open_store(f"sqlite:///{path}") as store:
        for number, (kind, draw) in enumerate({"random": lambda: uuid4().hex, "of a client": call_key}.items(), 1):
            before = len(pages_written(path))
            await asyncio.gather(*(record(store, attempt, number, draw()) for attempt in attempts))
            # The calls may be divided into several batches, so a page may be written twice. Each page is counted once.
            written[kind] = len(set(pages_written(path)[before:]))
    assert written["of a client"] <= written["random"] - 15, written
