"""Conversion of the spans of an attempt to triplets: prompt, response and reward of each model call.

The adapters are pure functions that accept any spans. Except with
`strict_upstream`, the result does not depend on the process or on the order of the input. Spans are sorted by start
time, then sequence id, then span id. A missing start time is derived from the sequence id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from store.adapters import strict
from store.adapters.base import TraceAdapter
from store.adapters.intake import Timed, Unusable, sort_in
from store.adapters.records import AdaptReport, Dropped, Lost, Triplet
from store.adapters.rewards import (
    Matching,
    Reward,
    RewardMatchPolicy,
    find_rewards,
    match,
    match_numbered,
    rewards_of_scores,
)
from store.adapters.selection import CallChoice, Rules, choose
from store.adapters.tree import TraceTree, tree_of
from store.errors import Invalid
from store.models import Score

__all__ = ["AdaptReport", "Dropped", "LlmProxyTraceToTriplet", "Lost", "TracerTraceToTriplet", "Triplet"]

OPENAI_CALL: Final = r"openai\.chat\.completion"
_UPSTREAM_POLICIES: Final = frozenset({RewardMatchPolicy.FIRST_OCCURRENCE, RewardMatchPolicy.FIRST_SIBLING})


class TracerTraceToTriplet(TraceAdapter[list[Triplet]]):
    """Adapter that converts spans to triplets. A tracer in the agent recorded the spans, and maybe also a proxy.

    A call is a span whose name matches `llm_call_match`, or a span with token ids. If a tracer and a proxy recorded the
    same call, token ids and log probabilities come from the proxy's span; the place in the tree, the agent and the
    texts come from the tracer's span.

    A call with several choices becomes a triplet for each choice with token ids. The triplets have a common prompt and
    the number of the choice as `choice` in their metadata. The first reward of the call belongs to the first choice,
    the second reward to the second choice, and so on.

    Args:
        repair_hierarchy: whether to move calls below the span of their agent; see `TraceTree.repair_hierarchy`.
        llm_call_match: a regular expression. A span is a call if the expression matches a part of the span's name.
        agent_match: a regular expression. A call is used if the expression matches a part of the name of the agent that
            made the call. With None, all calls are used.
        exclude_llm_call_in_reward: whether to leave out calls below the span of a reward. Such a call is a call of a
            judge, a model that evaluates the agent.
        reward_match: the policy for rewards without a link to a call; see `RewardMatchPolicy`.
        strict_upstream: whether to return exactly what Agent-lightning 0.3 returns. The result then depends on the
            order of the input. Only the highest level with more than one span is repaired. The proxy's spans and the
            links of rewards are ignored, and `metadata` contains only the keys of 0.3. The report contains only
            triplets.
        _skip_empty_token_spans: whether to leave out a call if its prompt or its response has no token ids.

    Raises:
        Invalid: an expression or a policy is invalid.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,  # noqa: FBT001, FBT002 - Agent-lightning's signature
        llm_call_match: str = OPENAI_CALL,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,  # noqa: FBT001, FBT002 - as above
        reward_match: RewardMatchPolicy | str = RewardMatchPolicy.FIRST_OCCURRENCE,
        _skip_empty_token_spans: bool = False,  # noqa: FBT001, FBT002 - as above
        *,
        strict_upstream: bool = False,
    ) -> None:
        self._repairs = repair_hierarchy
        self._policy = _policy(reward_match)
        agent = None if agent_match is None else _searching("agent_match", agent_match)
        self._rules = Rules(
            is_call=_searching("llm_call_match", llm_call_match),
            is_agent=agent,
            without_judges=exclude_llm_call_in_reward,
            tokens="both" if _skip_empty_token_spans else "none",
        )
        self._strict = strict_upstream
        if strict_upstream and self._policy not in _UPSTREAM_POLICIES:
            raise Invalid("reward_match", f"Agent-lightning 0.3 has no {self._policy}; leave out strict_upstream")

    def adapt(self, source: Iterable[Any], /, scores: Iterable[Score] | None = None) -> list[Triplet]:
        """Return the triplets of the spans, in the order of time.

        Args:
            source: spans of the store or of the OpenTelemetry SDK. If the spans belong to several attempts, each
                attempt is converted separately.
            scores: scores of one version of a reward, from `annotations.query_scores`. They replace the recorded
                rewards: the score of an attempt is assigned like a last reward after all calls.

        Raises:
            Invalid: the source is not a sequence; an attempt has several scores; or with `strict_upstream`,
                Agent-lightning 0.3 would raise an error, or there are scores.
        """
        return self.adapt_report(source, scores).triplets

    def adapt_report(self, source: Iterable[Any], /, scores: Iterable[Score] | None = None) -> AdaptReport:
        """Return the triplets, the spans that were left out, and the rewards that no call got, with the reasons.

        Raises:
            Invalid: for the same reasons as `adapt`.
        """
        if self._strict:
            _refuse(scores)
            return AdaptReport(strict.from_tracer(source, self._rules, self._policy, repairs=self._repairs), [], [])
        return _report(source, scores, self._adapt_tree)

    def _adapt_tree(self, tree: TraceTree, spans: Sequence[Timed], scored: list[Reward] | None) -> _Adapted:
        if self._repairs:
            tree.repair_hierarchy(lambda node: not self._rules.is_call(node.span.name))
        chosen = choose(tree, spans, self._rules)
        choices = chosen.choices()
        if scored is None:
            return choices, chosen.dropped, match(choices, find_rewards(tree.traverse()), self._policy)
        # A score has no place in the tree, so it has no siblings.
        is_sibling = self._policy == RewardMatchPolicy.FIRST_SIBLING
        policy = RewardMatchPolicy.FIRST_OCCURRENCE if is_sibling else self._policy
        return choices, chosen.dropped, match(choices, scored, policy)


