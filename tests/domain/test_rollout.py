"""A row is the fold of its stream: every fact of a rollout, and the facts that cannot follow."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.domain import resources, rollout, worker
from store.domain.commands import Command
from store.domain.events import (
    AttemptAmended,
    AttemptStarted,
    AttemptStatusChanged,
    ClaimReleased,
    Event,
    Fact,
    RolloutAmended,
    RolloutEnqueued,
    RolloutStatusChanged,
    SpanRecorded,
)
from store.domain.rollout import RolloutState
from store.domain.views import ATTEMPT_COLUMNS, ROLLOUT_COLUMNS
from store.errors import Corrupt, StoreError
from store.projections import rollouts as rollout_projection
from tests.domain.story import (
    NOW,
    Story,
    amend,
    attempt,
    beat,
    config,
    enqueue,
    publish,
    record,
    release,
    report,
    span,
    start,
)


def logged(fact: Fact, version: int, at: int = NOW) -> Event:
    return Event(100 + version, "rollout/r1", version, 0, at, None, None, fact)


def fold(*facts: Fact) -> RolloutState:
    state: RolloutState | None = None
    for version, fact in enumerate(facts, 1):
        state = rollout.evolve(state, logged(fact, version, NOW + version))
    assert state is not None
    return state


CREATED = RolloutEnqueued(input_sha256="00", config=config())
STARTED = AttemptStarted(attempt_id="a1", sequence=1, via="dequeue")
SPAN = SpanRecorded(attempt_id="a1", sequence_id=1, trace_id="t", span_id="s", name="n", status_code="OK")


class TestImpossibleFacts:
    @pytest.mark.parametrize(
        "facts",
        [
            [STARTED],
            [CREATED, CREATED],
            [CREATED, RolloutStatusChanged(from_="running", to="failed", reason="manual")],
            [CREATED, RolloutAmended(fields=["colour"])],
            [CREATED, SPAN],
            [CREATED, AttemptAmended(attempt_id="a1", fields=["metadata"])],
            [CREATED, STARTED, STARTED],
            [CREATED, AttemptStarted(attempt_id="a1", sequence=2, via="dequeue")],
            [CREATED, STARTED, AttemptAmended(attempt_id="a1", fields=["colour"])],
            [CREATED, STARTED, AttemptStatusChanged(attempt_id="a1", from_="running", to="failed", reason="reported")],
            [
                CREATED,
                STARTED,
                ClaimReleased(attempt_id="a1", sequence=1, from_="queuing", to="queuing", queued_at=101),
                SPAN,
            ],
        ],
    )
    def test_a_fact_that_does_not_follow_from_the_state_is_corrupt(self, facts: list[Fact]) -> None:
        with pytest.raises(Corrupt):
            fold(*facts)

    @pytest.mark.parametrize("version", [0, 1, 3])
    def test_the_numbers_of_a_stream_have_no_holes(self, version: int) -> None:
        state = fold(CREATED)
        with pytest.raises(Corrupt):
            rollout.evolve(state, logged(STARTED, version))

    def test_a_stream_begins_with_number_one(self) -> None:
        with pytest.raises(Corrupt):
            rollout.evolve(None, logged(CREATED, 2))


class TestFolding:
    def test_a_rollout_stands_in_the_queue_where_it_was_put_there(self) -> None:
        waiting = fold(CREATED)
        assert waiting.queued_position == waiting.first_position == 101
        gone = fold(CREATED, RolloutStatusChanged(from_="queuing", to="cancelled", reason="manual"))
        assert gone.queued_position is None
        again = fold(
            CREATED,
            RolloutStatusChanged(from_="queuing", to="running", reason="manual"),
            RolloutStatusChanged(from_="running", to="requeuing", reason="manual"),
        )
        assert again.queued_position == 103

    def test_a_released_attempt_stays_known_but_is_no_attempt_any_more(self) -> None:
        state = fold(
            CREATED,
            STARTED,
            RolloutStatusChanged(from_="queuing", to="preparing", reason="claimed"),
            ClaimReleased(attempt_id="a1", sequence=1, from_="preparing", to="queuing", queued_at=101),
        )
        assert state.attempts["a1"].released_position == 104
        assert (state.attempt("a1"), state.latest, state.attempt_count) == (None, None, 0)
        assert (state.status, state.queued_position) == ("queuing", 101)

    def test_evolve_never_decides_again(self) -> None:
        # By the rules of retries this rollout had failed; what the log says it became is what it is.
        state = fold(
            CREATED,
            STARTED,
            AttemptStatusChanged(attempt_id="a1", from_="preparing", to="failed", reason="reported"),
            RolloutStatusChanged(from_="queuing", to="requeuing", reason="attempt"),
        )
        assert state.status == "requeuing"

    def test_the_first_dimension_of_the_last_reward_is_kept(self) -> None:
        rewarded = SpanRecorded(
            attempt_id="a1",
            sequence_id=1,
            trace_id="t",
            span_id="s",
            name="n",
            status_code="OK",
            rewards=[["a", 0.5], ["b", 2.0]],
            tokens_in=3,
        )
        state = fold(CREATED, STARTED, rewarded, SPAN)
        assert (state.last_reward, state.spans, state.tokens_in, state.tokens_out) == (0.5, 2, 3, 0)

    @given(
        rewards=st.none() | st.lists(st.tuples(st.text(), st.floats(allow_nan=False)).map(list), min_size=1),
        tokens=st.none() | st.integers(0, 10**6),
        code=st.sampled_from(["UNSET", "OK", "ERROR"]),
    )
    def test_a_span_changes_only_the_columns_that_are_written_for_it(
        self, rewards: list[list[Any]] | None, tokens: int | None, code: str
    ) -> None:
        said = replace(
            SPAN, rewards=rewards, tokens_in=tokens, tokens_out=tokens, status_code=code, status_message=code
        )
        before, after = fold(CREATED, STARTED), fold(CREATED, STARTED, said)
        changed = {name for name in ROLLOUT_COLUMNS if getattr(before, name) != getattr(after, name)}
        assert changed <= set(rollout_projection.ROLLOUT_AFTER_SPAN)
        one, other = before.attempts["a1"], after.attempts["a1"]
        changed = {name for name in ATTEMPT_COLUMNS if getattr(one, name) != getattr(other, name)}
        assert changed <= set(rollout_projection.ATTEMPT_AFTER_SPAN)


ROLLOUTS = st.sampled_from(["r1", "r2"])
ATTEMPT_STATUSES = ("preparing", "running", "failed", "succeeded", "unresponsive", "timeout")
STATUSES = st.sampled_from([*ATTEMPT_STATUSES[:4], "queuing", "cancelled", "requeuing"])


def reports(rollout_id: str, status: str) -> list[Command]:
    """Return what may be told of a rollout."""
    return [
        record(span(1, rollout_id=rollout_id)),
        amend(rollout_id, status),
        report(status, rollout_id=rollout_id) if status in ATTEMPT_STATUSES else beat("w2"),
        report(None, "latest", rollout_id, last_heartbeat_time=3.0),
        attempt("a0", rollout_id, "w1"),
        publish("rs1"),
    ]


def choose(rollout_id: str, status: str, number: int) -> tuple[str, Command]:
    """Return one chapter of a story."""
    commands = reports(rollout_id, status)
    return "tell", commands[number % len(commands)]


CHAPTERS: st.SearchStrategy[tuple[str, Command | int | None]] = st.one_of(
    st.tuples(st.just("claim"), st.integers(1, 2)),
    st.tuples(st.just("release"), st.none()),
    st.tuples(st.just("time"), st.integers(1, 9)),
    st.tuples(st.just("sweep"), st.none()),
    st.builds(choose, ROLLOUTS, STATUSES, st.integers(0, 5)),
    st.builds(choose, ROLLOUTS, STATUSES, st.integers(0, 5)),
)


def tell(story: Story, chapters: Iterable[tuple[str, Command | int | None]]) -> None:
    """Let happen what can; what is refused is no part of the story."""
    claims: list[Command] = []
    for kind, what in chapters:
        if kind == "claim":
            assert isinstance(what, int)
            claims += [release(view) for view in story.claim("w1", what)]
        elif kind == "release" and claims:
            story.tell(claims.pop())
        elif kind == "time":
            assert isinstance(what, int)
            story.passes(what)
        elif kind == "sweep":
            story.sweep()
        elif isinstance(what, Command):
            if isinstance(what, type(attempt("a0"))) and "a0" in story.rollout(what.rollout_id).attempts:
                continue
            try:
                story.tell(copy.deepcopy(what))
            except StoreError:
                continue


@settings(max_examples=150, deadline=None, derandomize=True)
@given(chapters=st.lists(CHAPTERS, max_size=30))
def test_the_fold_of_the_log_is_the_state_that_decided_it(
    chapters: list[tuple[str, Command | int | None]],
) -> None:
    story = Story()
    story.tell(enqueue("r1", max_attempts=3, retry_condition=["failed", "timeout"], timeout_seconds=7.0))
    story.tell(start("r2", unresponsive_seconds=4.0, worker_id="w1"))
    tell(story, chapters)
    rollouts: dict[str, RolloutState] = {}
    for event in story.log:
        kind, _, key = event.stream.partition("/")
        if kind == "rollout":
            rollouts[key] = rollout.evolve(rollouts.get(key), event)
    # A bare heartbeat is a signal, which no fold knows.
    for state in story.working_set.rollouts.values():
        for one in state.attempts.values():
            one.signal_time = one.signal_stamped_at = None
    assert rollouts == story.working_set.rollouts
    assert _folded(story, "worker", worker.evolve) == story.working_set.workers
    assert _folded(story, "resources", resources.evolve) == story.working_set.resources
    positions = [event.position for event in story.log]
    assert positions == list(range(1, len(positions) + 1))


def _folded(story: Story, kind: str, evolve: object) -> dict[str, object]:
    assert callable(evolve)
    states: dict[str, object] = {}
    for event in story.log:
        if event.stream.startswith(f"{kind}/"):
            key = event.stream.partition("/")[2]
            states[key] = evolve(states.get(key), event)
    return states
