"""A cache that reads only changed blocks of rollouts again has the same figures as a new cache."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest

from store import EnqueueRolloutRequest
from store.dashboard.views import failed_attempts
from store.dashboard.views.failed_attempts import newest_failures
from store.dashboard.views.figure_cache import FigureCache
from store.db.dialect import ReadSession
from store.db.queries import rollout_blocks
from store.db.queries.groups import group_values_by_step, signal_cells
from store.db.queries.overview import active_starts, ended_by_minute
from store.db.queries.resource_list import attempt_counts, use_sums
from store.db.queries.scan_figures import cells, worker_scans
from store.db.queries.scanners import result_counts
from store.db.queries.step_totals import BlockTotals, step_totals, totals_of_blocks
from store.interface.store import Store
from store.models import AttemptError, PromptTemplate
from store.models.missing_rewards import FAILED_AS_ZERO
from store.models.scanners import NewScan, NewScanner, Scanner
from store.operations import Redaction, redact
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.dashboard.page_helpers import ON_BOTH, failed, rewarded

HACKS = NewScanner(name="hacks", version="v1", kind="regex", definition={"pattern": "a"})
SCANNER = Scanner(**HACKS.model_dump(), at=0.0, actor=None, matches=0, clear=0, failures=0)
ROWS: dict[str, Callable[..., Awaitable[Any]]] = {
    "step totals": step_totals,
    "active": active_starts,
    "ended": partial(ended_by_minute, since=0),
    "use sums": partial(use_sums, missing=FAILED_AS_ZERO),
    "attempt counts": attempt_counts,
    "scan counts": result_counts,
    "scan cells": partial(cells, scanner=SCANNER),
    "worker scans": partial(worker_scans, scanner=SCANNER),
    "group values": partial(group_values_by_step, missing=FAILED_AS_ZERO, threshold=0.5, modes=()),
}


async def _change(store: Store, dice: random.Random, number: int) -> None:
    """Change some rollouts as a training does."""
    match number % 6:
        case 0:
            requests = [
                EnqueueRolloutRequest(
                    input={"number": number},
                    mode=dice.choice(["train", "val"]),
                    metadata={"rollbook.step": number // 12, "rollbook.group": f"g{number // 18}"},
                )
                for _ in range(4)
            ]
            await store.enqueue_many_rollouts(requests)
        case 1 | 2 | 3:
            for claimed in await store.dequeue_many_rollouts(2, f"w{dice.randrange(3)}"):
                if dice.random() < 0.8:
                    await store.add_span(rewarded(claimed, dice.random()))
                ids = (claimed.rollout_id, claimed.attempt.attempt_id)
                if dice.random() < 0.5:
                    error = AttemptError(type="ValueError", message=f"no {number}")
                    await store.update_attempt(*ids, status="failed", error=error)
                else:
                    await store.update_attempt(*ids, status="succeeded")
        case 4:
            await store.update_resources("prompts", {"main": PromptTemplate(template=str(number), engine="f-string")})
            ids = [
                (attempt.rollout_id, attempt.attempt_id) for attempt in await store.scanners.unscanned("hacks", "v1")
            ]
            scans = [
                NewScan(rollout_id=rollout, attempt_id=attempt, is_match=number % 4 == 0) for rollout, attempt in ids
            ]
            await store.scanners.record("hacks", "v1", scans[:2])
        case _:
            page = await store.query_rollouts(limit=50)
            rollout = dice.choice(page.items)
            await store.update_rollout(rollout.rollout_id, status=dice.choice(["requeuing", "cancelled"]))


def _plain(row: Any) -> str:
    """Return a row as text. The order of statuses and the last digit of sums depend on the order of the rows."""
    return json.dumps(
        json.loads(json.dumps(asdict(row)), parse_float=lambda text: round(float(text), 9)), sort_keys=True
    )


@ON_BOTH
async def test_rows_of_changed_blocks_equal_the_rows_of_all_blocks(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_blocks, "_POSITIONS", 8)
    cache, dice, reads = FigureCache(), random.Random(5), list[int | None]()

    async def compare(session: ReadSession) -> None:
        new = FigureCache()
        for key, read in ROWS.items():

            async def counted(session: ReadSession, block: int | None, read: Any = read) -> Any:
                reads.append(block)
                return await read(session, block)

            rows, all_rows = await cache.rows(session, key, counted), await new.rows(session, key, read)
            assert sorted(map(_plain, rows)) == sorted(map(_plain, all_rows)), key
        assert await newest_failures(session, cache) == await newest_failures(session, new)

    await store.update_resources("prompts", {"main": PromptTemplate(template="0", engine="f-string")})
    await store.scanners.add(HACKS)
    for number in range(36):
        await _change(store, dice, number)
        if number % 3 != 1:
            await store.core.look(compare, snapshot=True)
    assert reads.count(None) < len(reads) / 4
    await store.core.look(compare, snapshot=True)
    assert reads[-1] is not None


@ON_BOTH
async def test_sums_of_steps_and_groups_do_not_depend_on_the_size_of_blocks(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.scanners.add(HACKS)
    for number in range(24):
        await _change(store, random.Random(number), number)

    async def figures(session: ReadSession) -> tuple[Any, Any]:
        signals = signal_cells(await ROWS["group values"](session, None))
        totals = totals_of_blocks(await step_totals(session))
        return sorted((part.step, part.mode, part.rollouts, part.failed, part.rewarded) for part in totals), signals

    together = await store.core.look(figures, snapshot=True)
    monkeypatch.setattr(rollout_blocks, "_POSITIONS", 2)
    assert await store.core.look(figures, snapshot=True) == together


async def test_after_a_removal_of_payload_all_rows_are_read_again(store_url: str, clock: ManualClock) -> None:
    cache, reads = FigureCache(), list[int | None]()

    async def read(session: ReadSession, block: int | None) -> list[BlockTotals]:
        reads.append(block)
        return await step_totals(session, block)

    look = partial(cache.rows, key="step totals", read=read)
    async with await SQLStore.open(store_url, clock=clock) as store:
        rollout = await failed(store)
        await store.core.look(look, snapshot=True)
    redaction = Redaction.of(everything=True, reason="requested")
    await redact(store_url, rollout.rollout_id, redaction, actor="cli", clock=clock)
    async with await SQLStore.open(store_url, clock=clock) as store:
        await store.core.look(look, snapshot=True)
    assert reads == [None, None]


@ON_BOTH
async def test_with_more_failures_than_the_limit_the_newest_of_all_are_read(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_attempts, "MOST", 3)
    monkeypatch.setattr(rollout_blocks, "_POSITIONS", 8)
    cache = FigureCache()

    async def look() -> tuple[list[str], int]:
        failures, total = await store.core.look(partial(newest_failures, cache=cache), snapshot=True)
        return [failure.rollout_id for failure in failures], total

    ids = [(await failed(store)).rollout_id for _ in range(5)]
    assert await look() == (ids[:1:-1], 5)
    await store.log_metrics(1, {"loss": 0.5})
    for rollout_id in (ids[4], ids[1], ids[3]):
        attempt = await store.get_latest_attempt(rollout_id)
        assert attempt is not None
        await store.update_attempt(rollout_id, attempt.attempt_id, status="succeeded")
        expected, total = await look()
        assert (expected, total) == await newest_of(store)
    assert expected == [ids[2], ids[0]]


async def newest_of(store: SQLStore) -> tuple[list[str], int]:
    """Return the newest failures as a new cache reads them."""
    failures, total = await store.core.look(partial(newest_failures, cache=FigureCache()), snapshot=True)
    return [failure.rollout_id for failure in failures], total


async def test_logged_metrics_leave_the_rows_of_blocks(store: SQLStore) -> None:
    cache, reads = FigureCache(), list[int | None]()

    async def read(session: ReadSession, block: int | None) -> list[BlockTotals]:
        reads.append(block)
        return await step_totals(session, block)

    await failed(store)
    for _ in range(2):
        await store.core.look(partial(cache.rows, key="step totals", read=read), snapshot=True)
        await store.log_metrics(1, {"loss": 0.5})
    assert reads == [None]


@ON_BOTH
async def test_session_of_an_older_state_reads_the_rows_of_that_state(store: SQLStore) -> None:
    cache = FigureCache()
    read = partial(cache.rows, key="step totals", read=step_totals)
    await failed(store)

    async def counts(session: ReadSession) -> list[int]:
        older = await read(session)
        await failed(store)
        newer = await store.core.look(read, snapshot=True)
        return [sum(part.totals.rollouts for part in blocks) for blocks in (older, newer, await read(session))]

    assert await store.core.look(counts, snapshot=True) == [1, 2, 1]