class LlmProxyTraceToTriplet(TraceAdapter[list[Triplet]]):
    """Adapter that converts the spans of a proxy to triplets.

    A call is a span with token ids of both prompt and response. A reward goes to the call to which the reward links. A
    reward without a link goes to the last call before the reward that has no reward yet. "Before" refers to sequence
    ids, not to times, because the clocks of proxy and agent may differ.

    Args:
        strict_upstream: whether to return exactly what Agent-lightning 0.3 returns. The adapter then reads only the
            spans that LiteLLM recorded for the provider hosted_vllm.
    """

    def __init__(self, *, strict_upstream: bool = False) -> None:
        self._strict = strict_upstream
        self._rules = Rules(is_call=_never, without_judges=False, tokens="both")

    def adapt(self, source: Iterable[Any], /, scores: Iterable[Score] | None = None) -> list[Triplet]:
        """Return the triplets of the spans, in the order of their sequence ids.

        Args:
            source: spans, as for `TracerTraceToTriplet.adapt`.
            scores: scores that replace the recorded rewards, as for `TracerTraceToTriplet.adapt`.

        Raises:
            Invalid: for the same reasons as `TracerTraceToTriplet.adapt`.
        """
        return self.adapt_report(source, scores).triplets

    def adapt_report(self, source: Iterable[Any], /, scores: Iterable[Score] | None = None) -> AdaptReport:
        """Return the triplets, the spans that were left out, and the rewards that no call got, with the reasons.

        Raises:
            Invalid: for the same reasons as `adapt`.
        """
        if self._strict:
            _refuse(scores)
            return AdaptReport(strict.from_proxy(source), [], [])
        return _report(source, scores, self._adapt_tree)

    def _adapt_tree(self, tree: TraceTree, spans: Sequence[Timed], scored: list[Reward] | None) -> _Adapted:
        chosen = choose(tree, spans, self._rules)
        choices = sorted(chosen.choices(), key=lambda choice: (choice.sequence_id, choice.node.place))
        rewards = find_rewards(tree.traverse()) if scored is None else scored
        return choices, chosen.dropped, match_numbered(choices, rewards)


