"""Conversion of a trace of verifiers to spans.

A trace is a graph of messages: each node has a message and the index of the node before it. A call has the index of the
node that the model wrote. The prompt of the call is the path from the root to this node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from store.errors import Invalid
from store.imports.rollouts import reward_span, span_id_of, trace_id_of
from store.model_calls import Choice, Message, ModelCall, Protocol, Usage
from store.model_calls.attributes import CALL_SPAN, ERROR, STATUS, VERSION, AttributeWriter, put_call
from store.model_calls.items import read_message
from store.model_calls.json_values import (
    Json,
    as_count,
    as_ids,
    as_list,
    as_object,
    as_objects,
    as_text,
    first_text,
    to_json,
)
from store.model_calls.reading import read_tool
from store.models import Span, TraceStatus
from store.semconv import CHANGED, MESSAGE_BODY, MESSAGE_SPAN, PRIMARY

CREDIT_SPAN: Final = "training.credit"
"""The name of the span with the values that a trainer assigned to the tokens of a trace."""
NODE: Final = "verifiers.node"
"""The attribute for the index of the node that a call wrote."""
_STREAMS: Final = ("advantages", "reference_logprobs", "trainer_logprobs", "entropies")
_PROTOCOLS: Final = (
    ("/chat/completions", Protocol.CHAT),
    ("/completions", Protocol.COMPLETIONS),
    ("/responses", Protocol.RESPONSES),
    ("/messages", Protocol.MESSAGES),
)


class TraceSpans:
    """The spans of a trace.

    Args:
        trace: the trace.
        trace_id: the id of the trace in its source.
        version: the version of the policy that the trainer serves; None if it is unknown.

    Raises:
        Invalid: the trace is malformed.
    """

    def __init__(self, trace: Json, trace_id: str, version: str | None) -> None:
        self._trace = trace
        self._key = trace_id
        self._trace_id = trace_id_of("traces", trace_id)
        self._version = version
        self._nodes = as_objects(trace.get("nodes"))
        if len(self._nodes) != len(as_list(trace.get("nodes"))):
            raise Invalid("nodes", "contains a value that is no object")
        for index, node in enumerate(self._nodes):
            parent = node.get("parent")
            if parent is not None and not (as_count(parent) is not None and 0 <= parent < index):
                raise Invalid(f"nodes[{index}].parent", f"{parent!r} is not the index of an earlier node")

    @property
    def times(self) -> tuple[float | None, float | None]:
        """The times at which the trace began and ended, in seconds since the epoch; None if they are unknown."""
        timing = as_object(self._trace.get("timing"))
        ends = [_time(as_object(phase).get("end")) for phase in timing.values()]
        ends += [_time(node.get("timestamp")) for node in self._nodes]
        return _time(timing.get("start")), max((end for end in ends if end is not None), default=None)

    def spans(self) -> list[Span]:
        """Return the span of the agent, the spans of its steps in their order, and the span of its reward."""
        return [self.agent(), *self.steps(), *self.reward()]

    def credit(self, attributes: Json) -> Span | None:
        """Return the span with the values that a trainer assigned; None without such values and attributes.

        Args:
            attributes: further attributes of the span.
        """
        writer = AttributeWriter()
        for index, node in enumerate(self._nodes):
            for name in _STREAMS:
                if values := _floats(node.get(name)):
                    writer.values[f"node.{index}.{name}"] = values
            for name, weights in as_object(node.get("loss_weights")).items():
                if values := _floats(weights):
                    writer.values[writer.clean(f"node.{index}.loss_weights.{name}")] = values
        if not writer.values and not attributes:
            return None
        writer.values |= attributes
        return self._span("credit", CREDIT_SPAN, writer, self.times[1], self.times[1])

    def agent(self) -> Span:
        """Return the span of the agent, which is the parent of all other spans."""
        agent = as_object(self._trace.get("agent"))
        name = first_text(agent, "name") or "agent"
        writer = AttributeWriter()
        writer.put("agent.name", name)
        writer.put("gen_ai.operation.name", "invoke_agent")
        writer.put("gen_ai.agent.name", name)
        errors = as_objects(self._trace.get("errors"))
        status = _error_status(errors[-1]) if errors and self._trace.get("ok") is not True else None
        return self._span("agent", name, writer, *self.times, status=status, parent=None)

    def steps(self) -> Iterator[Span]:
        """Yield the spans of calls, of results of tools, and of messages that are in no call."""
        calls = as_objects(self._trace.get("calls"))
        nodes = {call.get("node") for call in calls}
        calls += [
            {"node": index} for index, node in enumerate(self._nodes) if node.get("sampled") and index not in nodes
        ]
        recorded: set[int] = set()
        for number, call in enumerate(calls):
            index = call.get("node")
            if index is not None and not (as_count(index) is not None and 0 <= index < len(self._nodes)):
                raise Invalid(f"calls[{number}].node", f"{index!r} is not the index of a node")
            path = self._path(index)
            start = _time(as_object(call.get("time")).get("start"))
            for earlier in path[:-1]:
                if earlier not in recorded:
                    recorded.add(earlier)
                    yield from self._tool(earlier, start)
            recorded.update(path)
            yield self._call(number, call, path)
        for index in range(len(self._nodes)):
            if index not in recorded:
                yield from self._tool(index, None)
                yield from self._unanswered(index)

    def _path(self, index: int | None) -> list[int]:
        """Return the indexes of the nodes from the root to a node."""
        path: list[int] = []
        while index is not None:
            path.append(index)
            index = self._nodes[index].get("parent")
        return path[::-1]

    def _call(self, number: int, call: Json, path: Sequence[int]) -> Span:
        node = self._nodes[path[-1]] if path else {}
        error, time = as_object(call.get("error")), as_object(call.get("time"))
        stamp = _time(node.get("timestamp"))
        writer = AttributeWriter()
        put_call(writer, self._model_call(call, node, path))
        if path:
            writer.put(NODE, path[-1])
        writer.put(VERSION, self._version)
        writer.put("gen_ai.usage.cost", as_object(call.get("usage")).get("cost"))
        writer.put(ERROR, first_text(error, "type"))
        writer.put(STATUS, as_count(error.get("status_code")))
        for name, value in (
            ("verifiers.endpoint", as_text(call.get("endpoint"))),
            ("verifiers.policy", call.get("policy")),
            ("verifiers.acp", call.get("acp")),
            ("verifiers.semantic_parents", node.get("semantic_parents") or None),
        ):
            writer.put_long(name, value)
        mask = self._tokens(path)[2]
        if not all(mask):
            writer.values["response_mask"] = mask
        status = _error_status(error) if error else None
        start, end = _time(time.get("start")) or stamp, _time(time.get("end")) or stamp
        return self._span(f"call {number}", CALL_SPAN, writer, start, end, status=status)

    def _model_call(self, call: Json, node: Json, path: Sequence[int]) -> ModelCall:
        prompt_ids, response_ids, mask = self._tokens(path)
        values = iter(as_list(node.get("logprobs")))
        # A token that the model did not sample has no log probability. It gets 0, like a token with probability 1.
        logprobs = [{"logprob": next(values, None) if is_sampled else 0.0} for is_sampled in mask]
        has_logprobs = bool(as_list(node.get("logprobs"))) and len(logprobs) == len(response_ids)
        message = self._messages[path[-1]] if path else None
        choice = None
        if message is not None:
            reason = first_text(call, "finish_reason")
            choice = Choice(message, reason, response_ids, {"content": logprobs} if has_logprobs else {})
        endpoint = as_text(call.get("endpoint")) or ""
        root = as_objects(self._nodes[path[0]].get("tools")) if path else []
        sampling = as_object(call.get("sampling"))
        return ModelCall(
            protocol=next((protocol for end, protocol in _PROTOCOLS if endpoint.endswith(end)), Protocol.CHAT),
            model=first_text(call, "model"),
            settings={
                name: value if isinstance(value, (bool, int, float)) else to_json(value)
                for name, value in sampling.items()
                if value is not None
            },
            tools=tuple(read_tool(tool) for tool in root or as_objects(self._trace.get("tools"))),
            messages=tuple(message for index in path[:-1] if (message := self._messages[index]) is not None),
            response_model=first_text(call, "model") if choice is not None else None,
            choices=() if choice is None else (choice,),
            usage=_usage(as_object(call.get("usage")), prompt_ids, response_ids),
            prompt_token_ids=prompt_ids,
        )

    def _tokens(self, path: Sequence[int]) -> tuple[list[int], list[int], list[bool]]:
        """Return the token ids of a call's prompt and of its response, and whether each response token was sampled."""
        if not path:
            return [], [], []
        prompt = [token for index in path[:-1] for token in as_ids(self._nodes[index].get("token_ids"))]
        tokens = as_ids(self._nodes[path[-1]].get("token_ids"))
        mask = [bool(is_sampled) for is_sampled in as_list(self._nodes[path[-1]].get("mask"))]
        if len(mask) != len(tokens) or True not in mask:
            return [*prompt, *tokens], [], []
        first = mask.index(True)
        return [*prompt, *tokens[:first]], tokens[first:], mask[first:]

    @cached_property
    def _messages(self) -> list[Message | None]:
        return [_message(as_object(node.get("message"))) for node in self._nodes]

    def _tool(self, index: int, time: float | None) -> Iterator[Span]:
        """Yield the span of a tool whose result is the message of a node."""
        message = self._messages[index]
        if message is None or message.role != "tool":
            return
        earlier = [call for at in self._path(index) if (step := self._messages[at]) for call in step.tool_calls]
        call = next((call for call in reversed(earlier) if call.call_id == message.call_id), None)
        name = message.name or (call.name if call is not None else None) or "tool"
        writer = AttributeWriter()
        writer.put("gen_ai.operation.name", "execute_tool")
        writer.put("gen_ai.tool.name", name)
        writer.put("gen_ai.tool.call.id", message.call_id)
        writer.put("gen_ai.tool.call.arguments", call.text if call is not None else None)
        writer.put("gen_ai.tool.call.result", message.text)
        at = time or _time(self._nodes[index].get("timestamp"))
        yield self._span(f"tool {index}", name, writer, at, at)

    def _unanswered(self, index: int) -> Iterator[Span]:
        """Yield the span of a message to which the model was not asked to respond."""
        message = self._messages[index]
        if message is None or message.role == "tool":
            return
        writer = AttributeWriter()
        writer.put(MESSAGE_BODY, message.text)
        writer.put("role", message.role)
        at = _time(self._nodes[index].get("timestamp"))
        yield self._span(f"message {index}", MESSAGE_SPAN, writer, at, at)

    def reward(self) -> Iterator[Span]:
        """Yield the span of the reward, whose first dimension is the weighted sum. Without scores, yield nothing."""
        rewards = {name: as_object(reward) for name, reward in as_object(self._trace.get("rewards")).items() if reward}
        scores = {
            name: (_finite(reward.get("score")), _finite(reward.get("weight", 1.0))) for name, reward in rewards.items()
        }
        valid = {
            name: (score, weight)
            for name, (score, weight) in scores.items()
            if score is not None and weight is not None
        }
        if not valid:
            return
        writer = AttributeWriter()
        dimensions = {PRIMARY: sum(score * weight for score, weight in valid.values())}
        for name, (score, weight) in valid.items():
            dimensions[writer.clean(name) if name != PRIMARY else f"{PRIMARY} (score)"] = score
            if weight != 1.0:
                writer.put(writer.clean(f"verifiers.weight.{name}"), weight)
        if invalid := sorted(rewards.keys() - valid.keys()):
            writer.values[CHANGED] = [
                writer.clean(f"the reward {name} is left out, because it is not finite") for name in invalid
            ]
        time = _time(as_object(as_object(self._trace.get("timing")).get("scoring")).get("end")) or self.times[1]
        yield reward_span(
            dimensions,
            trace_id=self._trace_id,
            span_id=span_id_of("traces", self._key, "reward"),
            parent_id=span_id_of("traces", self._key, "agent"),
            time=time,
            attributes=writer.values,
        )

    def _span(
        self,
        part: str,
        name: str,
        writer: AttributeWriter,
        start: float | None,
        end: float | None,
        *,
        status: TraceStatus | None = None,
        parent: str | None = "agent",
    ) -> Span:
        if writer.changes:
            writer.values[CHANGED] = writer.changes
        return Span.from_attributes(
            name=writer.clean(name),
            attributes=writer.values,
            trace_id=self._trace_id,
            span_id=span_id_of("traces", self._key, part),
            parent_id=None if parent is None else span_id_of("traces", self._key, parent),
            start_time=start,
            end_time=end,
            status=status,
        )


