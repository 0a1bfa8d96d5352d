"""Selection of the spans that are model calls, and merging of the spans that recorded the same call.

A tracer in the agent and a proxy in front of the model may both record a call, with different data. Spans that record
one call are merged (see `recordings`). The token ids come from the proxy's span. The place in the tree and the texts
come from the tracer's span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final, Literal

from store.adapters.choices import LaterChoice, later_choices
from store.adapters.intake import Timed, Unusable
from store.adapters.recordings import group_recordings, has_failed, is_of_a_proxy
from store.adapters.rewards import is_reward
from store.adapters.tree import TraceTree
from store.model_calls.attributes import VERSION
from store.model_calls.nested import indexed
from store.model_calls.recorded import PROXY_NAMES, CallAttributes, may_have_tokens, read

__all__ = ["CallChoice", "CallSpan", "ChosenCalls", "MergedCall", "Rules", "choose"]

_SAME_RESPONSE: Final = "same_response"
_SAME_TOKENS: Final = "same_tokens"
_INSIDE_A_CALL: Final = "inside_a_call"
_OF_A_JUDGE: Final = "in_a_reward"
_OTHER_AGENT: Final = "other_agent"
_NO_TOKENS: Final = "no_token_ids"
_FAILED: Final = "failed"
_BARE_CHOICE: Final = "choice_without_token_ids"

EVERY_AGENT: Final = "*"
"""The agent name of a call if no span above the call contains an agent name."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The conditions under which calls are used.

    Args:
        is_call: function that returns whether a span with a given name is a call. A span with token ids is a call
            regardless of its name.
        is_agent: function that returns whether the calls of an agent with a given name are used. With None, all calls
            are used, also calls without an agent.
        without_judges: whether to leave out calls below a span that computes a reward. Such a call is a call of a
            judge, a model that evaluates the agent.
        tokens: with "both", only calls with token ids of prompt and response are used.
    """

    is_call: Callable[[str], bool]
    is_agent: Callable[[str], bool] | None = None
    without_judges: bool = True
    tokens: Literal["none", "both"] = "none"


@dataclass(frozen=True, slots=True)
class CallSpan:
    """A span that records a call. `label`, `in_reward` and `above` are derived from the spans above it."""

    node: TraceTree
    reading: CallAttributes
    label: str | None
    """The name of the agent that made the call; None if the calls of this agent are not used."""
    in_reward: bool
    """Whether the span is below a span that computes a reward. False for every span if `Rules.without_judges` is
    false."""
    above: CallSpan | None
    """The nearest span above this span that also records a call."""

    @property
    def of_proxy(self) -> bool:
        """Whether a proxy recorded the span."""
        return is_of_a_proxy(self.node.span)


class MergedCall:
    """A call with all spans that recorded it. The first span is the span of the agent's tracer, if there is one."""

    def __init__(self, call_spans: Sequence[CallSpan]) -> None:
        self._spans = list(call_spans)

    @property
    def node(self) -> TraceTree:
        """The tracer's span of the call. If there is none, the proxy's span."""
        return self._spans[0].node

    @property
    def nodes(self) -> list[TraceTree]:
        """All spans that recorded the call."""
        return [call_span.node for call_span in self._spans]

    @property
    def label(self) -> str:
        """The name of the agent."""
        return self._spans[0].label or EVERY_AGENT

    @property
    def sequence_id(self) -> int:
        """The sequence id of the proxy's span, which the proxy reserved when the call began.

        If no proxy recorded the call: the sequence id of the tracer's span.
        """
        return min(
            (call_span.node.span.sequence_id for call_span in self._spans if call_span.of_proxy),
            default=self.node.span.sequence_id,
        )

    @property
    def failed(self) -> bool:
        """Whether at least one span of the call has the status ERROR."""
        return any(has_failed(call_span.node.span) for call_span in self._spans)

    @property
    def model_version(self) -> str | None:
        """The version of the weights that generated the response; None if no proxy recorded the version."""
        versions = (call_span.node.span.attributes.get(VERSION) for call_span in self._spans)
        return next((version for version in versions if isinstance(version, str)), None)

    @cached_property
    def reading(self) -> CallAttributes:
        """The merged data of all spans of the call."""
        readings = [call_span.reading for call_span in self._spans]
        ids = [call_span.reading for call_span in sorted(self._spans, key=lambda call_span: not call_span.of_proxy)]
        # The token ids of the prompt and of the response should come from one span. So spans with both come before
        # spans with only one of them.
        ids.sort(key=lambda reading: not (reading.prompt_ids and reading.response_ids))
        response_ids = next((reading.response_ids for reading in ids if reading.response_ids), ())
        urls = [reading.image_urls for reading in readings if reading.image_urls]
        return CallAttributes(
            response_id=next((reading.response_id for reading in readings if reading.response_id), None),
            prompt_ids=next((reading.prompt_ids for reading in ids if reading.prompt_ids), ()),
            response_ids=response_ids,
            logprobs=_fitting([reading.logprobs for reading in ids if reading.logprobs], len(response_ids)),
            prompt=next((reading.prompt for reading in readings if reading.prompt), None),
            response=next((reading.response for reading in readings if reading.response), None),
            request_metadata=next((reading.request_metadata for reading in readings if reading.request_metadata), None),
            response_metadata=next(
                (reading.response_metadata for reading in readings if reading.response_metadata), None
            ),
            image_urls=urls[0] if urls else list[str](),
        )

    @cached_property
    def choices(self) -> list[CallChoice]:
        """The first choice of the response, and the later choices with token ids, in order."""
        later = [CallChoice(self, number, choice) for number, choice in self._later if choice.token_ids]
        if not later or not self.reading.prompt_ids:
            return [CallChoice(self, 0, None)]
        contents = indexed(self.reading.response)
        first = LaterChoice(self.reading.response_ids, self.reading.logprobs, contents[0] if contents else None)
        return [CallChoice(self, 0, first), *later]

    def unused_choices(self) -> list[Unusable]:
        """Return the choices that are left out. A choice is left out if the choice or the prompt has no token ids."""
        used = {choice.number for choice in self.choices}
        return [
            Unusable(self.node.id, _BARE_CHOICE, f"choice {number}") for number, _ in self._later if number not in used
        ]

    @cached_property
    def _later(self) -> list[tuple[int, LaterChoice]]:
        """The later choices with their numbers. Contents come from the tracer, and token ids from the proxy."""
        spans = sorted(self._spans, key=lambda call_span: not call_span.of_proxy)
        recorded = [later_choices(call_span.node.span.attributes, call_span.reading.response) for call_span in spans]
        contents = indexed(self.reading.response)
        later: list[tuple[int, LaterChoice]] = []
        for number, choices in enumerate(zip_longest(*recorded, fillvalue=LaterChoice()), start=1):
            best = next((choice for choice in choices if choice.token_ids), choices[0])
            later.append((number, replace(best, content=contents[number]) if number < len(contents) else best))
        return later


@dataclass(frozen=True, slots=True)
class CallChoice:
    """A choice of a call's response that becomes a triplet."""

    call: MergedCall
    number: int
    data: LaterChoice | None
    """The data of the choice; None if no other choice of the call becomes a triplet."""

    @property
    def node(self) -> TraceTree:
        """The tracer's span of the call. If there is none, the proxy's span."""
        return self.call.node

    @property
    def nodes(self) -> list[TraceTree]:
        """All spans that recorded the call."""
        return self.call.nodes

    @property
    def sequence_id(self) -> int:
        """The sequence id of the call."""
        return self.call.sequence_id


@dataclass(frozen=True, slots=True)
class ChosenCalls:
    """The used calls of an attempt in the order of time, and the spans that were left out."""

    calls: list[MergedCall]
    dropped: list[Unusable]

    def choices(self) -> list[CallChoice]:
        """Return the choices of all calls: calls in order, and the choices of each call from the last to the first.

        A reward is assigned to the last entry of the list that has no reward yet. Because the choices are reversed, the
        first choice gets the first reward of its call.
        """
        return [choice for call in self.calls for choice in reversed(call.choices)]


def choose(tree: TraceTree, spans: Sequence[Timed], rules: Rules) -> ChosenCalls:
    """Return the calls in the tree of spans.

    Every span that records a call is in `calls` or in `dropped`. A span that was merged into another span's call is in
    both.
    """
    call_of = {timed.span.span_id: number for number, call in enumerate(group_recordings(spans)) for timed in call}
    groups: dict[int, list[CallSpan]] = {}
    ungrouped: list[CallSpan] = []
    for call_span in _call_spans(tree, rules):
        call = call_of.get(call_span.node.id)
        if call is None:
            ungrouped.append(call_span)
        else:
            groups.setdefault(call, []).append(call_span)
    builder = _CallBuilder([], {}, [])
    for group in groups.values():
        builder.add_group(group)
    for call_span in ungrouped:
        builder.add_ungrouped(call_span)
    calls = [MergedCall(call_spans) for call_spans in builder.calls]
    calls.sort(key=lambda call: call.node.place)
    usable = [call for call in calls if _is_usable(call, rules, builder.dropped)]
    builder.dropped.extend(unused for call in usable for unused in call.unused_choices())
    return ChosenCalls(usable, builder.dropped)


@dataclass(slots=True)
class _CallBuilder:
    """Builder of calls from the spans that recorded them."""

    calls: list[list[CallSpan]]
    call_by_span: dict[int, list[CallSpan]]
    """The call that contains each span. The key is the `id()` of the `CallSpan`."""
    dropped: list[Unusable]

    def add_group(self, group: list[CallSpan]) -> None:
        """Build a call from the spans that recorded it, unless the call is left out.

        The spans of the tracer determine the agent, and whether the call is a call of a judge. A proxy knows neither.
        """
        of_agent = [call_span for call_span in group if not call_span.of_proxy] or group
        candidates = [call_span for call_span in of_agent if call_span.label is not None and not call_span.in_reward]
        if not candidates:
            reason = _drop_reason(of_agent)
            self.dropped += [Unusable(call_span.node.id, reason, "") for call_span in group]
            return
        first = min(candidates, key=lambda call_span: call_span.node.place)
        others = sorted(
            (call_span for call_span in group if call_span is not first),
            key=lambda call_span: (call_span.of_proxy, call_span.node.place),
        )
        self._add([first, *others])
        self.dropped += [Unusable(call_span.node.id, _SAME_RESPONSE, first.node.id) for call_span in others]

    def add_ungrouped(self, call_span: CallSpan) -> None:
        """Build a call from a span without a response id, unless the span is left out or records an existing call.

        The span records an existing call if it is below a span of that call, or if it is above a span of that call and
        has the same token ids.
        """
        if id(call_span) in self.call_by_span:
            return
        if call_span.label is None or call_span.in_reward:
            self.dropped.append(Unusable(call_span.node.id, _drop_reason([call_span]), ""))
            return
        above = call_span.above
        while above is not None and id(above) not in self.call_by_span:
            above = above.above
        if above is None:
            self._add([call_span])
            return
        call = self.call_by_span[id(above)]
        self.dropped.append(Unusable(call_span.node.id, _INSIDE_A_CALL, call[0].node.id))
        if not any(other.reading.has_tokens for other in call):
            call.append(call_span)

    def _add(self, call: list[CallSpan]) -> None:
        self.calls.append(call)
        self.call_by_span |= {id(call_span): call for call_span in call}
        for above in [above for call_span in call for above in _enclosing(call_span)]:
            if id(above) not in self.call_by_span and above.reading.response_id is None and _same_tokens(above, call):
                self.call_by_span[id(above)] = call
                call.append(above)
                self.dropped.append(Unusable(above.node.id, _SAME_TOKENS, call[0].node.id))


def _call_spans(tree: TraceTree, rules: Rules) -> Iterator[CallSpan]:
    """Yield all spans that record calls. A span comes before its descendants."""
    start = EVERY_AGENT if rules.is_agent is None else None
    waiting: list[tuple[TraceTree, str | None, bool, CallSpan | None]] = [(tree, start, False, None)]
    while waiting:
        node, label, in_reward, above = waiting.pop()
        span = node.span
        has_call_name = rules.is_call(span.name)
        if has_call_name or span.name in PROXY_NAMES or may_have_tokens(span.attributes):
            reading = read(span.attributes)
            if has_call_name or reading.has_tokens or (span.name in PROXY_NAMES and reading.response_id):
                above = CallSpan(node, reading, label, in_reward, above)
                yield above
        agent = node.agent_name()
        if agent is not None:
            label = agent if rules.is_agent is None or rules.is_agent(agent) else None
        in_reward = in_reward or (rules.without_judges and is_reward(span))
        waiting += [(child, label, in_reward, above) for child in reversed(node.children)]


def _enclosing(call_span: CallSpan) -> Iterator[CallSpan]:
    above = call_span.above
    while above is not None:
        yield above
        above = above.above


def _same_tokens(one: CallSpan, call: list[CallSpan]) -> bool:
    tokens = (one.reading.prompt_ids, one.reading.response_ids)
    return one.reading.has_tokens and any(
        tokens == (other.reading.prompt_ids, other.reading.response_ids) for other in call
    )


def _drop_reason(call_spans: Sequence[CallSpan]) -> str:
    return _OF_A_JUDGE if any(call_span.in_reward for call_span in call_spans) else _OTHER_AGENT


def _is_usable(call: MergedCall, rules: Rules, dropped: list[Unusable]) -> bool:
    reading = call.reading
    if reading.prompt_ids and reading.response_ids:
        return True
    if call.failed and not (reading.response_ids or reading.response):
        dropped.append(Unusable(call.node.id, _FAILED, ""))
        return False
    if rules.tokens == "none" and any(rules.is_call(node.span.name) or reading.has_tokens for node in call.nodes):
        return True
    dropped.append(Unusable(call.node.id, _NO_TOKENS, ""))
    return False


def _fitting(logprobs: list[list[Any]], tokens: int) -> list[Any] | None:
    """Return the first list that has one entry for each token; if there is none, the first list."""
    return next((entries for entries in logprobs if len(entries) == tokens), logprobs[0] if logprobs else None)
