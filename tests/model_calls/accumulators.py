"""The streams that the clients' own accumulators read, event by event, for a comparison with the reader of the store.

`REFUSED` and `ENDS_ONLY` name the streams that an accumulator refuses, or reads differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import httpx2
from openai import omit
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

from store.model_calls import Protocol
from tests.model_calls.entries import Json

REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "joins only contents that are text": (
        "chat list of text parts",
        "chat Mistral's thinking chunks",
        "chat Mistral's thinking as text",
        "chat content part of an unknown type",
    ),
    "requires tool calls with the indexes 0, 1, 2": (
        "chat parallel tool calls in one delta without index",
        "chat parallel tool calls without index",
        "chat parallel tool calls in pieces without index",
        "chat indexes with a gap",
        "chat indexes that begin at 1",
    ),
    "joins the calls with equal indexes": (
        "chat parallel tool calls that all have index 0",
        "chat parallel tool calls in pieces that all have index 0",
    ),
    "joins names, ids and roles that are repeated": ("chat name and id in every delta", "chat role in every chunk"),
    "requires that the first delta of a call has its name": ("chat null names and ids",),
    "requires choices with the indexes 0, 1, 2": (
        "chat choices in another order",
        "chat choice without index",
        "chat no end of one of two choices",
    ),
    "keeps only the token ids of the first chunk": (
        "chat token ids of vLLM",
        "chat token ids without usage",
        "chat token ids of two choices",
        "chat token ids in provider_specific_fields",
    ),
    "keeps the usage of the last chunk, even if it is null": (
        "chat usage null after the counts",
        "chat usage in the first chunk",
        "chat usage in two parts",
    ),
    "keeps no usage below other fields": ("chat usage below x_groq", "chat usage in the choice"),
    "reads true as 1": ("chat usage of other types",),
    "keeps the id and the model of the first chunk, even if they are empty": ("chat Azure's filter results",),
    "requires a delta": ("chat null delta", "chat message in place of the delta"),
    "requires choices in every event": (
        "chat comments and pings",
        "chat error in the middle",
        "chat error as text",
        "chat error event",
        "chat error before the first chunk",
    ),
    "requires the output in the final event": (
        "responses final event without output",
        "responses final event without output after items only",
        "responses final event without output after deltas only",
        "responses final event without output after arguments in pieces",
        "responses log probabilities in deltas only",
        "responses items in another order",
        "responses indexes with a gap",
    ),
    "requires every event of an item": (
        "responses text only in its last event",
        "responses part only in its last event",
        "responses arguments only in their last event",
        "responses only the final event",
        "messages no start of the block",
    ),
    "joins only the deltas of texts and of the arguments of functions": (
        "responses annotation without the end of its item",
        "responses reasoning summary in deltas only",
        "responses code interpreter call in deltas only",
        "responses no end in a custom tool call",
        "messages block of an unknown type in pieces",
    ),
    "parses arguments that are cut off, as far as they are JSON": (
        "messages tool use with arguments that are not JSON",
        "messages no end in a tool use",
    ),
    "requires usage": ("messages usage of a stream without usage at its end",),
}
"""The streams that the accumulator of a client refuses or reads wrongly, by the reason."""
ENDS_ONLY: Final[dict[str, tuple[str, ...]]] = {
    "joins only the deltas of texts and of the arguments of functions": (
        "responses refusal",
        "responses annotations",
        "responses log probabilities",
        "responses reasoning summary",
        "responses reasoning text",
        "responses encrypted reasoning",
        "responses item of an unknown type",
        "responses custom tool call",
        "responses MCP call",
        "responses web search call",
        "responses code interpreter call",
        "responses image generation call",
    ),
    "parses arguments that are cut off, as far as they are JSON": (
        "messages tool use",
        "messages blocks by turns",
        "messages web search",
        "messages MCP",
    ),
}
"""The streams on which accumulator and reader agree only at the end, by the reason."""


def _dumped(snapshot: Any) -> Json:
    return snapshot.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


def chat_snapshots(events: list[Json]) -> Iterator[Json]:
    """Yield the snapshot of OpenAI's accumulator of chat completions after each event."""
    state = ChatCompletionStreamState()
    for event in events:
        state.handle_chunk(cast("Any", construct_type(type_=ChatCompletionChunk, value=event)))
        snapshot = _dumped(state.current_completion_snapshot)
        # The accumulator keeps the index of each tool call's deltas.
        for choice in snapshot["choices"]:
            calls: list[Json] = choice["message"].get("tool_calls") or []
            for call in calls:
                call.pop("index", None)
        yield snapshot


def response_snapshots(events: list[Json]) -> Iterator[Json]:
    """Yield the snapshot of OpenAI's accumulator of the Responses API after each event."""
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        kinds: Any = ResponseStreamEvent
        done: list[Any] = state.handle_event(cast("Any", construct_type(type_=kinds, value=event)))
        final = next((last.response for last in done if last.type in _ENDS), None)
        snapshot: Any = final or getattr(state, "_ResponseStreamState__current_snapshot")  # noqa: B009 - private
        yield _dumped(snapshot)


_ENDS = {"response.completed", "response.failed", "response.incomplete"}


def message_snapshots(events: list[Json]) -> Iterator[Json]:
    """Yield the snapshot of Anthropic's accumulator after each event."""
    # Every process of the tests imports this module to collect the tests, and one of them calls this function.
    from anthropic._models import construct_type as construct_event
    from anthropic.lib.streaming._beta_messages import accumulate_event
    from anthropic.types.beta import BetaRawMessageStreamEvent

    snapshot: Any = None
    pieces: dict[int, bytes] = {}
    for event in events:
        kinds: Any = BetaRawMessageStreamEvent
        value = cast("Any", construct_event(type_=kinds, value=event))
        # The client does not pass pings on.
        if event.get("type") != "ping":
            snapshot = accumulate_event(
                event=value, current_snapshot=snapshot, json_bufs=pieces, request_headers=httpx2.Headers()
            )
        yield {} if snapshot is None else _dumped(snapshot)


SNAPSHOTS: Final[dict[Protocol, Callable[[list[Json]], Iterator[Json]]]] = {
    Protocol.CHAT: chat_snapshots,
    Protocol.RESPONSES: response_snapshots,
    Protocol.MESSAGES: message_snapshots,
}
