"""Readers by position miss no event and see none twice, whatever the writers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from store import open_store
from tests.faults.gap_hammer import hammer
from tests.torture import Rounds

_ATTEMPTS = 20

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(600)]


async def test_readers_miss_nothing_beside_writers_that_roll_back_and_die(
    durable_url: str, rounds: Rounds, tmp_path: Path
) -> None:
    result = await hammer(durable_url, tmp_path, kills=rounds(100, few=2))
    print(f"\n{durable_url.partition(':')[0]}: {result}")
    assert result.events > 100
    assert result.lost == []
    for reading in result.readings:
        assert list(reading.seen) == list(reading.log), str(reading)
    async with await open_store(durable_url, read_only=True) as store:
        report = await store.log.verify()
    assert report.ok, report.differences


@pytest.mark.postgres
async def test_without_the_lock_the_same_readers_miss_events(postgres_url: str, rounds: Rounds, tmp_path: Path) -> None:
    # A reader misses events only if transactions overlap. On a busy machine, that may take more than one attempt.
    missing = set[str]()
    for number in range(_ATTEMPTS):
        directory = tmp_path / str(number)
        directory.mkdir()
        result = await hammer(postgres_url, directory, kills=rounds(5, few=1), locked=False)
        print(f"\nwithout the lock: {result}")
        missing |= {reading.reader for reading in result.readings if reading.missed}
        if len(missing) == len(result.readings):
            return
    pytest.fail(f"in {_ATTEMPTS} attempts, only these readers missed events: {missing}")
