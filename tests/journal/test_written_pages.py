"""Tests of the number of pages that one commit writes to the write-ahead log of SQLite."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from store import open_store
from store.testing.samples import make_span

_PAGE = 4096
_FILE_HEADER, _FRAME_HEADER = 32, 24


def pages_written(path: Path) -> int:
    """Return the number of pages that were written to the write-ahead log since its last restart."""
    content = path.with_name(path.name + "-wal").read_bytes()
    salts = content[16:24]
    count = 0
    for at in range(_FILE_HEADER, len(content), _FRAME_HEADER + _PAGE):
        if content[at + 8 : at + 16] != salts:
            break
        count += 1
    return count


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
async def test_a_commit_with_one_span_writes_few_pages(tmp_path: Path, is_drawn: bool, most: int) -> None:
    path = tmp_path / "run.db"
    async with await open_store(f"sqlite:///{path}") as store:
        rollouts = [await store.start_rollout(task) for task in range(300)]
        await store.add_many_spans([make_span(each.attempt, number) for each in rollouts for number in range(1, 20)])
    written: list[int] = []
    async with await open_store(f"sqlite:///{path}") as store:
        for each in rollouts[100:130]:
            number = 100
            if is_drawn:
                number = await store.get_next_span_sequence_id(each.rollout_id, each.attempt.attempt_id)
            before = pages_written(path)
            await store.add_span(make_span(each.attempt, number))
            written.append(pages_written(path) - before)
    # Sometimes a page is full and the commit adds pages, so the median is compared.
    assert statistics.median(written) <= most, written
