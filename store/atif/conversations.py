"""Conversations of an attempt. The calls of a conversation become the steps of one trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from store.adapters.intake import Timed
from store.adapters.messages import merged_call, recorded_calls
from store.adapters.recordings import has_failed
from store.atif.calls import repeated
from store.atif.form import AGENT, iso_time, note, present
from store.atif.messages import add_results, encoded, step_of
from store.atif.metrics import metrics_of
from store.model_calls import Message, ModelCall
from store.model_calls.json_values import Json


@dataclass(frozen=True, slots=True)
class AttemptCall:
    """A call of an attempt."""

    spans: Sequence[Timed]
    """The spans that record the call. The texts come from the first span."""
    value: ModelCall


@dataclass(slots=True)
class Conversation:
    """Calls that continue each other: the prompt of a call begins with the messages of the calls before it."""

    steps: list[Json] = field(default_factory=list[Json])
    calls: list[tuple[Json, AttemptCall]] = field(default_factory=list[Any])
    """The calls with their steps."""
    keys: list[Any] = field(default_factory=list[Any])
    """For each message, a key that is equal for repetitions of the message."""
    _responses: dict[int, tuple[Json, Message]] = field(default_factory=dict[int, Any])
    """The responses that no prompt has repeated yet, as step and message. The keys are the indexes of the messages."""
    _places: set[int] = field(default_factory=set[int])
    """The indexes of the messages that are responses."""

    def is_continued_by(self, keys: Sequence[Any]) -> bool:
        """Return whether a prompt begins with all messages of the conversation. `keys` are the keys of its messages."""
        return list(keys[: len(self.keys)]) == self.keys

    def shared_with(self, keys: Sequence[Any]) -> int:
        """Return the number of messages with which both a prompt and the conversation begin.

        Return 0 if none of these messages is a response, for example if several agents share only a system prompt.
        """
        pairs = zip(self.keys, keys, strict=False)
        count = next(
            (place for place, (one, other) in enumerate(pairs) if one != other), min(len(self.keys), len(keys))
        )
        return count if any(place < count for place in self._places) else 0

    def add(self, call: AttemptCall, copied: int = 0) -> None:
        """Add a call that continues the conversation.

        Args:
            call: the call.
            copied: the number of messages at the start of the prompt that another conversation contains too.
        """
        for place, message in enumerate(call.value.messages):
            if place < len(self.keys):
                self._repeat(place, message)
            else:
                self._add_prompt(message, is_copied=place < copied)
        self._add_response(call)

    def _repeat(self, place: int, message: Message) -> None:
        step, response = self._responses.pop(place, (None, None))
        if step is None or message == repeated(step, response):
            return
        note(step, repeated=True if message == response else encoded(message))

    def _add_prompt(self, message: Message, *, is_copied: bool) -> None:
        self.keys.append(message.key)
        first = len(self.steps)
        if any(part.kind == "tool_result" for part in message.parts):
            add_results(self.steps, message)
        else:
            self.steps.append(step_of(message))
        for step in self.steps[first:]:
            # A message of the model in a prompt is not a response of this conversation. It was generated elsewhere.
            if is_copied or step["source"] == AGENT:
                step["is_copied_context"] = True

    def _add_response(self, call: AttemptCall) -> None:
        value, span = call.value, call.spans[0].span
        message = value.choices[0].message if value.choices else None
        effort = value.settings.get("reasoning_effort")
        step = step_of(message or Message("assistant"))
        if step["source"] != AGENT:
            step = step_of(Message("assistant", message.parts if message else ()))
        if message is None:
            note(step, is_message=False)
        step |= present(
            timestamp=iso_time(span.start_time),
            model_name=value.response_model or value.model,
            reasoning_effort=effort if type(effort) in {str, int, float} else None,
            metrics=metrics_of(value, [timed.span for timed in call.spans]) or None,
            llm_call_count=1,
        )
        if not value.messages and self.keys:
            note(step, has_prompt=False)
        self.steps.append(step)
        self.calls.append((step, call))
        if message is not None:
            self._places.add(len(self.keys))
            self._responses[len(self.keys)] = (step, message)
            self.keys.append(message.key)


def conversations(spans: list[Timed]) -> list[Conversation]:
    """Return the conversations of an attempt in the order of their first calls, without failed calls."""
    attempt_conversations: list[Conversation] = []
    for recordings in recorded_calls(spans):
        call = AttemptCall(recordings, merged_call(recordings))
        if not call.value.choices and has_failed(recordings[0].span):
            continue
        keys = [message.key for message in call.value.messages]
        # A call without a recorded prompt is added to the latest conversation, as nothing shows where it belongs.
        continued = next(
            (one for one in reversed(attempt_conversations) if not keys or one.is_continued_by(keys)), None
        )
        copied = 0
        if continued is None:
            copied = max((one.shared_with(keys) for one in attempt_conversations), default=0)
            continued = Conversation()
            attempt_conversations.append(continued)
        continued.add(call, copied)
    return attempt_conversations
