"""Attempts in documents: a document of our own exports restores an attempt, another becomes spans of model calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ConfigDict, Field, ValidationError

from store.atif.calls import StepCall, step_calls
from store.atif.form import USER, VERSION, extra_of, seconds_of
from store.atif.messages import message_of, result_messages
from store.atif.schema import described
from store.atif.spans import decoded_span
from store.errors import Incompatible
from store.model_calls.attributes import CALL_SPAN
from store.model_calls.json_values import Json, as_object, as_objects, to_json
from store.models import AttemptError, AttemptStatus, OtelResource, RolloutMode, RolloutStatus, Span
from store.models.enums import Frozen
from store.semconv import MESSAGE_BODY, MESSAGE_SPAN

_EMBEDDED: Final = "subagent_trajectories"


class RolloutHeader(Frozen):
    """The fields of the rollout in a document of our own exports."""

    model_config = ConfigDict(extra="ignore")

    rollout_id: str = Field(min_length=1)
    status: RolloutStatus
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    input: Any = None
    metadata: Json | None = None
    group: str | None = None
    step: int | None = None


class AttemptHeader(Frozen):
    """The fields of the attempt in a document of our own exports."""

    model_config = ConfigDict(extra="ignore")

    attempt_id: str = Field(min_length=1)
    number: int = Field(ge=1)
    status: AttemptStatus
    metadata: Json | None = None
    error: AttemptError | None = None


_OF_STORE: Final = frozenset({"mode", "input", "metadata", "group", "step", "reward", "rewards"})
"""The fields of headers that an import sets in the store. The others go to the metadata, under `ORIGIN`."""


@dataclass(frozen=True, slots=True)
class OwnAttempt:
    """The attempt in a document of our own exports."""

    rollout: RolloutHeader
    attempt: AttemptHeader
    rollout_origin: Json
    """The fields of the rollout that an import cannot set in the store, such as its id."""
    attempt_origin: Json
    spans: list[Span]


def is_own(document: Json) -> bool:
    """Return whether an export of this program wrote a document."""
    return "version" in extra_of(document)


def own_attempt(document: Json) -> OwnAttempt:
    """Return the attempt in a document of our own exports.

    Raises:
        Incompatible: the document has another version of `extra.rollbook`.
        Invalid: the content of `extra` is not valid; the message names the field.
    """
    extra = extra_of(document)
    if extra["version"] != VERSION:
        raise Incompatible(
            f"extra.rollbook.version is {extra['version']!r}, and this program reads version {VERSION}",
            "import the document with the version of Rollbook that wrote it",
        )
    rollout, attempt = as_object(extra.get("rollout")), as_object(extra.get("attempt"))
    place: tuple[str | int, ...] = ("extra", "rollbook")
    try:
        place = ("extra", "rollbook", "rollout")
        rollout_header = RolloutHeader.model_validate(rollout)
        place = ("extra", "rollbook", "attempt")
        attempt_header = AttemptHeader.model_validate(attempt)
        spans: list[Span] = []
        for number, item in enumerate(as_objects(extra.get("spans"))):
            place = ("extra", "rollbook", "spans", number)
            spans.append(decoded_span(item))
        for path, trajectory in _trajectories(document):
            for expected in step_calls(trajectory):
                attributes = expected.attributes
                for number, item in enumerate(as_objects(extra_of(expected.step).get("spans"))):
                    place = (*path, "steps", expected.step["step_id"] - 1, "extra", "rollbook", "spans", number)
                    spans.append(decoded_span(item, attributes))
    except ValidationError as error:
        raise described(error, place) from None
    return OwnAttempt(
        rollout_header,
        attempt_header,
        {name: value for name, value in rollout.items() if name not in _OF_STORE},
        {name: value for name, value in attempt.items() if name not in _OF_STORE},
        sorted(spans, key=lambda span: span.sequence_id),
    )


def _trajectories(document: Json) -> Iterator[tuple[tuple[str | int, ...], Json]]:
    """Yield a document and its embedded trajectories, each with its path in the document."""
    yield (), document
    for number, embedded in enumerate(as_objects(document.get(_EMBEDDED))):
        yield (_EMBEDDED, number), embedded


def input_of(document: Json) -> Any:
    """Return the task of the agent: the message of the first step with the source `user`; None without such a step."""
    messages = (step["message"] for step in as_objects(document["steps"]) if step["source"] == USER)
    return next(messages, None)


def description_of(document: Json) -> Json:
    """Return the fields of a foreign trajectory, except its steps, embedded trajectories and definitions of tools."""
    fields = {name: value for name, value in document.items() if name not in {"steps", _EMBEDDED} and value is not None}
    agent = {name: value for name, value in as_object(document["agent"]).items() if name != "tool_definitions"}
    return {**fields, "agent": agent}


@dataclass(slots=True)
class ForeignSpans:
    """Maker of the spans of a foreign document.

    Each step of the agent becomes the span of a model call. The prompt of the call is the steps before this step. Each
    tool call becomes the span of a tool, with the result. Each embedded trajectory becomes the span of an agent, which
    is the parent of the spans of the trajectory. Each message after the last call becomes the span of a message.

    Args:
        trace_id: the trace of the spans.
        span_id_of: a function that returns the id of the span at a path in the document.
    """

    trace_id: str
    span_id_of: Callable[[str], str]
    spans: list[Span] = field(default_factory=list[Span], init=False)
    _time: float | None = field(default=None, init=False)
    """The latest time so far. It replaces earlier times of later steps, because the order of the steps is certain."""

    def add(self, trajectory: Json, path: str = "", parent_id: str | None = None) -> None:
        """Add the spans of a trajectory."""
        embedded = {one["trajectory_id"]: one for one in as_objects(trajectory.get(_EMBEDDED))}
        calls = {call.step["step_id"]: call for call in step_calls(trajectory)}
        resource = _resource(trajectory)
        last = max(calls, default=0)
        for step in as_objects(trajectory["steps"]):
            place = f"{path}steps/{step['step_id']}"
            seconds = seconds_of(step.get("timestamp"))
            if seconds is not None:
                self._time = seconds if self._time is None else max(self._time, seconds)
            above = parent_id
            if (call := calls.get(step["step_id"])) is not None:
                above = self._add(CALL_SPAN, _call_attributes(call), place, parent_id, resource)
            elif step["step_id"] > last and step["message"]:
                self._add_message(step, place, parent_id, resource)
            if step.get("is_copied_context") is not True:
                self._add_tools(step, place, above, resource, embedded)
            if step["step_id"] >= last:
                self._add_other_results(step, place, parent_id, resource)
        for number, (name, one) in enumerate(list(embedded.items())):
            self._add_agent(one, f"{path}agents/{number}/{name}/", parent_id)

    def _add_tools(
        self, step: Json, place: str, parent_id: str | None, resource: OtelResource, embedded: dict[str, Json]
    ) -> None:
        results = as_objects(as_object(step.get("observation")).get("results"))
        by_call = {result["source_call_id"]: result for result in results if result.get("source_call_id") is not None}
        for number, call in enumerate(as_objects(step.get("tool_calls"))):
            result = by_call.get(call["tool_call_id"], {})
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call["function_name"],
                "gen_ai.tool.call.id": call["tool_call_id"],
                "gen_ai.tool.call.arguments": to_json(call["arguments"]),
                **_texts("gen_ai.tool.call.result", result.get("content")),
                **_texts("atif.extra", call.get("extra")),
                **_texts("atif.result.extra", result.get("extra")),
                **_texts("atif.subagent_trajectory_ref", result.get("subagent_trajectory_ref")),
            }
            span_id = self._add(
                call["function_name"] or "tool", attributes, f"{place}/tools/{number}", parent_id, resource
            )
            self._add_delegated(result, place, span_id, embedded)
        for result in results:
            if result.get("source_call_id") is None:
                self._add_delegated(result, place, parent_id, embedded)

    def _add_delegated(self, result: Json, place: str, parent_id: str | None, embedded: dict[str, Json]) -> None:
        for reference in as_objects(result.get("subagent_trajectory_ref")):
            one = embedded.pop(reference.get("trajectory_id") or "", None)
            if one is not None:
                self._add_agent(one, f"{place}/agents/{one['trajectory_id']}/", parent_id)

    def _add_agent(self, trajectory: Json, path: str, parent_id: str | None) -> None:
        name = trajectory["agent"]["name"]
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "gen_ai.agent.id": trajectory["trajectory_id"],
            "atif.trajectory": to_json(description_of(trajectory)),
        }
        span_id = self._add(name or "agent", attributes, path, parent_id, _resource(trajectory))
        self.add(trajectory, path, span_id)

    def _add_message(self, step: Json, place: str, parent_id: str | None, resource: OtelResource) -> None:
        message = message_of(step)
        text = "" if message is None else message.text
        attributes = {MESSAGE_BODY: text, "atif.source": step["source"], **_texts("atif.extra", step.get("extra"))}
        self._add(MESSAGE_SPAN, attributes, place, parent_id, resource)

    def _add_other_results(self, step: Json, place: str, parent_id: str | None, resource: OtelResource) -> None:
        """Add the results without a tool call as spans of messages, because no later prompt contains them."""
        for number, message in enumerate(result_messages(step)):
            if message.call_id is None:
                attributes = {MESSAGE_BODY: message.text, "atif.source": "observation"}
                self._add(MESSAGE_SPAN, attributes, f"{place}/results/{number}", parent_id, resource)

    def _add(self, name: str, attributes: Json, place: str, parent_id: str | None, resource: OtelResource) -> str:
        span_id = self.span_id_of(place)
        self.spans.append(
            Span.from_attributes(
                name=name,
                attributes=attributes,
                trace_id=self.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                start_time=self._time,
                end_time=self._time,
                resource=resource,
            )
        )
        return span_id


def _call_attributes(call: StepCall) -> Json:
    step = call.step
    count = step.get("llm_call_count")
    return {
        **call.attributes,
        **({} if count in {None, 1} else {"atif.llm_call_count": count}),
        **_texts("atif.extra", step.get("extra")),
        **_texts("atif.metrics.extra", as_object(step.get("metrics")).get("extra")),
    }


def _resource(trajectory: Json) -> OtelResource:
    agent = as_object(trajectory["agent"])
    attributes = {"service.name": agent["name"], "service.version": agent["version"]}
    return OtelResource(attributes=attributes, schema_url="")


def _texts(name: str, value: Any) -> Json:
    return {} if value is None else {name: to_json(value)}
