"""Documents of search: the texts of an event, such as a message, the result of a tool, or an error."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, cast

from store.domain.events import (
    AttemptStatusChanged,
    RolloutAmended,
    RolloutAnnotated,
    RolloutEnqueued,
    RolloutStarted,
    SpanRecorded,
)
from store.indexing.index import IndexedEvent
from store.indexing.search.words import without_encoded
from store.model_calls import Message, call_of
from store.model_calls.json_values import as_object
from store.model_calls.recorded import tool_use_of

EVENT_TYPES: Final = (
    RolloutEnqueued.type,
    RolloutStarted.type,
    RolloutAmended.type,
    AttemptStatusChanged.type,
    SpanRecorded.type,
    RolloutAnnotated.type,
)
"""The types of the events that have documents."""
LONGEST: Final = 1_000_000
"""The number of characters at the beginning of a text that can be searched."""
_DEPTH: Final = 32
_OTHER_PREFIXES: Final = ("agentlightning.", "rollbook.", "agl.", "exception.")
_MESSAGE_BODIES: Final = ("agentlightning.message.body", "agentlightning.object.literal", "agentlightning.object.json")


class DocumentKind(IntEnum):
    """The kind of a text. The numbers are stored in indexes."""

    INPUT = 1
    SYSTEM = 2
    USER = 3
    ASSISTANT = 4
    REASONING = 5
    CALL = 6
    """The arguments of a tool call."""
    RESULT = 7
    """The result of a tool call."""
    ERROR = 8
    NOTE = 9
    SPAN = 10
    """The attributes of a span that is neither a call of a model nor of a tool."""


_ROLES: Final[Mapping[str, DocumentKind]] = {
    "system": DocumentKind.SYSTEM,
    "developer": DocumentKind.SYSTEM,
    "user": DocumentKind.USER,
    "human": DocumentKind.USER,
    "assistant": DocumentKind.ASSISTANT,
    "ai": DocumentKind.ASSISTANT,
    "model": DocumentKind.ASSISTANT,
    "tool": DocumentKind.RESULT,
    "function": DocumentKind.RESULT,
}


@dataclass(frozen=True, slots=True)
class EventTexts:
    """The fields of an event that have texts, for events that are not read from the log."""

    type: str
    data: dict[str, Any]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SearchText:
    """A text of an event, with its kind and name."""

    kind: DocumentKind
    text: str
    name: str = ""
    """The name of the tool or of the span, or the type of the error."""

    def key(self, rollout_id: str) -> int:
        """Return a number that is equal for repetitions of the text in a rollout."""
        # The message and the span of a tool call have the same arguments, as JSON with and without spaces.
        text = "".join(self.text.split()) if self.kind is DocumentKind.CALL else self.text.strip()
        content = "\0".join((rollout_id, str(int(self.kind)), self.name, text))
        digest = hashlib.blake2b(content.encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)


def documents_of(event: IndexedEvent | EventTexts) -> Iterator[SearchText]:
    """Yield the documents of an event, without empty texts. A text that the event contains twice is yielded twice."""
    for document in _documents(event):
        text = without_encoded(document.text[:LONGEST])
        if text.strip():
            yield SearchText(document.kind, text, document.name[:200])


def _documents(event: IndexedEvent | EventTexts) -> Iterator[SearchText]:
    match event.type:
        case SpanRecorded.type:
            yield from span_texts(event)
        case RolloutAnnotated.type:
            yield SearchText(DocumentKind.NOTE, _text(event.body.get("note")))
        case AttemptStatusChanged.type:
            error = event.data.get("error")
            if isinstance(error, dict):
                fields = cast("dict[str, Any]", error)
                yield SearchText(DocumentKind.ERROR, _joined(fields), _text(fields.get("type")))
        case _:
            yield SearchText(DocumentKind.INPUT, _joined(event.body.get("input")))


def span_texts(event: IndexedEvent | EventTexts) -> Iterator[SearchText]:
    """Yield the texts of a span. Some of them may be empty."""
    attributes: dict[str, Any] = event.body.get("attributes") or {}
    tool = tool_use_of(attributes)
    names: dict[str, str] = {}
    messages: list[Message] = []
    if tool is None and attributes:
        # Only spans without a tool can have messages, and reading a call takes longer than all other work on a span.
        call = call_of(attributes)
        messages = [*call.messages, *call.answers]
    for message in messages:
        names |= {part.call_id: part.name for part in message.tool_calls if part.call_id is not None}
        yield from message_texts(message, names)
    if tool is not None:
        yield SearchText(DocumentKind.CALL, tool.arguments, tool.name)
        yield SearchText(DocumentKind.RESULT, tool.result, tool.name)
    if not messages and tool is None:
        texts = [_text(attributes.get(name)) for name in _MESSAGE_BODIES]
        texts += [_joined(value) for name, value in attributes.items() if not name.startswith(_OTHER_PREFIXES)]
        yield SearchText(DocumentKind.SPAN, "\n".join(filter(None, texts)), event.data.get("name") or "")
    yield from error_texts(event, attributes)


def message_texts(message: Message, names: Mapping[str, str]) -> Iterator[SearchText]:
    """Yield the texts of a message. `names` has the names of tools by the ids of their calls."""
    kind = _ROLES.get(message.role.lower(), DocumentKind.USER)
    texts: list[str] = []
    for part in message.parts:
        match part.kind:
            case "reasoning":
                yield SearchText(DocumentKind.REASONING, part.text)
            case "tool_call":
                yield SearchText(DocumentKind.CALL, part.text, part.name)
            case "tool_result":
                name = part.name or names.get(part.call_id or "", "") or message.name or ""
                yield SearchText(DocumentKind.RESULT, part.text, name)
            case "image" | "video" | "document":
                pass
            case _:
                texts.append(part.text)
    if kind is DocumentKind.RESULT:
        yield SearchText(kind, "\n".join(texts), message.name or "")
    else:
        yield SearchText(kind, "\n".join(texts))


def error_texts(event: IndexedEvent | EventTexts, attributes: Mapping[str, Any]) -> Iterator[SearchText]:
    """Yield the texts of the errors that a span records. Some of them may be empty."""
    records: list[Any] = [{"name": "exception", "attributes": attributes}, *(event.body.get("events") or [])]
    for record in records:
        fields = as_object(as_object(record).get("attributes"))
        kind = _text(fields.get("exception.type"))
        texts = [kind, _text(fields.get("exception.message")), _text(fields.get("exception.stacktrace"))]
        yield SearchText(DocumentKind.ERROR, "\n".join(filter(None, texts)), kind)
    if event.data.get("status_code") == "ERROR":
        yield SearchText(DocumentKind.ERROR, _text(event.data.get("status_message")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _joined(value: Any) -> str:
    """Return the texts and numbers in a JSON value, one per line."""
    return value if isinstance(value, str) else "\n".join(_texts(value, _DEPTH))


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif depth and isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _texts(item, depth - 1)
    elif depth and isinstance(value, list):
        items = cast("Sequence[Any]", value)
        # Lists of numbers are token ids or embeddings, so they are left out.
        if not (items and all(isinstance(item, int | float) for item in items)):
            for item in items:
                yield from _texts(item, depth - 1)
