"""Training data of an attempt: the model calls that yield triplets, and the reasons why other calls yield no triplets.

A triplet is one training example: the prompt and the response of a model call, and its reward. An adapter is a class
that converts spans to triplets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from store.adapters.records import AdaptReport
from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
from store.dashboard.views.token_rows import TokenRows, token_rows
from store.models import Span

ADAPTERS: Final = {"tracer": TracerTraceToTriplet, "proxy": LlmProxyTraceToTriplet}
"""The adapters by their names on the page. The trainer uses the first adapter by default."""

RULES: Final[Mapping[str, str]] = {
    "same_response": "Another span recorded the same response; the data of both spans was merged.",
    "same_tokens": "Another span recorded the same tokens; the data of both spans was merged.",
    "inside_a_call": "The span is nested in another call and has no response of its own.",
    "in_a_reward": "The call was made while a reward was computed; calls of a judge are not used for training.",
    "other_agent": "The call was made by an agent that is not trained.",
    "failed": "The call failed and has no response.",
    "no_token_ids": "The prompt or the response has no token ids: make the model server return them, or use the proxy.",
    "choice_without_token_ids": "A choice after the first becomes a triplet only if it and the prompt have token ids.",
    "duplicate_span": "Several spans have this id; one of them was kept.",
    "not_a_span": "The record is not a span.",
    "no_call_before": "No call ended before this reward, or all calls that ended before it already have a reward.",
    "linked_call_missing": "The linked call is not among the calls that were kept.",
    "call_has_a_reward": "The linked call already has a reward.",
    "not_the_last_reward": "A later reward replaced this reward.",
}
"""The explanations of the reasons for which an adapter does not use a call or a reward."""


_NO_CALLS: Final = (
    "No span is a call to a model. The adapter uses spans named openai.chat.completion and spans with token ids. "
    "Trace the agent's client, or send its calls through the proxy."
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A call that yields a triplet."""

    span_ids: Sequence[str]
    sequence_id: int
    agent: str
    """The name of the agent."""
    prompt_tokens: int
    response_tokens: int
    has_logprobs: bool
    reward: float | None
    rewards: Mapping[str, float]
    """The values of the reward by name."""
    response_id: str | None
    model_version: str | None


@dataclass(frozen=True, slots=True)
class UnusedSpan:
    """A call or a reward that is not used for training."""

    span_id: str
    name: str
    sequence_id: int | None
    reason: str
    """A key of `RULES`."""
    rule: str
    """The explanation of the reason."""
    detail: str = ""
    """More about the reason in this case, if the adapter gives it."""
    value: float | None = None
    """The value of a reward; None for a call."""


@dataclass(frozen=True, slots=True)
class TrainingView:
    """The training data that an adapter extracts from the spans of an attempt."""

    adapter: str
    verdict: str
    """A summary in one or two sentences."""
    is_good: bool
    """Whether every triplet has token ids and a reward."""
    kept: Sequence[Kept] = field(default_factory=list[Kept])
    dropped: Sequence[UnusedSpan] = field(default_factory=list[UnusedSpan])
    """The spans that yield no triplet."""
    lost: Sequence[UnusedSpan] = field(default_factory=list[UnusedSpan])
    """The rewards that no triplet got."""
    tokens: TokenRows | None = None
    """The rows of training with their tokens; None without triplets."""
    has_spans: bool = True


def training_view(
    spans: Sequence[Span], adapter: str = "tracer", *, merge_turns: bool = False, row: int | None = None
) -> TrainingView:
    """Return the training data that an adapter extracts from spans of one attempt. Trainers use the same adapters.

    Args:
        spans: the spans.
        adapter: a key of `ADAPTERS`.
        merge_turns: whether the calls of a conversation become one row.
        row: the number of the row whose tokens are all returned; None for the first tokens of all rows.
    """
    report: AdaptReport = ADAPTERS[adapter]().adapt_report(spans)
    by_id = {span.span_id: span for span in spans}
    triplets = [
        _kept(triplet.prompt, triplet.response, triplet.reward, triplet.metadata) for triplet in report.triplets
    ]
    dropped = [
        UnusedSpan(*_named(span.span_id, by_id), span.reason, RULES.get(span.reason, ""), span.detail)
        for span in report.dropped
    ]
    lost = [
        UnusedSpan(*_named(reward.span_id, by_id), reward.reason, RULES.get(reward.reason, ""), value=reward.value)
        for reward in report.lost_rewards
    ]
    verdict, is_good = _verdict(triplets, dropped, lost, spans)
    rows = token_rows(report.triplets, merge_turns=merge_turns, row=row) if report.triplets else None
    return TrainingView(adapter, verdict, is_good, triplets, dropped, lost, rows, has_spans=bool(spans))


def _kept(prompt: Any, response: Any, reward: float | None, metadata: Mapping[str, Any]) -> Kept:
    return Kept(
        cast("list[str]", metadata["span_ids"]),
        metadata["sequence_id"],
        metadata["agent_name"],
        len(prompt["token_ids"]),
        len(response["token_ids"]),
        "logprobs" in response,
        reward,
        metadata["rewards"],
        metadata["response_id"],
        metadata["model_version"],
    )


def _named(span_id: str, by_id: Mapping[str, Span]) -> tuple[str, str, int | None]:
    span = by_id.get(span_id)
    return (span_id, "", None) if span is None else (span_id, span.name, span.sequence_id)


def _verdict(
    triplets: Sequence[Kept], dropped: Sequence[UnusedSpan], lost: Sequence[UnusedSpan], spans: Sequence[Span]
) -> tuple[str, bool]:
    if not spans:
        return "This attempt recorded no spans, so there is no training data.", False
    if not triplets and not dropped:
        return _NO_CALLS, False
    if not triplets:
        return f"No triplet: all {_calls(len(dropped))} were dropped; the reasons are below.", False
    used = {triplet.span_ids[0] for triplet in triplets}
    total = len(used | {span.span_id for span in dropped})
    sentences = [f"{len(triplets):,} triplet{'' if len(triplets) == 1 else 's'} from {len(used):,} of {_calls(total)}."]
    if len(triplets) > len(used):
        sentences.append("Some calls have several choices.")
    without_token_ids = sum(not (triplet.prompt_tokens and triplet.response_tokens) for triplet in triplets)
    if without_token_ids:
        have = f"{without_token_ids:,} {'has' if without_token_ids == 1 else 'have'}"
        sentences.append(f"{have} no token ids; training of weights skips them.")
    without_reward = sum(triplet.reward is None for triplet in triplets)
    if without_reward == len(triplets):
        reason = "the recorded rewards could not be assigned." if lost else "none was recorded."
        sentences.append(f"None has a reward: {reason}")
    elif without_reward:
        sentences.append(f"{without_reward:,} without reward.")
    return " ".join(sentences), not without_token_ids and without_reward < len(triplets)


def _calls(count: int) -> str:
    return f"{count:,} recorded call{'' if count == 1 else 's'}"
