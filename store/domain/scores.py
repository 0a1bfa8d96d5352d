"""Scores: values that versions of reward functions give to attempts after their end. Decision 94."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from store.domain.body import Body
from store.domain.commands import Command, LoadRequest, ScoreKey
from store.domain.events import RewardScored
from store.domain.working_set import WorkingSet
from store.errors import Conflict


@dataclass(slots=True)
class ScoreItem:
    """One score to record."""

    rollout_id: str
    fact: RewardScored
    body: Body | None = None
    """The explanation of the score; None if there is none."""

    @property
    def key(self) -> ScoreKey:
        """The key of the score: its attempt, and the name and version of the reward."""
        return self.rollout_id, self.fact.attempt_id, self.fact.name, self.fact.version


@dataclass(slots=True, kw_only=True)
class RecordScores(Command):
    """Record scores of attempts: all of them or, if one is refused, none."""

    items: list[ScoreItem]

    @property
    def size(self) -> int:
        return sum(len(item.body.stored) for item in self.items if item.body is not None)

    def request_rows(self, request: LoadRequest) -> None:
        for item in self.items:
            request.rollouts.add(item.rollout_id)
            request.attempts.add(item.fact.attempt_id)
            request.scores.add(item.key)


def record(command: RecordScores, working_set: WorkingSet) -> list[int | None]:
    """Record the scores that are new. Return the number of each score's event; None for a score that is stored already.

    A failure may be followed by another failure or by a value. A value is final.

    Raises:
        NotFound: a rollout or an attempt does not exist.
        Conflict: a version of a reward has another value for an attempt. Nothing was recorded.
    """
    last = dict(working_set.scores)
    for item in command.items:
        working_set.existing_rollout(item.rollout_id).existing_attempt(item.fact.attempt_id)
        _check_follows(last.get(item.key), item)
        last[item.key] = item.fact
    numbers: list[int | None] = []
    before = working_set.next_position
    for item in command.items:
        if _is_repeated(working_set.scores.get(item.key), item.fact):
            numbers.append(None)
            continue
        if working_set.next_position > before:
            working_set.tick()
        event = working_set.record_rollout(item.rollout_id, item.fact, actor=command.actor, body=item.body)
        numbers.append(event.version)
    return numbers


def _check_follows(before: RewardScored | None, item: ScoreItem) -> None:
    fact = item.fact
    if before is None or before.value is None or _is_repeated(before, fact):
        return
    result = "an error" if fact.value is None else f"{fact.value} {fact.dimensions or ''}".rstrip()
    raise Conflict(
        f"version {fact.version!r} of the reward {fact.name!r} is {before.value} {before.dimensions or ''}".rstrip()
        + f" for attempt {fact.attempt_id} of rollout {item.rollout_id}, and this call has {result}",
        "scores never change; record other values under a new version",
    )


def _is_repeated(before: RewardScored | None, fact: RewardScored) -> bool:
    """Return whether a score has the same result as the last score of its key. Code and explanation may differ."""
    return before is not None and (before.value, before.dimensions, before.error) == (
        fact.value,
        fact.dimensions,
        fact.error,
    )


DECIDERS: dict[type[Command], Callable[..., Any]] = {RecordScores: record}
