"""Facts of a thread follow from commands, and its state from the facts."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pytest

from store.domain import thread
from store.domain.commands import Command
from store.domain.decide import decide
from store.domain.events import Event, Fact, decode, encode
from store.domain.thread import ThreadState
from store.domain.thread_events import (
    ThreadCheckpointSaved,
    ThreadCopied,
    ThreadDeleted,
    ThreadPruned,
    ThreadWritesSaved,
)
from store.domain.working_set import WorkingSet
from store.errors import Corrupt
from store.models.threads import ThreadCheckpoint, ThreadWrite
from store.sql.commands import threads as thread_commands


def decided(*commands: Command) -> WorkingSet:
    """Return the working set after the commands were decided one after the other, starting from an empty store."""
    working_set = WorkingSet(now=1_000_000, last_stamp=0, next_position=1)
    for ordinal, command in enumerate(commands):
        working_set.begin(ordinal)
        decide(command, working_set)
    return working_set


def saved(number: int, thread_id: str = "t") -> Command:
    state = ThreadCheckpoint(thread_id, "", f"cp-{number}", None, ("json", b"{}"), {}, {"step": number})
    return thread_commands.checkpoint(state, None)


def written(*numbers: int, task_id: str = "task", thread_id: str = "t") -> Command:
    writes = [ThreadWrite(task_id, number, "said", ("json", b"%d" % number)) for number in numbers]
    return thread_commands.writes(thread_id, "", "cp-1", writes, None)


def facts(working_set: WorkingSet) -> list[Fact]:
    return [event.fact for event in working_set.events]


def folded(events: Sequence[Event], stream: str) -> ThreadState | None:
    state: ThreadState | None = None
    for event in events:
        if event.stream == stream:
            event.fact = decode(event.fact.type, orjson.loads(encode(event.fact)))
            state = thread.evolve(state, event)
    return state


def test_only_new_checkpoints_and_writes_are_recorded() -> None:
    working_set = decided(saved(1), saved(1), written(0, 1), written(0, 1), written(1, 2), written(0, task_id="other"))
    assert [fact.writes for fact in facts(working_set) if isinstance(fact, ThreadWritesSaved)] == [
        [[0, "said"], [1, "said"]],
        [[2, "said"]],
        [[0, "said"]],
    ]
    assert sum(isinstance(fact, ThreadCheckpointSaved) for fact in facts(working_set)) == 1


def test_write_with_a_negative_number_replaces_the_earlier_one() -> None:
    working_set = decided(saved(1), written(-1), written(-1))
    assert [type(fact) for fact in facts(working_set)][1:] == [ThreadWritesSaved] * 2
    assert working_set.threads["t"].writes["", "cp-1", "task", -1].position == 3


def test_prune_records_checkpoints_and_removes_their_writes_too() -> None:
    working_set = decided(
        saved(1), saved(2), written(0), thread_commands.prune("t", [("", "cp-1"), ("", "cp-9")], "runs")
    )
    assert facts(working_set)[-1] == ThreadPruned("runs", [["", "cp-1"]])
    assert (set(working_set.threads["t"].checkpoints), working_set.threads["t"].writes) == ({("", "cp-2")}, {})
    assert working_set.touched_writes == {("t", ("", "cp-1", "task", 0))}


def test_commands_without_effect_record_nothing() -> None:
    empty = [
        thread_commands.delete("t"),
        thread_commands.prune("t", [("", "cp-1")], "runs"),
        thread_commands.copy("t", "u"),
    ]
    assert facts(decided(*empty)) == []
    working_set = decided(saved(1), thread_commands.delete("t"), *empty)
    assert [type(fact) for fact in facts(working_set)] == [ThreadCheckpointSaved, ThreadDeleted]


def test_a_copy_names_where_its_bodies_are_even_of_a_copy() -> None:
    working_set = decided(saved(1), written(0, -1), thread_commands.copy("t", "u"), thread_commands.copy("u", "v"))
    copies = [event for event in working_set.events if event.stream == "thread/v"]
    assert copies[0].fact == ThreadCopied("u")
    assert [getattr(event.fact, "origin", None) for event in copies] == [None, 1, 2]
    assert {event.cause for event in copies[1:]} == {copies[0].position}
    assert [event.body for event in copies] == [None] * 3


def test_state_equals_the_fold_of_its_events() -> None:
    working_set = decided(
        *(saved(1), saved(2), written(0, 1), thread_commands.copy("t", "u"), saved(3, "u"), written(-1, thread_id="u")),
        *(
            thread_commands.prune("t", [("", "cp-2")], "keep_latest"),
            saved(4),
            thread_commands.delete("u"),
            saved(5, "u"),
        ),
    )
    for thread_id, state in working_set.threads.items():
        assert folded(working_set.events, f"thread/{thread_id}") == state


@pytest.mark.parametrize("version", [1, 3])
def test_a_fact_that_does_not_follow_is_refused(version: int) -> None:
    (event,) = decided(saved(1)).events
    state = thread.evolve(None, event)
    event.version = version
    with pytest.raises(Corrupt, match="version 2"):
        thread.evolve(state, event)


def test_a_fact_of_something_else_is_refused() -> None:
    (event,) = decided(saved(1)).events
    event.fact = decode("worker.seen", {})
    with pytest.raises(Corrupt, match="a fact of a thread"):
        thread.evolve(None, event)
