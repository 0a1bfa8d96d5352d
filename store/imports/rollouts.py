"""Values for rollouts of other programs. The readers of formats make these values; `import_rollouts` stores them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

from store.errors import Conflict, Invalid
from store.model_calls.json_values import to_json
from store.models import (
    AttemptedRollout,
    AttemptError,
    AttemptStatus,
    NamedResources,
    Rollout,
    RolloutMode,
    Span,
    TaskInput,
    TraceStatus,
)
from store.semconv import ANNOTATION_SPAN, GROUP_KEY, PLAN_KEY, SOURCE_KEY, STEP_KEY, reward_attributes
from store.validation.json_limits import dumps

UNENDED: Final = frozenset({"preparing", "running"})
"""The statuses of attempts that have not ended."""
_LONGEST_KEY: Final = 400
_SPANS_PER_CALL: Final = 1000
_BYTES_PER_CALL: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class ForeignAttempt:
    """One attempt of a foreign rollout."""

    status: AttemptStatus
    """`succeeded`, `failed`, `timeout` or `unresponsive`."""
    spans: Sequence[Span] = ()
    """The spans in their order, with span ids that do not differ between two reads of the source; see `span_id_of`.

    The import sets `rollout_id` and `attempt_id`, so a reader leaves them empty. Spans with the `sequence_id` 0, the
    default, are numbered in their order.
    """
    metadata: Mapping[str, Any] | None = None
    error: AttemptError | None = None


@dataclass(frozen=True, slots=True)
class ForeignResources:
    """Resources of a source, which are published under their id unless the store has them with the same content.

    A reader yields them before the rollouts that use them.
    """

    resources_id: str
    place: str
    """Where the resources are in the source, for reports."""
    resources: NamedResources


@dataclass(frozen=True, slots=True)
class ForeignRollout:
    """A rollout that has ended, as its source describes it."""

    key: str
    """The identity of the rollout in its format. Two rollouts with the same format and key are the same rollout."""
    place: str
    """Where the rollout is in the source, for reports."""
    input: TaskInput
    attempts: Sequence[ForeignAttempt]
    """The attempts in their order, at least one. The last one determines the status of the rollout."""
    mode: RolloutMode | None = None
    metadata: Mapping[str, Any] | None = None
    """Metadata without the keys that the import sets.

    The import sets `rollbook.group`, `rollbook.step`, `rollbook.key` and `rollbook.source`.
    """
    group: str | None = None
    """The value of `rollbook.group` in the metadata."""
    step: int | None = None
    """The value of `rollbook.step` in the metadata."""
    resources_id: str | None = None
    """The resources that the rollout used; None for none."""
    is_cancelled: bool = False
    """Whether the rollout was cancelled. The last attempt of a cancelled rollout must have an error."""
    start_time: float | None = None
    """The start in the source, in seconds since the epoch; None if it is unknown."""
    end_time: float | None = None
    sha256: str | None = None
    """A hash of the source's content, in hex. An import skips a rollout whose content has changed since its import.

    If the hash is None, the import does not check whether the content has changed.
    """
    late_spans: Sequence[Span] = ()
    """Spans that a later copy of the source may add to the last attempt, for example the advantages of tokens.

    An import stores those of them that the store lacks, also if the store already contains the rollout.
    """

    @property
    def spans(self) -> Iterator[Span]:
        """All spans, in the order of their sequence ids."""
        return chain.from_iterable([*(attempt.spans for attempt in self.attempts), self.late_spans])

    def check(self) -> None:
        """Check that the attempts can be stored. Spans are not checked, because the import repairs them.

        Raises:
            Invalid: the key is empty, or the attempts cannot be stored.
        """
        if not self.key:
            raise Invalid("key", "is empty; the source must identify its rollouts")
        if not self.attempts:
            raise Invalid("attempts", "is empty; a rollout that has ended has an attempt")
        if self.is_cancelled and self.attempts[-1].error is None:
            raise Invalid("attempts", "end without an error; give the last attempt of a cancelled rollout an error")
        for attempt in self.attempts:
            if attempt.status in UNENDED:
                raise Invalid("status", f"{attempt.status} is not the status of an attempt that has ended")
            dumps(attempt.metadata, "metadata")
            dumps(attempt.error and attempt.error.model_dump(), "error")

    def stored_metadata(self, source: str) -> dict[str, Any]:
        """Return the metadata with which the rollout is stored. `source` is the name of the format."""
        origin = {
            "format": source,
            "key": self.key,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "sha256": self.sha256,
        }
        reserved = {GROUP_KEY: self.group, STEP_KEY: self.step, PLAN_KEY: plan_key(source, self.key)}
        return {
            **(self.metadata or {}),
            **{name: value for name, value in reserved.items() if value is not None},
            SOURCE_KEY: {name: value for name, value in origin.items() if value is not None},
        }

    def is_stored_in(self, rollout: Rollout) -> bool:
        """Return whether `rollout`, which an import created for this object, has all attempts.

        `rollout` may also have later attempts.

        Raises:
            Conflict: all attempts are stored, and the content of the source has changed since then.
        """
        if not isinstance(rollout, AttemptedRollout):
            return False
        latest, count = rollout.attempt, len(self.attempts)
        is_stored = latest.sequence_id > count or (latest.sequence_id == count and latest.status not in UNENDED)
        origin: Any = (rollout.metadata or {}).get(SOURCE_KEY)
        sha256 = cast("dict[str, Any]", origin).get("sha256") if isinstance(origin, dict) else None
        if is_stored and None not in {sha256, self.sha256} and sha256 != self.sha256:
            raise Conflict(
                f"its content has changed since it was imported as rollout {rollout.rollout_id}",
                "import it into another store",
            )
        return is_stored


def plan_key(source: str, key: str) -> str:
    """Return the plan key of a rollout, made from its format and its key. A long key is replaced by its hash."""
    if len(key.encode(errors="surrogatepass")) > _LONGEST_KEY:
        key = f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"
    return f"import:{source}:{key}"


def parts_of(spans: Sequence[Span]) -> list[list[Span]]:
    """Divide spans into parts for one call each. The last part has at most `_BYTES_PER_CALL`, and may be empty."""
    parts: list[list[Span]] = [[]]
    size = 0
    for span in spans:
        size_of_span = size_of(span)
        size += size_of_span
        if parts[-1] and (size > _BYTES_PER_CALL or len(parts[-1]) >= _SPANS_PER_CALL):
            parts.append([])
            size = size_of_span
        parts[-1].append(span)
    return parts if size <= _BYTES_PER_CALL else [*parts, []]


def size_of(span: Span) -> int:
    """Return the approximate size of a span in bytes."""
    return sum(
        len(to_json(attributes)) for attributes in (span.attributes, *(event.attributes for event in span.events))
    )


def trace_id_of(*parts: object) -> str:
    """Return a trace id that follows from the identity of the trace in its source."""
    return _hash_of(parts)[:32]


def span_id_of(*parts: object) -> str:
    """Return a span id that follows from the identity of the span in its source."""
    return _hash_of(parts)[:16]


def _hash_of(parts: tuple[object, ...]) -> str:
    # Lengths separate the parts, so that ("a", "bc") and ("ab", "c") differ.
    texts = [str(part) for part in parts]
    return hashlib.sha256("".join(f"{len(text)}:{text}" for text in texts).encode(errors="surrogatepass")).hexdigest()


def reward_span(
    rewards: Mapping[str, float],
    *,
    trace_id: str,
    span_id: str,
    parent_id: str | None = None,
    time: float | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Span:
    """Return the span of a reward, in the form in which `emit_reward` records it.

    Args:
        rewards: the finite values by name; the first is the reward that training uses.
        trace_id: the trace of the span.
        span_id: the id of the span.
        parent_id: the span that is rewarded, if there is one.
        time: the time of the reward, in seconds since the epoch.
        attributes: further attributes.
    """
    return Span.from_attributes(
        name=ANNOTATION_SPAN,
        attributes={**reward_attributes(rewards), **(attributes or {})},
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        start_time=time,
        end_time=time,
        status=TraceStatus(status_code="OK"),
    )
