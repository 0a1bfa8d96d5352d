"""What a trainer would learn from an attempt: each call that gives a triplet, and why the others give none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from store.adapters.records import AdaptReport
from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
from store.models import Span

ADAPTERS: Final = {"tracer": TracerTraceToTriplet, "proxy": LlmProxyTraceToTriplet}
"""By what a page calls them; the first is the trainer's own choice."""

RULES: Final[Mapping[str, str]] = {
    "same_response": "Another span recorded the same answer; what this one knows went there.",
    "same_tokens": "Another span recorded the same tokens; what this one knows went there.",
    "inside_a_call": "It lies inside another call and has no answer of its own.",
    "in_a_reward": "It was made while a reward was found: a judge's call is not trained on.",
    "other_agent": "It was made by an agent that is not trained.",
    "failed": "It failed and has no answer.",
    "no_token_ids": "It has no token ids of prompt and response: have the engine return them, or go through the proxy.",
    "duplicate_span": "A second span has the same id; one of them was kept.",
    "not_a_span": "It is no span.",
    "no_call_before": "No call without a reward had ended by then.",
    "linked_call_missing": "The call that it names is not among the calls kept.",
    "call_has_a_reward": "The call that it names has a reward already.",
    "not_the_last_reward": "A later reward was taken in its place.",
}
"""What each reason of an adapter means, in a sentence."""


_NO_CALLS: Final = (
    "None of its spans is a call to a model: the adapter takes spans named openai.chat.completion, and those with "
    "token ids. Trace the agent's client, or let it go through the proxy."
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A call that gives a triplet."""

    span_ids: Sequence[str]
    sequence_id: int
    agent: str
    prompt_tokens: int
    response_tokens: int
    has_logprobs: bool
    reward: float | None
    rewards: Mapping[str, float]
    response_id: str | None
    model_version: str | None


@dataclass(frozen=True, slots=True)
class UnusedSpan:
    """A span of a call, or a reward, that comes to nothing."""

    span_id: str
    name: str
    sequence_id: int | None
    reason: str
    rule: str
    detail: str = ""
    value: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingView:
    """What an adapter makes of the spans of an attempt."""

    adapter: str
    verdict: str
    """What to make of it, in a sentence or two."""
    is_good: bool
    """Whether every triplet has token ids and a reward."""
    kept: Sequence[Kept] = field(default_factory=list[Kept])
    dropped: Sequence[UnusedSpan] = field(default_factory=list[UnusedSpan])
    lost: Sequence[UnusedSpan] = field(default_factory=list[UnusedSpan])


def training_view(spans: Sequence[Span], adapter: str = "tracer") -> TrainingView:
    """Return what the trainer's adapter makes of the spans of one attempt: its very answer, not a guess at it."""
    report: AdaptReport = ADAPTERS[adapter]().adapt_report(spans)
    by_id = {span.span_id: span for span in spans}
    kept = [_kept(triplet.prompt, triplet.response, triplet.reward, triplet.metadata) for triplet in report.triplets]
    dropped = [
        UnusedSpan(*_named(each.span_id, by_id), each.reason, RULES.get(each.reason, ""), each.detail)
        for each in report.dropped
    ]
    lost = [
        UnusedSpan(*_named(each.span_id, by_id), each.reason, RULES.get(each.reason, ""), value=each.value)
        for each in report.lost_rewards
    ]
    verdict, is_good = _verdict(kept, dropped, lost, spans)
    return TrainingView(adapter, verdict, is_good, kept, dropped, lost)


def _kept(prompt: Any, response: Any, reward: float | None, said: Mapping[str, Any]) -> Kept:
    return Kept(
        cast("list[str]", said["span_ids"]),
        said["sequence_id"],
        said["agent_name"],
        len(prompt["token_ids"]),
        len(response["token_ids"]),
        "logprobs" in response,
        reward,
        said["rewards"],
        said["response_id"],
        said["model_version"],
    )


def _named(span_id: str, by_id: Mapping[str, Span]) -> tuple[str, str, int | None]:
    span = by_id.get(span_id)
    return (span_id, "", None) if span is None else (span_id, span.name, span.sequence_id)


def _verdict(
    kept: Sequence[Kept], dropped: Sequence[UnusedSpan], lost: Sequence[UnusedSpan], spans: Sequence[Span]
) -> tuple[str, bool]:
    if not spans:
        return "Nothing was recorded in this attempt, so there is nothing to train on.", False
    if not kept and not dropped:
        return _NO_CALLS, False
    if not kept:
        return f"All {len(dropped):,} spans of calls were left out; the rules are below.", False
    told = [f"{len(kept):,} of {len(kept) + len(dropped):,} spans of calls give a triplet."]
    bare = sum(not (each.prompt_tokens and each.response_tokens) for each in kept)
    if bare:
        told.append(f"{_have(bare)} no token ids: a trainer of weights leaves that out.")
    unpaid = sum(each.reward is None for each in kept)
    if unpaid == len(kept):
        told.append("None has a reward: " + ("the rewards there are were lost." if lost else "none was recorded."))
    elif unpaid:
        told.append(f"{_have(unpaid)} no reward of its own.")
    return " ".join(told), not bare and unpaid < len(kept)


def _have(count: int) -> str:
    return f"{count:,} {'has' if count == 1 else 'have'}"
