"""A copy of some rollouts is a store of its own, in which these rollouts have their whole history."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.db.tables import core as core_tables
from store.db.url import parse
from store.errors import AlreadyExists, Incompatible, Invalid, NotFound
from store.interface.store import Store
from store.models.queries import RolloutQuery
from store.operations import (
    OperationProgress,
    Redaction,
    RetentionPolicy,
    compact,
    compression,
    copy_rollouts,
    copy_store,
    count_rollouts,
    log_source,
    packing,
    receipts,
    redact,
    remove_payload,
)
from store.testing import ManualClock
from tests.conftest import SQLITE
from tests.faults import processes
from tests.journal.database_helpers import ask
from tests.operations import payloads, work
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import assert_equal, content, verified
from tests.operations.test_compression import fill as fill_for_dictionary
from tests.torture import rounds

pytestmark = pytest.mark.slow

_ENDED = RolloutQuery.of(status_in=["succeeded", "failed"])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "EVENTS_AT_ONCE", 10)


class Stop(Exception):
    """Stops a copy."""


def stop_at(step: str, done: int = 0) -> Callable[[OperationProgress], None]:
    def on_progress(progress: OperationProgress) -> None:
        if progress.step == step and progress.done >= done:
            raise Stop

    return on_progress


async def reads_of(store: Store, rollout_id: str) -> list[Any]:
    """Return what a store says of a rollout, without positions of the log."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    resources_id = rollout.resources_id
    events = [event.model_dump(exclude={"position", "cause"}) for event in await store.log.history(rollout_id)]
    for event in events:
        event["data"].pop("queued_at", None)  # a position
    return [
        rollout,
        list(await store.query_attempts(rollout_id)),
        list(await store.query_spans(rollout_id)),
        None if resources_id is None else await store.get_resources_by_id(resources_id),
        events,
        await store.annotations.query(rollout_id),
    ]


async def equal_rollouts(source: str, target: str) -> list[str]:
    """Return the ids of the rollouts of a copy, after a comparison with the same rollouts of the source."""
    async with await open_store(source, read_only=True) as store, await open_store(target, read_only=True) as copy:
        rollouts = [rollout.rollout_id for rollout in await copy.query_rollouts()]
        for rollout_id in rollouts:
            assert await reads_of(copy, rollout_id) == await reads_of(store, rollout_id)
    return rollouts


@pytest.mark.postgres
async def test_copied_rollouts_have_their_whole_history_on_the_other_database(source: str, make_url: MakeURL) -> None:
    target = make_url("postgres" if source.startswith("sqlite") else "sqlite")
    query = RolloutQuery.of(status_in=["succeeded", "running", "requeuing"])
    counted = await count_rollouts(source, query)
    report = await copy_rollouts(source, target, query, actor="cli")
    proof = await verified(target)
    rollouts = await equal_rollouts(source, target)
    assert len(rollouts) == counted.rollouts == 3
    assert (counted.unfinished, counted.resources) == (2, 1)
    assert (report.chain_head, report.state_hash, report.events) == (
        proof.chain_head,
        proof.state_hash,
        counted.events + 1,
    )
    original = await verified(source)
    assert report.part is not None
    assert report.part.origin.chain_head == original.chain_head
    assert report.store_id != original.store_id
    async with await open_store(target, read_only=True) as copy:
        # The first event names the source and the end of its log.
        first = await anext(copy.log.tail())
        assert (first.position, first.stream, first.type, first.actor) == (1, "store", "store.copied_from", "cli")
        names = ("store_id", "position", "chain_head", "rollouts", "conditions")
        assert [first.data[name] for name in names] == [
            original.store_id,
            original.last_position,
            original.chain_head,
            3,
            "status_in=succeeded,running,requeuing",
        ]
        # What belongs to no rollout is absent.
        assert len(await copy.query_workers()) == 0
    tables = (core_tables.threads, core_tables.idempotency, core_tables.worker_signals, core_tables.keys)
    assert not any((await content(target, *tables)).values())


async def test_copy_is_used_like_any_other_store(full: str, make_url: MakeURL) -> None:
    target = make_url("sqlite")
    await copy_rollouts(full, target, RolloutQuery.of(status_in=["queuing", "requeuing", "running"]))
    async with await open_store(full) as store, await open_store(target) as copy:
        # Queues and span numbers continue where they are in the source.
        claims = [await opened.dequeue_many_rollouts(10, worker_id="w9") for opened in (store, copy)]
        assert [claim.rollout_id for claim in claims[0]] == [claim.rollout_id for claim in claims[1]] != []
        rollout_id, attempt_id = claims[0][0].rollout_id, claims[0][0].attempt.attempt_id
        numbers = [await opened.get_next_span_sequence_id(rollout_id, attempt_id) for opened in (store, copy)]
        assert numbers[0] == numbers[1]
    await verified(target)


async def test_removed_payload_is_absent_and_its_policy_is_named(
    make_url: MakeURL, clock: ManualClock, tmp_path: Path
) -> None:
    source, target = make_url("sqlite"), make_url("postgres")
    place = await payloads.fill(source, clock)
    await remove_payload(source, RetentionPolicy.of(statuses=["succeeded"]), apply=True)
    await redact(source, place.active, Redaction.of(everything=True, reason="request 17"))
    await copy_rollouts(source, target, RolloutQuery.of(rollout_id_in=[place.task, place.active]))
    await verified(target)
    async with await open_store(target, read_only=True) as copy:
        assert {rollout.rollout_id for rollout in await copy.query_rollouts()} == {place.task, place.active}
        events = [event for id_ in (place.task, place.active) for event in await copy.log.history(id_)]
        assert any(event.body_hash is not None for event in events)
        assert [event.body for event in events if event.type != "rollout.annotated"] == [None] * (len(events) - 1)
        last = (await copy.log.position()).position
        policies: set[tuple[str, str | None]] = set()
        async for order in copy.log.tail(types=["store.bodies_dropped"]):
            policies.add((order.data["policy"], order.data.get("reason")))
            if order.position == last:
                break
    assert ("removed before the copy: redact", "request 17") in policies
    assert any(policy.startswith("removed before the copy: status") for policy, _ in policies), policies
    # An artifact of the rollout has the same content as one of another rollout, from which it was not removed.
    alone = make_url("sqlite")
    await copy_rollouts(source, alone, RolloutQuery.of(rollout_id_in=[place.active]))
    assert await ask(alone, "SELECT hash FROM blobs") == []
    await verified(alone)


async def test_compressed_store_is_copied(full: str, make_url: MakeURL, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in work.ENOUGH.items():
        monkeypatch.setattr(compression, name, value)
    monkeypatch.setattr(packing, "EVENTS_PER_BLOCK", 4)
    with_dictionary = (await fill_for_dictionary(make_url("sqlite"))).url
    for url in (full, with_dictionary):
        target = make_url("sqlite")
        await compact(url)
        await copy_rollouts(url, target, RolloutQuery.of(status_in=["succeeded"]))
        await verified(target)
        assert await equal_rollouts(url, target)


async def test_stopped_copy_leaves_no_store_and_begins_again(make_url: MakeURL, full: str) -> None:
    for kind in ("sqlite", "postgres"):
        target = make_url(kind)
        for step, done in (("copying the log", 0), ("copying the log", 30), ("checking the log", 0)):
            with pytest.raises(Stop):
                await copy_rollouts(full, target, _ENDED, on_progress=stop_at(step, done))
            with pytest.raises(NotFound):
                await open_store(target, create=False)
        report = await copy_rollouts(full, target, _ENDED)
        assert report.events_before == 0
        await equal_rollouts(full, target)


async def test_unfinished_copy_of_a_whole_store_is_not_deleted(make_url: MakeURL, full: str) -> None:
    target = make_url("sqlite")
    with pytest.raises(Stop):
        await copy_store(full, target, on_progress=stop_at("copying the log", 30))
    with pytest.raises(Incompatible, match="is an unfinished copy of the store"):
        await copy_rollouts(full, target, _ENDED)
    await copy_store(full, target)
    await assert_equal(full, target)


async def test_copy_killed_before_its_result_was_printed_is_reported_by_the_same_call(
    make_url: MakeURL, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_url("sqlite")

    async def die(_: object) -> None:
        raise asyncio.CancelledError

    gone = receipts.this_process() | {"pid": 2**22 + 1}
    with monkeypatch.context() as dying:
        dying.setattr(receipts, "this_process", lambda: gone)
        dying.setattr(receipts, "acknowledge", die)
        with pytest.raises(asyncio.CancelledError):
            await copy_rollouts(full, target, _ENDED)
    with pytest.raises(AlreadyExists):
        await copy_rollouts(full, target, RolloutQuery.of(status_in=["failed"]))
    report = await copy_rollouts(full, target, _ENDED)
    assert report.part is not None
    assert report.store_id == (await verified(target)).store_id
    with pytest.raises(AlreadyExists, match="a copy never overwrites anything"):
        await copy_rollouts(full, target, _ENDED)


@pytest.mark.parametrize(
    "query,error,message",
    [
        (RolloutQuery.of(group_in=["nothing"]), NotFound, "no rollout matches the conditions: group_in=nothing"),
        (RolloutQuery.of(status_in=["failed"], as_at=3), Invalid, "as_at: rollouts can only be copied as they are now"),
        (RolloutQuery.of(reward_min=0.5, reward_version="x"), Invalid, "reward_version"),
    ],
)
async def test_unusable_selection_makes_no_store(
    query: RolloutQuery, error: type[Exception], message: str, full: str, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path / 'new.db'}"
    with pytest.raises(error, match=message):
        await copy_rollouts(full, target, query)
    with pytest.raises(NotFound):
        await open_store(target, create=False)
    with pytest.raises(Invalid, match="is the source itself"):
        await copy_rollouts(full, full, _ENDED)


_KILLED_ON = [SQLITE, pytest.param("postgres", marks=(pytest.mark.postgres, pytest.mark.torture_only), id="postgres")]


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", _KILLED_ON)
async def test_copy_of_rollouts_killed_at_any_instant_is_absent_or_complete(
    kind: str, make_url: MakeURL, full: str
) -> None:
    began = time.monotonic()
    with processes.running(work.copy_part, (full, make_url(kind))) as undisturbed:
        assert await asyncio.to_thread(processes.leave, undisturbed) == [0]
    needed = time.monotonic() - began
    for _ in range(rounds(20, few=1)):
        target = make_url(kind)
        for _ in range(rounds(5, few=2)):
            with processes.running(work.copy_part, (full, target)) as (process,):
                await asyncio.to_thread(process.join, random.uniform(0, needed))
            if (path := parse(target).path) is not None and path.exists():
                break
        with contextlib.suppress(AlreadyExists):
            await copy_rollouts(full, target, _ENDED)
        await verified(target)
        assert await equal_rollouts(full, target)
