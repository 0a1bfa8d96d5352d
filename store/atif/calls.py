"""Model calls, read from the steps of a trajectory that represent them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from store.atif.form import AGENT, extra_of, present
from store.atif.messages import decoded, message_of, result_messages
from store.atif.metrics import COST
from store.model_calls import Choice, Message, ModelCall, Protocol, Usage, attributes_of
from store.model_calls.json_values import Json, as_list, as_object, as_objects
from store.model_calls.reading import read_tool
from store.models import AttributeValue


class StepCall(NamedTuple):
    """A step that represents a call of a model, with the call."""

    step: Json
    call: ModelCall

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes of a span that records exactly the data of the call that the step contains."""
        cost = as_object(self.step.get("metrics")).get("cost_usd")
        return attributes_of(self.call) | present(**{COST: cost})


def step_calls(trajectory: Json) -> Iterator[StepCall]:
    """Yield the calls of a trajectory, without those of its sub-agents. The prompt of a call is the steps before it."""
    agent = as_object(trajectory["agent"])
    tools = tuple(read_tool(tool) for tool in as_objects(agent.get("tool_definitions")))
    prompt: list[Message] = []
    for step in as_objects(trajectory["steps"]):
        message, extra = message_of(step), extra_of(step)
        if is_call(step):
            call = ModelCall(
                protocol=Protocol.CHAT,
                model=step.get("model_name") or agent.get("model_name"),
                settings=_settings(step),
                tools=tuple(as_objects(extra["tools"])) if "tools" in extra else tools,
                messages=() if extra.get("has_prompt") is False else tuple(prompt),
                choices=() if message is None else (_choice(message, step),),
                usage=_usage(as_object(step.get("metrics"))),
                prompt_token_ids=as_list(as_object(step.get("metrics")).get("prompt_token_ids")),
            )
            yield StepCall(step, call)
            message = repeated(step, message)
        if message is not None:
            prompt.append(message)
        prompt += result_messages(step)


def is_call(step: Json) -> bool:
    """Return whether a step represents a call of a model that belongs to this trajectory."""
    is_copied = step.get("is_copied_context") is True
    return step["source"] == AGENT and not is_copied and step.get("llm_call_count") != 0


def repeated(step: Json, message: Message | None) -> Message | None:
    """Return the message with which later prompts repeat a response: the recorded one, or one without reasoning."""
    value: Any = extra_of(step).get("repeated")
    if isinstance(value, dict):
        return decoded(value)
    if message is None or value is True:
        return message
    return Message(message.role, tuple(part for part in message.parts if part.kind != "reasoning"), message.name)


def _settings(step: Json) -> Json:
    effort = step.get("reasoning_effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _choice(message: Message, step: Json) -> Choice:
    metrics = as_object(step.get("metrics"))
    logprobs = as_list(metrics.get("logprobs"))
    return Choice(
        message,
        token_ids=as_list(metrics.get("completion_token_ids")),
        logprobs={"content": logprobs} if logprobs else {},
    )


def _usage(metrics: Json) -> Usage:
    prompt, completion = metrics.get("prompt_tokens"), metrics.get("completion_tokens")
    total = None if prompt is None or completion is None else prompt + completion
    return Usage(prompt, completion, total, metrics.get("cached_tokens"))
