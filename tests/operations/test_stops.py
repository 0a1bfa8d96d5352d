"""A copy that is killed or fills its disk leaves no partial store, and the same call completes it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

import pytest

from store.db.url import parse
from store.errors import AlreadyExists
from store.operations import copy_store
from tests import postgres
from tests.conftest import POSTGRES, SQLITE
from tests.faults import processes
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import assert_equal
from tests.operations.work import copy, copy_until_full
from tests.torture import rounds

KILLS_PER_COPY = rounds(5, few=2)


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_a_copy_killed_at_any_instant_is_absent_or_complete(kind: str, make_url: MakeURL, full: str) -> None:
    began = time.monotonic()
    with processes.running(copy, (full, make_url(kind))) as undisturbed:
        assert await asyncio.to_thread(processes.leave, undisturbed) == [0]
    needed = time.monotonic() - began
    finished = 0
    for _ in range(rounds(20, few=1)):
        target = make_url(kind)
        for _ in range(KILLS_PER_COPY):
            with processes.running(copy, (full, target)) as (process,):
                await asyncio.to_thread(process.join, random.uniform(0, needed))
            if _is_there(target):
                break
        # Postgres may still execute what the killed process has sent, the renaming included. A finished copy whose
        # process was killed is reported, and not refused.
        with contextlib.suppress(AlreadyExists):
            await copy_store(full, target)
        finished += 1
        await assert_equal(full, target)
        with pytest.raises(AlreadyExists):
            await copy_store(full, target)
    print(f"\n{finished} copies to {kind}, each killed up to {KILLS_PER_COPY} times")


def _is_there(url: str) -> bool:
    parsed = parse(url)
    if parsed.path is not None:
        return parsed.path.exists()
    return bool(
        postgres.execute(url, f"SELECT nspname FROM pg_namespace WHERE nspname = 'rollbook_{parsed.partition}'")
    )


@pytest.mark.slow
@pytest.mark.parametrize("room", [60_000, 350_000])
async def test_a_full_disk_is_reported_and_the_copy_continues_later(room: int, full: str, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    with processes.running(copy_until_full, (full, f"sqlite:///{target}", room)) as copying:
        assert await asyncio.to_thread(processes.leave, copying) == [0]
    assert not target.exists()
    await copy_store(full, f"sqlite:///{target}")
    await assert_equal(full, f"sqlite:///{target}")
