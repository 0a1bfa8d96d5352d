"""Grouping of the spans of an attempt into model calls, because several recorders may record one call.

The recorders are a tracer in the agent, the proxy of this package, and LiteLLM, which records each call with two spans.
A framework in the agent may also record a span around the span of the client that it uses.

Equal response ids are not sufficient: local servers number their responses, for example `chatcmpl-7`, and reuse
numbers. Two spans with one response id record the same call if

- they come from different recorders,
- they overlap in time, or one is a descendant of the other, and
- their answers are equal, in the parts that both spans contain.

If several pairs meet these conditions, pairs with equal answers are joined first, then nested pairs, then pairs with
the least difference in time. A call has at most one span of each recorder. Decision 77 contains the reasons and the
exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from statistics import median_low
from typing import Any, Final, NamedTuple, cast

from store.adapters.intake import SpanPlace, Timed, sort_in
from store.model_calls import Message, call_of
from store.model_calls.attributes import BACKEND, TRUNCATED
from store.model_calls.recorded import PROXY_NAMES, read, response_id
from store.models import Span
from store.semconv import OPERATION_INPUT

__all__ = ["group_recordings", "has_failed", "is_of_a_proxy", "recorded_response", "repeated_calls"]

CLOCK_TOLERANCE: Final = 0.5
"""The maximum gap, in seconds, between two recordings of one call. Clocks of machines with NTP differ by less."""
_RANDOM_LENGTH: Final = 20
"""The minimum length of a response id that counts as random. Numbered ids of local servers are shorter."""
_PROVIDER_PREFIX: Final = "llm."
_OF_THE_PROMPT: Final = (
    *("gen_ai.prompt", "gen_ai.input", "gen_ai.request", "gen_ai.system", "llm.input_messages", "prompt_token_ids"),
    f"{OPERATION_INPUT}.",
)
_FINISH: Final = ("finish_reason", "finish_reasons")

_EQUAL: Final = 0
_BEGINNING: Final = 1
_UNKNOWN: Final = 2


class _Choice(NamedTuple):
    """The compared values of one choice, without whitespace, because tracers format JSON differently."""

    text: str
    arguments: str
    """The arguments of all tool calls. Tracers of earlier versions assign the pieces of a stream to different calls."""
    name: str
    """The name of the first tool call."""


class _Answer(NamedTuple):
    """The compared values of an answer. A value that a recording lacks is empty."""

    tokens: tuple[int, ...]
    """The token ids of the first choice."""
    choices: tuple[_Choice, ...]
    is_cut: bool
    """Whether the recording may contain only the beginning of the answer."""

    @property
    def has_content(self) -> bool:
        return any(any(choice) for choice in self.choices)

    @property
    def is_empty(self) -> bool:
        return not (self.tokens or self.has_content)


class _Recording:
    """One span with a response id."""

    def __init__(self, timed: Timed, response: str) -> None:
        self.timed = timed
        self.span = timed.span
        self.response = response
        self.start = timed.start
        """The start, by the clock of the agent."""
        self.end = timed.end
        self.above: Mapping[str, Timed] = {}
        """The spans above this span by their ids, from the parent to the root."""

    @cached_property
    def proxy(self) -> str:
        """The proxy that recorded the span; empty for a recorder in the agent."""
        if self.span.name in PROXY_NAMES:
            return self.span.name
        return BACKEND if BACKEND in self.span.attributes else ""

    @cached_property
    def scope(self) -> str:
        """The name of the instrumentation scope; empty for a span without a scope."""
        scope: Any = getattr(self.span, "instrumentation_scope", None)
        name: Any = cast("Mapping[str, Any]", scope).get("name") if isinstance(scope, Mapping) else None
        return name if isinstance(name, str) else ""

    @property
    def clock(self) -> str:
        """The name of the recorder's clock. The two spans of LiteLLM share one clock. Empty for the agent's clock."""
        return "litellm" if self.span.name in PROXY_NAMES else self.proxy

    @cached_property
    def answer(self) -> _Answer:
        """The answer that the span contains."""
        attributes = {name: value for name, value in self.span.attributes.items() if not _is_of_prompt(name)}
        call = call_of(attributes)
        is_cut = has_failed(self.span) or TRUNCATED in attributes or not _has_finish_reason(attributes)
        tokens = tuple(call.choices[0].token_ids) if call.choices else read(attributes).response_ids
        return _Answer(tokens, tuple(map(_comparable, call.answers)), is_cut)

    def is_below(self, other: _Recording) -> bool:
        return other.span.span_id in self.above

    def overlaps(self, other: _Recording) -> bool:
        return max(self.start, other.start) <= min(self.end, other.end) + CLOCK_TOLERANCE

    def has_recorder_of(self, other: _Recording) -> bool:
        """Return whether both spans come from one recorder.

        A tracer is identified by its instrumentation scope, or by the name of its span if a span has no scope.
        """
        if self.proxy or other.proxy:
            return self.proxy == other.proxy
        if self.scope and other.scope:
            return self.scope == other.scope
        return self.span.name == other.span.name


class _Pair(NamedTuple):
    """Two spans that may record one call. Pairs sort by certainty, the most certain first."""

    evidence: int
    """`_EQUAL`, `_BEGINNING` or `_UNKNOWN`."""
    is_apart: bool
    """Whether neither span is a descendant of the other."""
    seconds: float
    """The difference of the starts plus the difference of the ends."""
    places: tuple[SpanPlace, SpanPlace]


def is_of_a_proxy(span: Span) -> bool:
    """Return whether the proxy of LiteLLM or of this package recorded a span."""
    return span.name in PROXY_NAMES or BACKEND in span.attributes


def has_failed(span: Span) -> bool:
    """Return whether a span ended with an error."""
    status: Any = getattr(span, "status", None)
    return getattr(status, "status_code", None) == "ERROR"


def recorded_response(attributes: Mapping[str, Any]) -> str | None:
    """Return the id of the response in a span's attributes, also under LiteLLM's names; None without an id."""
    response = response_id(attributes)
    if response is not None:
        return response
    ids = {name: attributes[name] for name in attributes if name.startswith(_PROVIDER_PREFIX) and name.endswith(".id")}
    return read(ids).response_id if ids else None


def group_recordings(spans: Sequence[Timed]) -> list[list[Timed]]:
    """Return the spans with a response id, grouped by the call that they record.

    Args:
        spans: all spans of one attempt, in any order. Spans around a call help to compare the clocks of its recorders.

    Returns:
        The calls in the order of their first spans, and the spans of each call in the order of `Timed.place`.
    """
    by_response: dict[str, list[_Recording]] = {}
    for timed in sorted(spans, key=lambda timed: timed.place):
        response = recorded_response(timed.span.attributes)
        if response is not None:
            by_response.setdefault(response, []).append(_Recording(timed, response))
    repeated = [recordings for recordings in by_response.values() if len(recordings) > 1]
    if repeated:
        by_id = {timed.span.span_id: timed for timed in spans}
        for recordings in repeated:
            for recording in recordings:
                recording.above = _ancestors(recording.timed, by_id)
        _align_clocks(repeated)
    calls = [
        sorted((recording.timed for recording in call), key=lambda timed: timed.place)
        for recordings in by_response.values()
        for call in (_grouped(recordings) if len(recordings) > 1 else [recordings])
    ]
    return sorted(calls, key=lambda call: call[0].place)


def repeated_calls(spans: Iterable[Span]) -> dict[tuple[str, str], Span]:
    """Return the spans whose call is already recorded by an earlier span of the attempt.

    Returns:
        A dict. The key is the attempt id and the span id of such a span. The value is the first span of the call, by
        sequence id.
    """
    repeated: dict[tuple[str, str], Span] = {}
    attempts, _ = sort_in(spans)
    for attempt in attempts:
        for call in group_recordings(attempt.spans):
            first, *others = sorted((timed.span for timed in call), key=lambda span: span.sequence_id)
            repeated |= {(span.attempt_id, span.span_id): first for span in others}
    return repeated


def _grouped(recordings: Sequence[_Recording]) -> list[list[_Recording]]:
    """Return recordings with one response id, grouped by call.

    The most certain pairs are joined first. Two groups are joined only if all of their spans may record one call.
    """
    pairs: dict[frozenset[int], _Pair] = {}
    numbers = {recording.span.span_id: number for number, recording in enumerate(recordings)}
    for one, other in _neighbours(recordings):
        key = frozenset({numbers[one.span.span_id], numbers[other.span.span_id]})
        if key not in pairs and (pair := _pair(one, other)) is not None:
            pairs[key] = pair
    groups = [[number] for number in range(len(recordings))]
    for key in sorted(pairs, key=lambda key: pairs[key]):
        one, other = (groups[number] for number in sorted(key))
        if one is not other and all(frozenset(pair) in pairs for pair in product(one, other)):
            one += other
            for number in other:
                groups[number] = one
    unique = {id(group): group for group in groups}
    return [[recordings[number] for number in group] for group in unique.values()]


def _neighbours(recordings: Sequence[_Recording]) -> Iterator[tuple[_Recording, _Recording]]:
    """Yield the pairs of recordings that overlap in time or are nested. A pair may be yielded twice."""
    by_id = {recording.span.span_id: recording for recording in recordings}
    current: list[_Recording] = []
    for recording in sorted(recordings, key=lambda recording: (recording.start, recording.timed.place)):
        current = [earlier for earlier in current if earlier.end + CLOCK_TOLERANCE >= recording.start]
        yield from ((earlier, recording) for earlier in current)
        current.append(recording)
        above = map(by_id.get, recording.above)
        yield from ((outer, recording) for outer in above if outer is not None)


def _pair(one: _Recording, other: _Recording) -> _Pair | None:
    """Return two spans with one response id as a pair; None if they record different calls."""
    is_nested = one.is_below(other) or other.is_below(one)
    if one.has_recorder_of(other):
        may_be_one = not one.proxy and (is_nested or _is_bare_repeat(one, other))
    else:
        may_be_one = is_nested or one.overlaps(other)
    evidence = _compared_answers(one.answer, other.answer) if may_be_one else None
    if evidence is None:
        return None
    seconds = abs(one.start - other.start) + abs(one.end - other.end)
    first, second = sorted((one.timed.place, other.timed.place))
    return _Pair(evidence, not is_nested, seconds, (first, second))


def _is_bare_repeat(one: _Recording, other: _Recording) -> bool:
    """Return whether two spans of one tracer are nested in time, and neither contains an answer.

    Such spans are one call, because the data do not show that the model answered twice.
    """
    if not (one.answer.is_empty and other.answer.is_empty):
        return False
    inner, outer = sorted((one, other), key=lambda recording: recording.end - recording.start)
    is_shorter = inner.end - inner.start < outer.end - outer.start
    return is_shorter and outer.start <= inner.start and inner.end <= outer.end


def _compared_answers(one: _Answer, other: _Answer) -> int | None:
    """Return the evidence that two answers are the same; None if they differ.

    If both answers have token ids, only the token ids are compared. Otherwise, parts that only one answer has are
    ignored.
    """
    if one.tokens and other.tokens:
        return _compared((one.tokens, one.is_cut), (other.tokens, other.is_cut))
    if not (one.has_content and other.has_content):
        return _UNKNOWN
    parts = [
        part
        for mine, theirs in zip(one.choices, other.choices, strict=False)
        for part in _compared_choices((mine, one.is_cut), (theirs, other.is_cut))
    ]
    return max((part for part in parts if part is not None), default=None) if None not in parts else None


def _compared_choices(one: tuple[_Choice, bool], other: tuple[_Choice, bool]) -> Iterator[int | None]:
    """Yield the evidence of each part that both choices have. The flags state whether an answer may be cut off."""
    (mine, mine_is_cut), (theirs, theirs_is_cut) = one, other
    if mine.text and theirs.text:
        yield _compared((mine.text, mine_is_cut), (theirs.text, theirs_is_cut))
    if mine.arguments and theirs.arguments:
        yield _compared((mine.arguments, mine_is_cut), (theirs.arguments, theirs_is_cut))
    if mine.name and theirs.name:
        # Tracers of earlier versions may have joined the names of several calls.
        yield _compared((mine.name, True), (theirs.name, True))


def _compared(one: tuple[Sequence[Any], bool], other: tuple[Sequence[Any], bool]) -> int | None:
    (shorter, is_cut), (longer, _) = sorted((one, other), key=lambda part: len(part[0]))
    if shorter == longer:
        return _EQUAL
    return _BEGINNING if is_cut and longer[: len(shorter)] == shorter else None


def _comparable(message: Message) -> _Choice:
    arguments = "".join(call.text for call in message.tool_calls)
    name = message.tool_calls[0].name if message.tool_calls else ""
    return _Choice("".join(message.text.split()), "".join(arguments.split()), name)


def _is_of_prompt(name: str) -> bool:
    return name.startswith(_OF_THE_PROMPT) or (name.startswith(_PROVIDER_PREFIX) and name.endswith(".messages"))


def _has_finish_reason(attributes: Mapping[str, Any]) -> bool:
    if any(value and name.endswith(_FINISH) for name, value in attributes.items()):
        return True
    messages: Any = attributes.get("gen_ai.output.messages")
    return isinstance(messages, str) and f'"{_FINISH[0]}"' in messages


def _align_clocks(repeated: Sequence[Sequence[_Recording]]) -> None:
    """Convert the times of proxies to the agent's clock, in place."""
    for clock in ("litellm", BACKEND):
        pairs: list[tuple[_Recording, _Recording]] = []
        for recordings in repeated:
            agents = [recording for recording in recordings if not recording.proxy]
            proxied = [recording for recording in recordings if recording.clock == clock]
            if agents and proxied:
                pairs.append((agents[0], proxied[0]))
        difference = _clock_difference(pairs)
        for recording in (recording for recordings in repeated for recording in recordings):
            if recording.clock == clock:
                recording.start -= difference
                recording.end -= difference


def _clock_difference(pairs: Sequence[tuple[_Recording, _Recording]]) -> float:
    """Return the seconds by which the clock of a proxy is ahead of the agent's clock.

    The result is 0 if a span of the proxy overlaps the agent's span with the same response id. The result is also 0 if
    no pair is certainly one call. A pair is certainly one call if the response id is random, or if the proxy's span
    lies outside of the spans around the agent's span. If there are several pairs, all are certain if every pair has
    equal answers and the same difference of the starts.

    Args:
        pairs: for each response id that both recorders have, the first span of the agent and of the proxy.
    """
    if any(one.overlaps(other) for one, other in pairs):
        return 0.0
    evidence = [_compared_answers(one.answer, other.answer) for one, other in pairs]
    equal = [pair for pair, result in zip(pairs, evidence, strict=True) if result is not None]
    differences = [other.start - one.start for one, other in equal]
    is_constant = set(evidence) == {_EQUAL} and max(differences) - min(differences) <= CLOCK_TOLERANCE
    if any(_is_same_call(*pair) for pair in equal) or (len(pairs) > 1 and is_constant):
        return median_low(differences)
    return 0.0


def _is_same_call(agents: _Recording, proxied: _Recording) -> bool:
    """Return whether two spans with one response id record one call although their times do not overlap."""
    if len(agents.response) >= _RANDOM_LENGTH:
        return True
    if not agents.above:
        return False
    *_, root = agents.above.values()
    return proxied.start > root.end + CLOCK_TOLERANCE or proxied.end < root.start - CLOCK_TOLERANCE


def _ancestors(timed: Timed, by_id: Mapping[str, Timed]) -> dict[str, Timed]:
    above: dict[str, Timed] = {}
    parent = by_id.get(timed.span.parent_id or "")
    while parent is not None and parent is not timed and parent.span.span_id not in above:
        above[parent.span.span_id] = parent
        parent = by_id.get(parent.span.parent_id or "")
    return above
