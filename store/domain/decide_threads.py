"""Decide which events are recorded when a LangGraph checkpointer saves, copies and deletes.

A thread contains the checkpoints of a LangGraph conversation, and the writes of tasks on each checkpoint.
"""

from collections.abc import Iterator
from dataclasses import replace

from store.domain.decide_runs import come_to_life
from store.domain.decide_workers import actor_of
from store.domain.thread import CheckpointKey, ThreadState, WriteKey
from store.domain.thread_commands import CopyThread, DeleteThread, KeepInThread, NewThreadFact, PruneThread
from store.domain.thread_events import (
    ThreadCheckpointSaved,
    ThreadCopied,
    ThreadDeleted,
    ThreadFact,
    ThreadPruned,
    ThreadWritesSaved,
)
from store.domain.working_set import WorkingSet
from store.errors import TooLarge

MOST_COPIED = 10_000
"""The maximum number of events with checkpoints or writes that one call copies."""

# The maximum size of the checkpoint keys in one event. The JSON text of an event (`data`) has a size limit.
_PRUNED_BYTES = 6000


def keep_in_thread(command: KeepInThread, working_set: WorkingSet) -> None:
    """Save the items that do not exist yet. If an attempt sent the items, also save a sign of life of the attempt.

    Raises:
        NotFound: the attempt or its rollout does not exist.
    """
    attempt = None
    if command.rollout_id is not None and command.attempt_id is not None:
        attempt = working_set.existing_rollout(command.rollout_id).existing_attempt(command.attempt_id)
    actor = command.actor if attempt is None else actor_of(attempt, command.actor)
    cause: int | None = None
    for ordinal, item in enumerate(command.items):
        fact = _new_part(command.thread_id, item, working_set)
        if fact is None:
            continue
        if ordinal:
            working_set.tick()
        for blob in item.blobs:
            working_set.keep_blob(blob)
        cause = working_set.record_thread(command.thread_id, fact, actor=actor, body=item.body).position
    if attempt is not None:
        # No event is recorded for this sign of life, because the thread's events are the sign.
        attempt.signal_time, attempt.signal_stamped_at = working_set.stamp / 1_000_000, working_set.stamp
        working_set.beats[attempt.rollout_id, attempt.attempt_id] = attempt
        working_set.rewatch.setdefault(attempt.rollout_id, False)
        come_to_life(working_set.rollouts[attempt.rollout_id], attempt, working_set, actor, cause)


def _new_part(thread_id: str, item: NewThreadFact, working_set: WorkingSet) -> ThreadFact | None:
    """Return the part of an item that does not exist yet, as an event to record; None if the whole item exists."""
    state, fact = working_set.threads.get(thread_id), item.fact
    if state is None:
        return fact
    if isinstance(fact, ThreadCheckpointSaved):
        checkpoint = state.checkpoints.get((fact.ns, fact.checkpoint_id))
        if checkpoint is None or checkpoint.parent_id != fact.parent_id:
            return fact
        return None if working_set.body_hashes.get(checkpoint.body_position) == item.body.sha256 else fact
    task_key = (fact.ns, fact.checkpoint_id, fact.task_id)
    new = [write for write in fact.writes if write[0] < 0 or (*task_key, write[0]) not in state.writes]
    return replace(fact, writes=new) if new else None


def delete_thread(command: DeleteThread, working_set: WorkingSet) -> bool:
    """Delete the contents of a thread; return whether the thread had contents."""
    state = working_set.threads.get(command.thread_id)
    if state is None or not (state.checkpoints or state.writes):
        return False
    working_set.record_thread(command.thread_id, ThreadDeleted(), actor=command.actor)
    return True


def prune_thread(command: PruneThread, working_set: WorkingSet) -> int:
    """Delete those checkpoints of the command that exist, and return the number of deleted checkpoints."""
    state = working_set.threads.get(command.thread_id)
    if state is None:
        return 0
    existing = state.checkpoints.keys() | {key[:2] for key in state.writes}
    pruned = sorted(existing.intersection(command.checkpoints))
    for ordinal, keys in enumerate(_in_parts(pruned)):
        if ordinal:
            working_set.tick()
        fact = ThreadPruned(command.reason, [list(key) for key in keys])
        working_set.record_thread(command.thread_id, fact, actor=command.actor)
    return len(pruned)


def _in_parts(keys: list[CheckpointKey]) -> Iterator[list[CheckpointKey]]:
    part: list[CheckpointKey] = []
    size = 0
    for key in keys:
        length = len(key[0].encode()) + len(key[1].encode()) + 8
        if part and size + length > _PRUNED_BYTES:
            yield part
            part, size = [], 0
        part.append(key)
        size += length
    if part:
        yield part


def copy_thread(command: CopyThread, working_set: WorkingSet) -> int:
    """Copy the contents of a thread to another thread, and return the number of checkpoints.

    The events of the copy refer to the payload of the source, which is not stored again.

    Raises:
        TooLarge: the copy would need more than `MOST_COPIED` events.
    """
    source = working_set.threads.get(command.source_id)
    if source is None or not (source.checkpoints or source.writes):
        return 0
    facts = list(_copies(source))
    if len(facts) > MOST_COPIED:
        raise TooLarge("source_thread_id", len(facts), MOST_COPIED, "checkpoints and writes; prune it first")
    copied = ThreadCopied(command.source_id)
    cause = working_set.record_thread(command.target_id, copied, actor=command.actor).position
    for fact in facts:
        working_set.record_thread(command.target_id, fact, actor=command.actor, cause=cause)
    return len(source.checkpoints)


def _copies(source: ThreadState) -> Iterator[ThreadFact]:
    for (ns, checkpoint_id), checkpoint in sorted(source.checkpoints.items(), key=lambda item: item[1].position):
        yield ThreadCheckpointSaved(
            ns=ns,
            checkpoint_id=checkpoint_id,
            parent_id=checkpoint.parent_id,
            run_id=checkpoint.run_id,
            source=checkpoint.source,
            step=checkpoint.step,
            origin=checkpoint.body_position,
        )
    # Writes that one event saved are copied in one event. Writes that were replaced later are not copied.
    together: dict[int, list[WriteKey]] = {}
    for key in sorted(source.writes):
        together.setdefault(source.writes[key].position, []).append(key)
    for _, keys in sorted(together.items()):
        ns, checkpoint_id, task_id, _ = keys[0]
        write = source.writes[keys[0]]
        yield ThreadWritesSaved(
            ns=ns,
            checkpoint_id=checkpoint_id,
            task_id=task_id,
            writes=[[key[3], source.writes[key].channel] for key in keys],
            task_path=write.task_path or None,
            origin=write.body_position,
        )
