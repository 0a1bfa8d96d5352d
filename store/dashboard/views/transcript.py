"""The transcript of an attempt: messages, tool calls and rewards in the order of time. Every other span is one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from store.adapters.intake import sort_in
from store.adapters.recordings import group_recordings
from store.dashboard.views.media import Medium, media_of, readable
from store.model_calls import Message, MessagePart, call_of
from store.model_calls.recorded import MessageMemory, tool_use_of
from store.models import Span
from store.semconv import EXCEPTION_SPAN, MESSAGE_BODY, OBJECT_JSON, OBJECT_LITERAL, invalid_rewards, summarise

Kind = Literal["message", "tool", "reward", "log", "error", "span", "same"]

LONGEST: Final = 6_000
"""The maximum number of characters shown of a text, unless the full text is requested."""
WHOLE: Final = 400_000
"""The maximum number of characters shown of a text if the full text is requested.

The raw tab of the rollout and the API show longer texts.
"""
BUDGET: Final = 1_000_000
"""The number of characters on one page after which every further text is truncated to `_SHORTEST` characters."""
_SHORTEST: Final = 300
_CONVERSATIONS: Final = 32
"""The maximum number of earlier conversations with which a call is compared."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, possibly truncated."""

    shown: str
    length: int
    """The length of the full text in characters."""

    @property
    def is_cut(self) -> bool:
        """Whether the text is truncated."""
        return len(self.shown) < self.length


