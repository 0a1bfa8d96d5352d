"""Rows of threads, computed from the states of threads. A thread contains the checkpoints of a LangGraph conversation.

Commits, `rebuild` and `verify` all compute the rows with these functions.
"""

from collections.abc import Sequence

from sqlalchemy import Table

from store.db.dialect import NamedRow, Row
from store.db.tables import core as core_tables
from store.domain.thread import CheckpointKey, KeptCheckpoint, KeptWrite, ThreadState, WriteKey


def thread(state: ThreadState) -> Row:
    """Return the row of a thread."""
    return state.thread_id, state.stream_version, state.first_position, state.last_position


def checkpoint(thread_id: str, key: CheckpointKey, state: KeptCheckpoint) -> Row:
    """Return the row of a checkpoint."""
    return (
        thread_id,
        *key,
        state.parent_id,
        state.run_id,
        state.source,
        state.step,
        state.position,
        state.body_position,
    )


def write(thread_id: str, key: WriteKey, state: KeptWrite) -> Row:
    """Return the row of a write, which is a value that a task of the graph wrote after a checkpoint."""
    return (thread_id, *key, state.channel, state.task_path, state.position, state.body_position)


def every(state: ThreadState) -> dict[Table, list[Row]]:
    """Return all rows of a thread by table. Each list is sorted by the primary key of the table."""
    thread_id = state.thread_id
    return {
        core_tables.threads: [thread(state)],
        core_tables.thread_checkpoints: [
            checkpoint(thread_id, key, state.checkpoints[key]) for key in sorted(state.checkpoints)
        ],
        core_tables.thread_writes: [write(thread_id, key, state.writes[key]) for key in sorted(state.writes)],
    }


def fill(state: ThreadState, checkpoints: Sequence[NamedRow], writes: Sequence[NamedRow]) -> None:
    """Add rows of `thread_checkpoints` and `thread_writes` to the state of their thread."""
    for row in checkpoints:
        state.checkpoints[row.ns, row.checkpoint_id] = KeptCheckpoint(
            row.parent_id, row.run_id, row.source, row.step, row.position, row.body_position
        )
    for row in writes:
        state.writes[row.ns, row.checkpoint_id, row.task_id, row.number] = KeptWrite(
            row.channel, row.task_path, row.position, row.body_position
        )
