"""Retention: removal of the payload of finished rollouts by a policy."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from store.db.dialect import Dialect, existing_store
from store.db.queries import removal as removal_queries
from store.db.queries.removal import Payload
from store.db.schema.sealed import refuse_sealed
from store.domain.events import RolloutAnnotated
from store.models.enums import Frozen
from store.operations.damage import store_damage_reported
from store.operations.policy import RetentionPolicy
from store.operations.removal import Removed, blobs_without_event, database, remover
from store.runtime.clock import Clock, system_clock
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, OperationProgress, ProgressReporter, ignore
from store.verification.log_scan import REFERRING

_ROLLOUTS_AT_ONCE = 100
# People write notes about a rollout. Notes are not payload of its execution.
KEPT = frozenset({RolloutAnnotated.type})
"""The types of events that keep their payload."""


class RetentionReport(Frozen):
    """The payload that a policy removed, or would remove."""

    policy: str
    """The policy in words, as the log records it."""
    is_applied: bool
    """Whether the payload was removed. False if it was only counted."""
    rollouts: int
    """The number of rollouts that lost payload."""
    events: int
    """The number of events that lost payload."""
    bodies: int
    body_bytes: int
    """The size of the removed bodies as they were stored, in bytes."""
    blobs: int
    blob_bytes: int
    """The size of the removed blobs as they were stored, in bytes."""
    transactions: int
    longest_seconds: float
    """The longest time that one transaction held the write lock."""
    size_before: int
    """The size of the store on disk in bytes."""
    size_after: int
    seconds: float


async def remove_payload(
    url: str,
    policy: RetentionPolicy,
    *,
    apply: bool = False,
    vacuum: bool = False,
    actor: str | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress = ignore,
) -> RetentionReport:
    """Remove the payload of the finished rollouts that a policy selects, or only count it.

    Inputs, metadata, the attributes of spans, prompts, responses, checkpoints and contents of artifacts are removed.
    Statuses, rewards, tokens, names, times, labels and notes stay. Other processes may write meanwhile: each
    transaction is short, and there is a pause between two transactions. If a call was stopped, the same call continues
    the work.

    Args:
        url: the URL of a SQLite file or a Postgres database.
        policy: the conditions.
        apply: whether to remove the payload. Otherwise nothing is written.
        vacuum: whether to return the space to the operating system at the end (SQLite), or to the tables at once
            (Postgres). On SQLite this blocks writers, for about two seconds per 100 MB.
        actor: the name of the user who ordered the removal; the log records the name.
        clock: the clock by which ages are measured; the system's clock if None.
        on_progress: called with the progress, in another thread.

    Raises:
        NotFound: there is no store at the URL.
        Invalid: the URL does not name a database.
        Incompatible: the store has an older schema; the message names the command that upgrades it.
        Corrupt: a table is damaged.
        ReadOnly: the database user may not delete payload.
        Unavailable: the database does not answer. The call can be repeated.
    """
    began = time.monotonic()
    dialect = database(url, clock, read_only=not apply)
    reporter = ProgressReporter(on_progress)
    async with store_damage_reported(url, reporter):
        report = await run_in_thread(
            "rollbook retention", _run(dialect, policy, apply=apply, vacuum=vacuum, actor=actor, on_progress=reporter)
        )
    return report.model_copy(update={"seconds": time.monotonic() - began})


async def _run(
    dialect: Dialect,
    policy: RetentionPolicy,
    *,
    apply: bool,
    vacuum: bool,
    actor: str | None,
    on_progress: OnProgress,
) -> RetentionReport:
    if apply:
        # This check comes before `open`, because `open` may upgrade the file.
        await refuse_sealed(dialect.url)
    async with existing_store(dialect):
        size_before = await dialect.size_bytes()
        if apply:
            async with remover(dialect, str(policy), actor=actor) as removing:
                async for done, total, payload in selected_payload(dialect, policy):
                    on_progress(OperationProgress("removing payload", done, total, "rollouts"))
                    await removing.remove(payload)
                async with dialect.read(snapshot=True) as session:
                    blobs = await blobs_without_event(session)
                await removing.remove_blobs(blobs)
            removed = removing.removed
            if vacuum:
                on_progress(OperationProgress("freeing space"))
                await dialect.vacuum()
        else:
            removed = await _count(dialect, policy, on_progress)
        size_after = await dialect.size_bytes()
    return report_of(policy, removed, is_applied=apply, size_before=size_before, size_after=size_after)


def report_of(
    policy: RetentionPolicy, removed: Removed, *, is_applied: bool, size_before: int, size_after: int
) -> RetentionReport:
    """Return the report of a removal, without its duration."""
    return RetentionReport(
        policy=str(policy),
        is_applied=is_applied,
        rollouts=len(removed.rollouts),
        events=removed.events,
        bodies=removed.bodies,
        body_bytes=removed.body_bytes,
        blobs=removed.blobs,
        blob_bytes=removed.blob_bytes,
        transactions=removed.transactions,
        longest_seconds=removed.longest_seconds,
        size_before=size_before,
        size_after=size_after,
        seconds=0,
    )


async def _count(dialect: Dialect, policy: RetentionPolicy, on_progress: OnProgress) -> Removed:
    """Return the sizes of the payload that a policy selects."""
    removed = Removed()
    referring = set[int]()
    async for done, total, payload in selected_payload(dialect, policy):
        on_progress(OperationProgress("counting payload", done, total, "rollouts"))
        sizes = [event.body_bytes for event in payload if event.body_bytes is not None]
        removed.rollouts |= {event.rollout_id for event in payload}
        removed.events += len(payload)
        removed.bodies += len(sizes)
        removed.body_bytes += sum(sizes)
        referring |= {event.position for event in payload if event.type in REFERRING}
    async with dialect.read(snapshot=True) as session:
        blobs = (await blobs_without_event(session, referring)).sizes
    removed.blobs, removed.blob_bytes = len(blobs), sum(blobs.values())
    return removed


async def selected_payload(dialect: Dialect, policy: RetentionPolicy) -> AsyncGenerator[tuple[int, int, list[Payload]]]:
    """Yield the payload of the rollouts that a policy selects, in ascending order of the end of the rollouts.

    An item consists of the number of rollouts in earlier items, the number of all selected rollouts, and the payload of
    up to 100 rollouts.

    The rollouts are selected once, at the beginning.
    """
    now = (dialect.clock or system_clock)()
    excess = None
    async with dialect.read(snapshot=True) as session:
        selected = await removal_queries.finished_rollouts(session, policy.selection(now))
        if policy.max_bytes is not None:
            excess = await removal_queries.size_of_bodies(session) - policy.max_bytes
    for start in range(0, len(selected), _ROLLOUTS_AT_ONCE):
        rollout_ids = selected[start : start + _ROLLOUTS_AT_ONCE]
        async with dialect.read() as session:
            events = await removal_queries.payload_of(session, rollout_ids)
        payload = [event for event in events if event.type not in KEPT]
        if excess is not None:
            payload, excess = _oldest(payload, rollout_ids, excess)
        yield start, len(selected), payload
        if excess is not None and excess <= 0:
            return


def _oldest(payload: list[Payload], rollouts: list[str], excess: int) -> tuple[list[Payload], int]:
    """Return the payload of the first rollouts, up to `excess` bytes of bodies, and the rest of the excess."""
    by_rollout: dict[str, list[Payload]] = {rollout_id: [] for rollout_id in rollouts}
    for event in payload:
        by_rollout[event.rollout_id].append(event)
    taken: list[Payload] = []
    for events in by_rollout.values():
        if excess <= 0:
            break
        taken += events
        excess -= sum(event.body_bytes or 0 for event in events)
    return taken, excess
