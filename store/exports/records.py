"""Records of an export. A record is a rollout with the parts that the exported tables need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import orjson

from store.adapters.intake import AttemptSpans, sort_in
from store.adapters.messages import merged_call, recorded_calls
from store.model_calls import ModelCall
from store.models import Attempt, AttemptedRollout, HistoryEvent, Rollout, Score, Span
from store.models.flat_spans import EMPTY_LIST, FlatSpan
from store.models.missing_rewards import AS_RECORDED, MissingReward
from store.models.trusted import span_model
from store.semconv import GROUP_KEY, STEP_KEY

_FAILED: Final = frozenset({"failed", "timeout", "unresponsive"})
_WITHOUT_ERROR: Final = frozenset({"preparing", "running", "succeeded"})


@dataclass(frozen=True, slots=True)
class ExportedCall:
    """A call of a model that generates text."""

    number: int
    """The number of the call in its attempt, from 1."""
    spans: list[Span]
    """The spans that record the call; the texts come from the first."""
    value: ModelCall


@dataclass
class RolloutRecord:
    """A rollout at the position of the export.

    The spans of a long rollout may be divided among several records. `is_first` is True in the first of these records
    only, and `is_last` in the last one only.
    """

    rollout: Rollout
    offset: int
    """The number of listed rollouts up to and including this one. A later call can skip this many and continue."""
    reward_version: str | None = None
    """The version of the reward to export, such as `helpful@v2`; None for the recorded rewards."""
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    spans: list[FlatSpan] = field(default_factory=list[FlatSpan])
    events: list[HistoryEvent] = field(default_factory=list[HistoryEvent])
    scores: list[Score] = field(default_factory=list[Score])
    labels: list[str] = field(default_factory=list[str])
    is_first: bool = True
    is_last: bool = True
    missing: MissingReward = AS_RECORDED
    """How ended rollouts and attempts without a reward count; see `count_missing`."""

    def count_missing(self, missing: MissingReward) -> None:
        """Give the rollout and its attempts a reward if they have ended without one and `missing` counts them."""
        self.missing = missing
        if self.rollout.reward is None:
            substitute = missing.substitute(self.rollout.status)
            self.rollout = self.rollout.model_copy(update={"reward": substitute})

    @cached_property
    def group(self) -> str | None:
        """The group in the rollout's metadata; None if it is not a text."""
        group = self._metadata.get(GROUP_KEY)
        return group if isinstance(group, str) else None

    @cached_property
    def step(self) -> int | None:
        """The step in the rollout's metadata; None if it is not an integer."""
        step = self._metadata.get(STEP_KEY)
        return step if isinstance(step, int) and not isinstance(step, bool) else None

    @cached_property
    def version_scores(self) -> dict[str, Score]:
        """The scores of `reward_version` that have a value. The keys are attempt ids."""
        return {
            score.attempt_id: score
            for score in self.scores
            if f"{score.name}@{score.version}" == self.reward_version and score.value is not None
        }

    def with_reward(self, attempt: Attempt) -> Attempt:
        """Return an attempt with the reward of `reward_version`, or with the value as which a missing reward counts."""
        if self.reward_version is not None:
            score = self.version_scores.get(attempt.attempt_id)
            reward, rewards = (None, {}) if score is None else (score.value, score.rewards)
            attempt = attempt.model_copy(update={"reward": reward, "rewards": rewards})
        if attempt.reward is not None or self.missing.substituted == "out":
            return attempt
        status = "failed" if attempt.status in _FAILED else attempt.status
        return attempt.model_copy(update={"reward": self.missing.substitute(status)})

    @property
    def latest_attempt(self) -> Attempt | None:
        """The latest attempt, if there is one."""
        return self.rollout.attempt if isinstance(self.rollout, AttemptedRollout) else None

    @property
    def may_have_errors(self) -> bool:
        """Whether an attempt of the record ended without success, so that it may have an error."""
        return any(attempt.status not in _WITHOUT_ERROR for attempt in self.attempts)

    def error_of(self, attempt: Attempt) -> dict[str, Any] | None:
        """Return the last error that was reported for an attempt, among the events of the record."""
        errors = [
            event.data["error"]
            for event in self.events
            if event.data.get("attempt_id") == attempt.attempt_id and event.data.get("error")
        ]
        return errors[-1] if errors else None

    @cached_property
    def span_models(self) -> list[Span]:
        """The spans as models."""
        return [as_model(row) for row in self.spans]

    @cached_property
    def attempt_spans(self) -> list[AttemptSpans]:
        """The spans of each attempt as the adapters group them."""
        attempts, _ = sort_in(self.span_models)
        return attempts

    @cached_property
    def calls(self) -> list[ExportedCall]:
        """The calls of each attempt, in the order of time."""
        return [
            ExportedCall(number, [timed.span for timed in recordings], merged_call(recordings))
            for attempt in self.attempt_spans
            for number, recordings in enumerate(recorded_calls(attempt.spans), start=1)
        ]

    @property
    def _metadata(self) -> Mapping[str, Any]:
        return self.rollout.metadata or {}


def as_model(row: FlatSpan) -> Span:
    """Return the span in a row."""
    body: dict[str, Any] = {"attributes": orjson.loads(row.attributes), "resource": orjson.loads(row.resource)}
    for name, text in (("events", row.events), ("links", row.links)):
        if text != EMPTY_LIST:
            body[name] = orjson.loads(text)
    if row.extra is not None:
        body |= orjson.loads(row.extra)
    columns: Any = row  # the row has all columns that `span_model` reads
    return span_model(columns, body)
