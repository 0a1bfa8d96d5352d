"""The rows of the run tables, each made of one event."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from store.domain.run_events import PhaseSkipped
from store.projections.runs import RunRows, has_run_rows
from tests.domain.run_story import append, artifact, checkpoint, events, fork, retract
from tests.domain.story import Story, record, report, span, start


def rows_of(story: Story) -> RunRows:
    """Return the rows of all that has happened."""
    rows = RunRows()
    for event in story.log:
        if has_run_rows(event.fact):
            rows.add(event, event.fact, story.rollout())
    return rows


def forked(*masks: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return scope, node, phase and children of the rows of a fork's masks."""
    story = Story()
    story.tell(start())
    story.tell(report("succeeded"))
    fork(story, "a2")
    event = next(event for event in story.log if event.fact.type == "attempt.forked")
    event.fact.masks = list(masks)  # pyright: ignore[reportAttributeAccessIssue] (it is a fork)
    return [tuple(row[3:]) for row in rows_of(story).fork_masks]


@pytest.mark.parametrize(
    "mask,expected",
    [
        ({"scopes": None, "nodes": None, "phases": None, "children": False}, [(None, None, None, 0)]),
        ({"scopes": ["A", "B"]}, [("A", None, None, 0), ("B", None, None, 0)]),
        ({"nodes": ["x"], "children": True}, [(None, "x", None, 1)]),
        ({"scopes": ["A"], "phases": ["p"], "children": True}, [("A", None, "p", 0)]),
        (
            {"scopes": ["A", "B"], "nodes": ["x", "y"], "phases": ["p"], "children": False},
            [(s, n, None, 0) for s in "AB" for n in "xy"] + [(s, None, "p", 0) for s in "AB"],
        ),
        ({"scopes": ["A"], "nodes": []}, []),
        ({"scopes": []}, []),
    ],
)
def test_a_mask_is_multiplied_out(mask: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    assert forked(mask) == expected


def test_several_masks_add_up_and_are_numbered_through(story: Story) -> None:
    story.tell(start())
    story.tell(report("succeeded"))
    fork(story, "a2")
    event = next(event for event in story.log if event.fact.type == "attempt.forked")
    event.fact.masks = [{"scopes": ["A"]}, {"nodes": ["x", "y"]}]  # pyright: ignore[reportAttributeAccessIssue]
    assert [(row[1], row[2]) for row in rows_of(story).fork_masks] == [(event.version, n) for n in range(3)]


def test_only_spans_with_a_node_have_run_rows_with_metrics(story: Story) -> None:
    story.tell(start())
    story.tell(record(span(1)))
    measured = span(2, node_id="Trader", kind="result", scope="RIG", start=1.0, end=1.25, tokens_in=3, model="m")
    story.tell(record(measured, span(3, node_id="Judge", kind="tool_result", status_code="ERROR")))
    first, second = rows_of(story).run_events
    assert (first[4], first[5], first[6], first[11]) == ("result", "Trader", "RIG", "success")
    assert orjson.loads(first[13]) == {"latency_ms": 250.0, "model": "m", "tokens_in": 3}
    assert (second[4], second[11], second[13]) == ("tool_result", "error", None)


def test_a_phase_is_an_event_without_a_node(story: Story) -> None:
    story.tell(start())
    story.tell(append(PhaseSkipped(attempt_id="a1", phase="risk", scope="RIG", reason="done before")))
    (row,) = rows_of(story).run_events
    assert tuple(row[4:9]) == ("phase.skipped", None, "RIG", None, "risk")


def test_a_key_covers_the_events_of_its_call(story: Story) -> None:
    story.tell(start())
    story.tell(events("a", "b", "c", key="k"))
    assert list(rows_of(story).run_keys.values()) == [("r1", "k", "events", 3, 5, "a1")]


def test_a_retraction_is_a_column_of_the_artifact(story: Story) -> None:
    story.tell(start())
    story.tell(artifact("x1"))
    story.tell(artifact("x2"))
    story.tell(retract("x1"))
    at = story.events[-1].version
    rows = rows_of(story)
    assert {row[4]: row[9] for row in rows.artifacts.values()} == {"x1": at, "x2": None}
    assert rows.retracted == {}


def test_retraction_alone_names_the_earlier_artifact(story: Story) -> None:
    story.tell(start())
    story.tell(artifact("x1"))
    story.tell(retract("x1"))
    later = RunRows()
    event = story.log[-1]
    later.add(event, event.fact, story.rollout())
    assert later.retracted == {("r1", "x1"): event.version}


def test_a_fork_says_which_rerun_it_is(story: Story) -> None:
    story.tell(start())
    story.tell(checkpoint())
    story.tell(report("succeeded"))
    fork(story, "a2", request_id="q")
    (row,) = rows_of(story).forks
    assert (row[3], row[4], row[5], row[7], row[15]) == (2, "rerun", 1, 1, "q")
    assert orjson.loads(row[10]) == ["RIG"]