def _message(message: Json) -> Message | None:
    """Return a message.

    In verifiers, the name and the arguments of a tool call are fields of the tool call itself.
    """
    calls = [
        {**call, "custom": {"name": call.get("name"), "input": call.get("arguments")}}
        if call.get("type") == "custom"
        else call
        for call in as_objects(message.get("tool_calls"))
    ]
    fields = {name: value for name, value in message.items() if name not in {"tool_calls", "provider_state"}}
    return read_message({**fields, **({"tool_calls": calls} if calls else {})})


def _usage(usage: Json, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Usage:
    """Return the usage of a call. In verifiers, prompt tokens do not include the tokens that a cache provided."""
    prompt, cached = as_count(usage.get("prompt_tokens")), as_count(usage.get("cached_input_tokens"))
    completion = as_count(usage.get("completion_tokens"))
    prompt = prompt + (cached or 0) if prompt is not None else len(prompt_ids) or None
    completion = completion if completion is not None else len(response_ids) or None
    total = prompt + completion if prompt is not None and completion is not None else None
    return Usage(prompt, completion, total, cached, reasoning=as_count(usage.get("reasoning_tokens")))


def _error_status(error: Json) -> TraceStatus:
    text = ": ".join(text for name in ("type", "message") if (text := as_text(error.get(name))))
    return TraceStatus(status_code="ERROR", description=AttributeWriter().clean(text) or None)


def _time(value: Any) -> float | None:
    """Return a time in seconds since the epoch; None for 0, which means that the time is unknown."""
    return _finite(value) or None


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _floats(value: Any) -> list[float]:
    """Return a list of numbers; an empty list for anything else."""
    numbers = [_finite(item) for item in as_list(value)]
    return [number for number in numbers if number is not None] if None not in numbers else []