_Adapted = tuple[Sequence[CallChoice], list[Unusable], Matching]


def _report(
    source: Iterable[Any],
    scores: Iterable[Score] | None,
    adapt: Callable[[TraceTree, Sequence[Timed], list[Reward] | None], _Adapted],
) -> AdaptReport:
    by_attempt = None if scores is None else rewards_of_scores(scores)
    attempts, refused = sort_in(source)
    report = AdaptReport([], [Dropped(*refusal) for refusal in refused], [])
    for attempt in attempts:
        span = attempt.spans[0].span
        scored = None if by_attempt is None else by_attempt.get((span.rollout_id, span.attempt_id), [])
        choices, dropped, matching = adapt(tree_of(attempt.spans), attempt.spans, scored)
        rewarded = [(choice, matching.by_call.get(index)) for index, choice in enumerate(choices)]
        for _, pairs in groupby(rewarded, key=lambda pair: id(pair[0].call)):
            report.triplets.extend(_triplet(choice, reward) for choice, reward in reversed(list(pairs)))
        report.dropped.extend(Dropped(*drop) for drop in dropped)
        report.lost_rewards.extend(Lost(reward.node.id, reward.value, reason) for reward, reason in matching.left)
    return report


def _triplet(choice: CallChoice, reward: Reward | None) -> Triplet:
    call, data = choice.call, choice.data
    reading, span = call.reading, call.node.span
    rewards: dict[str, float] = {}
    for name, value in reward.dimensions if reward is not None else ():
        rewards.setdefault(name, value)
    response: dict[str, Any] = {"token_ids": list(reading.response_ids), "raw_content": reading.response}
    logprobs = reading.logprobs
    if data is not None:
        contents = None if data.content is None else [data.content]
        response, logprobs = {"token_ids": list(data.token_ids), "raw_content": contents}, data.logprobs
    if logprobs is not None:
        response["logprobs"] = logprobs
    metadata: dict[str, Any] = {
        "request": reading.request_metadata,
        "response": reading.response_metadata,
        "response_id": reading.response_id,
        "agent_name": call.label,
        "rewards": rewards,
        "rollout_id": span.rollout_id,
        "attempt_id": span.attempt_id,
        "sequence_id": call.sequence_id,
        "model_version": call.model_version,
        "span_ids": [node.id for node in call.nodes],
    }
    if data is not None:
        metadata["choice"] = choice.number
    return Triplet(
        prompt={
            "token_ids": list(reading.prompt_ids),
            "raw_content": reading.prompt,
            "image_urls": reading.image_urls,
        },
        response=response,
        reward=None if reward is None else reward.value,
        metadata=metadata,
    )


def _refuse(scores: Iterable[Score] | None) -> None:
    if scores is not None:
        raise Invalid("scores", "Agent-lightning 0.3 has no scores; leave out strict_upstream")


def _policy(name: RewardMatchPolicy | str) -> RewardMatchPolicy:
    try:
        return RewardMatchPolicy(name)
    except ValueError:
        names = ", ".join(RewardMatchPolicy)
        raise Invalid("reward_match", f"{name!r} is not a policy; use one of {names}") from None


@dataclass(frozen=True, slots=True)
class _Searching:
    """Function that returns whether an expression matches a part of a text. A closure could not be pickled."""

    expression: re.Pattern[str]

    def __call__(self, text: str) -> bool:
        return self.expression.search(text) is not None


def _searching(field: str, expression: str) -> _Searching:
    try:
        return _Searching(re.compile(expression))
    except (re.error, TypeError) as error:
        raise Invalid(field, f"{expression!r} is not a regular expression: {error}") from None


def _never(_: str) -> bool:
    return False
