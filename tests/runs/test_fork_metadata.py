"""The metadata of an attempt that continues another one names the fork, for runners that do not know forks."""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, Fork, RolloutConfig
from store.sql.store import SQLStore
from tests.faults.sessions import Trouble, taken, troubled_store, until, waiting
from tests.runs.trading import RISK, phase
from tests.runs.trading_runs import auto_run, begin, do_phase, ended, rerun

RETRIED = RolloutConfig(max_attempts=2, retry_condition=["failed"])


def fork_of(attempt: Attempt) -> Fork:
    """Return what the metadata of an attempt says of its fork, and says alone."""
    assert attempt.metadata is not None
    assert attempt.metadata.keys() == {"fork"}
    return Fork.model_validate(attempt.metadata["fork"])


async def metadata_of(store: Store, run: AttemptedRollout) -> list[dict[str, object] | None]:
    """Return the metadata of each attempt, in their order."""
    return [attempt.metadata for attempt in await store.query_attempts(run.rollout_id)]


async def test_rerun_has_its_fork_in_its_metadata(store: Store) -> None:
    run = await auto_run(store)
    patch = {"trader_investment_plan": "sell"}
    begun = await rerun(store, run, phase="risk", scopes=["RIG"], state_patch=patch, reason="too risky")
    assert fork_of(begun.attempt) == fork_of(begun.rollout.attempt) == begun.fork
    assert (begun.fork.state_patch, begun.fork.reason, begun.fork.entry) == (patch, "too risky", RISK[0])
    assert [checkpoint.name for checkpoint in begun.fork.checkpoints] == ["trader_checkpoint"]
    (node,) = [attempt for attempt in await store.runs.list_lineage(run.rollout_id) if attempt.sequence_id == 2]
    assert node.fork == begun.fork
    assert await metadata_of(store, run) == [None, begun.attempt.metadata]


async def test_resume_has_its_fork_in_its_metadata(store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "analysts", "RIG")
    await ended(store, run, "failed")
    begun = await store.runs.resume(run.rollout_id)
    assert fork_of(begun.attempt) == begun.fork
    assert begun.fork.kind == "resume"


async def test_claimed_retry_of_a_rerun_has_the_fork_in_its_metadata(store: Store) -> None:
    run = await auto_run(store, config=RETRIED)
    begun = await rerun(store, run, phase="risk", scopes=["RIG"])
    await ended(store, begun.rollout, "failed")
    claimed = await store.dequeue_rollout(worker_id="w1")
    assert claimed is not None
    assert claimed.attempt.sequence_id == 3
    assert fork_of(claimed.attempt) == begun.fork
    assert await metadata_of(store, run) == [None, begun.attempt.metadata, begun.attempt.metadata]


async def test_manually_started_retry_has_the_fork_in_its_metadata(store: Store) -> None:
    run = await auto_run(store)
    begun = await rerun(store, run, phase="risk", scopes=["RIG"])
    await ended(store, begun.rollout, "failed")
    assert fork_of((await store.start_attempt(run.rollout_id)).attempt) == begun.fork


@pytest.mark.parametrize("how", ["its attempt failed", "by hand"])
async def test_claim_in_the_batch_of_its_requeue_has_the_fork_in_its_metadata(durable_url: str, how: str) -> None:
    trouble = Trouble()
    async with await troubled_store(durable_url, trouble) as store:
        run = await auto_run(store, config=RETRIED)
        begun = await rerun(store, run, phase="risk", scopes=["RIG"])
        if how == "by hand":
            await ended(store, begun.rollout)
            put_back: Any = store.update_rollout(run.rollout_id, status="requeuing")
        else:
            put_back = store.update_attempt(run.rollout_id, begun.attempt.attempt_id, status="failed")
        first = await taken(trouble, store.update_worker("w1"))
        (requeued,) = await waiting(store, put_back)
        claiming = asyncio.create_task(store.dequeue_rollout(worker_id="w2"))
        await until(lambda: store.core.writer.waiting == 2)
        trouble.holds = False
        await asyncio.gather(first, requeued)
        claimed = await claiming
        assert claimed is not None
        assert fork_of(claimed.attempt) == begun.fork
        *_, back, started, moved = [event async for event in store.log.tail(rollout_id=run.rollout_id)]
        assert back.commit_id == started.commit_id == moved.commit_id


async def test_retry_of_a_first_attempt_starts_without_metadata(store: Store) -> None:
    run = await begin(store, config=RETRIED)
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, metadata={"note": 1}, status="failed")
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    assert claimed.attempt.metadata is None


async def test_a_rerun_of_a_rerun_carries_its_own(store: Store) -> None:
    run = await auto_run(store)
    first = await rerun(store, run, phase="risk", scopes=["RIG"])
    await ended(store, first.rollout)
    second = await rerun(store, run, phase="analysts", scopes=["TSDD"])
    assert fork_of(second.attempt) == second.fork != first.fork
    assert (await metadata_of(store, run))[1] == first.attempt.metadata


async def test_a_request_that_is_repeated_writes_nothing_again(store: Store) -> None:
    run = await auto_run(store)
    first = await rerun(store, run, phase="risk", scopes=["RIG"], request_id="r1")
    history = [event.type for event in await store.log.history(run.rollout_id)]
    assert history[-4:] == ["attempt.started", "attempt.forked", "attempt.amended", "rollout.status_changed"]
    assert await rerun(store, run, phase="risk", scopes=["RIG"], request_id="r1") == first
    assert [event.type for event in await store.log.history(run.rollout_id)] == history


async def test_the_past_and_the_tables_made_anew_say_the_same(behind: SQLStore) -> None:
    run = await auto_run(behind, config=RETRIED)
    begun = await rerun(behind, run, phase="risk", scopes=["RIG"], state_patch={"extra": 2})
    at = (await behind.log.history(run.rollout_id))[-1].position
    await ended(behind, begun.rollout, "failed")
    claimed = await behind.dequeue_rollout()
    assert claimed is not None
    await behind.runs.append_events(
        run.rollout_id, claimed.attempt.attempt_id, [*phase("risk", "RIG")], key="one call of it"
    )
    then = await behind.query_attempts(run.rollout_id, as_at=at)
    assert [attempt.metadata for attempt in then] == [None, begun.attempt.metadata]
    assert (await behind.log.verify()).differences == []
    assert (await behind.log.rebuild()).written == {}


async def test_a_state_that_is_no_json_is_refused_by_its_own_name(store: Store) -> None:
    run = await auto_run(store)
    with pytest.raises(Invalid, match="state_patch"):
        await rerun(store, run, phase="risk", scopes=["RIG"], state_patch={"price": float("nan")})
    assert len(await store.query_attempts(run.rollout_id)) == 1