@dataclass(frozen=True, slots=True)
class RequestedTool:
    """A tool call that the model requested."""

    name: str
    arguments: Text
    call_id: str | None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A result of a tool in the prompt of a later call."""

    call_id: str | None
    text: Text
    media: tuple[Medium, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a transcript. A field is empty if its value is unknown or if the kind of entry has no such value."""

    kind: Kind
    """`same` is a span whose call an earlier span recorded; `span` is a span without an entry of another kind."""
    span_id: str
    sequence_id: int
    title: str
    """The role of a message, the name of a tool, the type of an error, or else the name of the span."""
    at: float | None
    """The start of the span, in seconds since the epoch."""
    seconds: float | None
    """The duration of the span."""
    text: Text | None = None
    thinking: Text | None = None
    """The reasoning of the model before its response."""
    calls: tuple[RequestedTool, ...] = ()
    result: Text | None = None
    """The result of a tool."""
    rewards: tuple[tuple[str, float], ...] = ()
    invalid_rewards: tuple[tuple[str, str], ...] = ()
    """The names and values of the rewards that are not finite numbers."""
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    is_answer: bool = False
    """Whether the message is the response of the model."""
    attached: int = 0
    """The number of parts of the message that are not text, for example images."""
    skipped: int = 0
    """The number of messages before this message that are not shown again, because an earlier call contained them."""
    is_error: bool = False
    tool_call_id: str | None = None
    """The id of the tool call that the span of a tool executed."""
    results: tuple[ToolResult, ...] = ()
    """The results of tools that the message contains; `text` contains them too."""
    speech: Text | None = None
    """The text of a message with results, without the results."""
    media: tuple[Medium, ...] = ()
    """The images and other media of a message, without those in results."""
    same_as: str | None = None
    """For the kind `same`, the id of the span that recorded the call first."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    prompt: tuple[Message, ...]
    prompt_span: str
    """The id of the span that contains the messages of the prompt."""
    answers: tuple[Message, ...]
    answers_span: str
    model: str | None
    tokens_in: int | None
    tokens_out: int | None


@dataclass(slots=True)
class _Budget:
    full: frozenset[str]
    """The ids of the spans whose texts are requested in full."""
    left: int = BUDGET

    def cut(self, text: str, span_id: str) -> Text:
        text = readable(text)
        most = WHOLE if span_id in self.full else LONGEST
        most = min(most, max(self.left, _SHORTEST))
        excerpt = text[:most]
        self.left -= len(excerpt)
        return Text(excerpt, len(text))

    def maybe(self, text: str, span_id: str) -> Text | None:
        return self.cut(text, span_id) if text else None


@dataclass(slots=True)
class _Memory:
    """The calls and conversations in the spans so far."""

    conversations: list[list[tuple[Any, ...]]] = field(default_factory=list[list[tuple[Any, ...]]])
    """Each conversation as the keys of its messages, the newest conversation last."""
    calls: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    """By the id of a span, all spans that recorded the same call, in the order of time."""
    messages: MessageMemory = field(default_factory=MessageMemory)
    keys: dict[int, tuple[Message, tuple[Any, ...]]] = field(default_factory=dict[int, tuple[Message, tuple[Any, ...]]])
    """The keys of messages, by the identity of the message, which is kept so that no other gets the same identity."""

    def key(self, message: Message) -> tuple[Any, ...]:
        """Return the key of a message, which is computed once for a message that calls repeat."""
        if id(message) not in self.keys:
            self.keys[id(message)] = message, message.key
        return self.keys[id(message)][1]

    def repeated(self, keys: Sequence[tuple[Any, ...]]) -> int:
        """Return the maximum number of leading messages that a conversation shares with an earlier conversation."""
        most = 0
        for conversation in reversed(self.conversations):
            if len(conversation) > most:
                most = max(most, _shared(conversation, keys))
        return most

    def remember(self, keys: list[tuple[Any, ...]]) -> None:
        self.conversations = [*self.conversations[1 - _CONVERSATIONS :], keys]


def transcript(spans: Iterable[Span], *, full: Iterable[str] = ()) -> list[Entry]:
    """Return the entries for the spans of one attempt, in the order of time.

    Messages that a call repeats from an earlier call are not shown again. If the agent and the proxy both record a
    call, the messages of both spans are shown at the first span, and the second span is one line.

    Args:
        spans: the spans of the attempt.
        full: the ids of the spans whose texts are requested in full.
    """
    budget, memory = _Budget(frozenset(full)), _Memory()
    entries: list[Entry] = []
    ordered = _ordered(list(spans))
    attempts, _ = sort_in(ordered)
    for call in (call for attempt in attempts for call in group_recordings(attempt.spans)):
        recorded = sorted((timed.span for timed in call), key=_sort_key)
        memory.calls |= {span.span_id: recorded for span in recorded}
    for span in ordered:
        entries.extend(_entries(span, budget, memory))
    return entries


def _ordered(spans: Sequence[Span]) -> list[Span]:
    """Return spans by their start. Of spans that started at the same time, a parent comes before its children."""
    by_id = {span.span_id: span for span in spans}
    ordered: dict[str, Span] = {}
    for span in sorted(spans, key=_sort_key):
        line = {span.span_id: span}
        parent = by_id.get(span.parent_id or "")
        while parent is not None and parent.start_time == span.start_time:
            if parent.span_id in ordered or parent.span_id in line:
                break
            line[parent.span_id] = parent
            parent = by_id.get(parent.parent_id or "")
        ordered |= dict(reversed(line.items()))
    return list(ordered.values())


def _sort_key(span: Span) -> tuple[float, int]:
    # Spans without a start time come first, in the order of their numbers.
    return (span.start_time or 0.0, span.sequence_id)


def _entries(span: Span, budget: _Budget, memory: _Memory) -> list[Entry]:
    summary = summarise(span.name, span.attributes)
    plain = Entry(
        "span",
        span.span_id,
        span.sequence_id,
        span.name,
        span.start_time,
        None if span.start_time is None or span.end_time is None else span.end_time - span.start_time,
        rewards=summary.rewards,
        invalid_rewards=invalid_rewards(span.attributes),
        is_error=span.status.status_code == "ERROR",
    )
    recorded = memory.calls.get(span.span_id, [span])
    if recorded[0] is not span:
        return [replace(plain, kind="same", same_as=recorded[0].span_id)]
    exchange = _exchange(recorded, memory)
    if exchange is not None:
        facts = [summary, *(summarise(record.name, record.attributes) for record in recorded[1:])]
        called = replace(
            plain,
            model=next((fact.model for fact in facts if fact.model is not None), exchange.model),
            tokens_in=next((fact.tokens_in for fact in facts if fact.tokens_in is not None), exchange.tokens_in),
            tokens_out=next((fact.tokens_out for fact in facts if fact.tokens_out is not None), exchange.tokens_out),
        )
        return [*_conversation(called, exchange, budget, memory), *_failure(plain, span, budget)]
    return [_other(plain, span, budget), *_failure(plain, span, budget)]


def _exchange(recorded: Sequence[Span], memory: _Memory) -> _Exchange | None:
    """Return the messages and the usage of a call from the spans that recorded the call.

    One span may lack values that another contains.
    """
    calls = [(call_of(span.attributes, memory.messages), span.span_id) for span in recorded]
    prompt, prompt_span = next(((call.messages, span_id) for call, span_id in calls if call.messages), ((), ""))
    answers, answers_span = next(((call.answers, span_id) for call, span_id in calls if call.answers), ((), ""))
    if not prompt and not answers:
        return None
    models = (name for call, _ in calls for name in (call.response_model, call.model) if name)
    usages = [call.usage for call, _ in calls]
    return _Exchange(
        prompt,
        prompt_span,
        answers,
        answers_span,
        next(models, None),
        next((usage.prompt for usage in usages if usage.prompt is not None), None),
        next((usage.completion for usage in usages if usage.completion is not None), None),
    )


def _other(plain: Entry, span: Span, budget: _Budget) -> Entry:
    used = tool_use_of(span.attributes)
    if used is not None:
        call = RequestedTool(used.name, budget.cut(used.arguments, span.span_id), None)
        result = budget.maybe(used.result, span.span_id)
        media = media_of(used.media, span.span_id)
        return replace(
            plain, kind="tool", title=used.name, calls=(call,), result=result, tool_call_id=used.call_id, media=media
        )
    if plain.rewards or plain.invalid_rewards:
        return replace(plain, kind="reward")
    for name in (MESSAGE_BODY, OBJECT_LITERAL, OBJECT_JSON):
        body = span.attributes.get(name)
        if isinstance(body, str) and body:
            return replace(plain, kind="log", text=budget.cut(body, span.span_id))
    return plain


def _failure(plain: Entry, span: Span, budget: _Budget) -> list[Entry]:
    """Return an entry for the error of a span, or an empty list if the span has no error."""
    attributes = dict(span.attributes)
    for event in span.events:
        if event.name == "exception":
            attributes.update(event.attributes)
    kind, message = attributes.get("exception.type"), attributes.get("exception.message")
    if not plain.is_error and span.name != EXCEPTION_SPAN and kind is None:
        return []
    texts = [str(part) for part in (message, attributes.get("exception.stacktrace")) if part]
    text = "\n".join(texts) or (span.status.description or "")
    if not text and kind is None:
        return []
    title = str(kind) if kind else "error"
    return [
        replace(plain, kind="error", title=title, text=budget.maybe(text, span.span_id), rewards=(), invalid_rewards=())
    ]


def _conversation(plain: Entry, exchange: _Exchange, budget: _Budget, memory: _Memory) -> list[Entry]:
    keys = [memory.key(message) for message in exchange.prompt]
    skipped = memory.repeated(keys)
    memory.remember([*keys, *(message.key for message in exchange.answers)])
    messages = [_message(plain, message, exchange.prompt_span, budget) for message in exchange.prompt[skipped:]]
    answers = [
        replace(_message(plain, message, exchange.answers_span, budget), is_answer=True) for message in exchange.answers
    ]
    entries = [*messages, *answers]
    if not entries:
        return [replace(plain, kind="message", title="assistant", skipped=skipped)]
    entries[0] = replace(entries[0], skipped=skipped)
    return entries


def _message(plain: Entry, message: Message, source: str, budget: _Budget) -> Entry:
    """Return the entry of a message. `source` is the id of the span that contains it."""
    text = budget.maybe(message.text, plain.span_id)
    media = message.media
    results: tuple[ToolResult, ...] = ()
    speech = text
    if any(part.kind == "tool_result" for part in message.parts):
        results, speech = _results(message, text, source, plain.span_id, budget)
        media = replace(message, parts=tuple(part for part in message.parts if part.kind != "tool_result")).media
    return replace(
        plain,
        kind="message",
        title=message.role or "message",
        text=text,
        thinking=budget.maybe(message.thinking, plain.span_id),
        calls=tuple(_call(call, plain.span_id, budget) for call in message.tool_calls),
        attached=len(message.media),
        is_error=False,
        rewards=(),
        invalid_rewards=(),
        results=results,
        speech=None if speech is text else speech,
        media=media_of(media, source),
    )


def _results(
    message: Message, text: Text | None, source: str, span_id: str, budget: _Budget
) -> tuple[tuple[ToolResult, ...], Text | None]:
    """Return the results of tools in a message, and the rest of its text."""
    results: list[ToolResult] = []
    for part in message.parts:
        if part.kind != "tool_result":
            continue
        media = media_of(replace(message, parts=(part,)).media, source)
        is_media_only = bool(part.parts) and not any(inner.text for inner in part.parts)
        if is_media_only:
            content = Text("", 0)
        else:
            content = text if text is not None and len(message.parts) == 1 else budget.cut(part.text, span_id)
        results.append(ToolResult(part.call_id, content, media, part.item.get("is_error") is True))
    rest = replace(message, parts=tuple(part for part in message.parts if part.kind != "tool_result")).text
    return tuple(results), budget.maybe(rest, span_id)


def _call(call: MessagePart, span_id: str, budget: _Budget) -> RequestedTool:
    return RequestedTool(call.name, budget.cut(call.text, span_id), call.call_id)


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared
