"""Conversion of attempts to documents of ATIF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from store.adapters.intake import sort_in
from store.atif.calls import step_calls
from store.atif.conversations import Conversation, conversations
from store.atif.form import KEY, ORIGIN, SCHEMA_VERSION, USER, VERSION, iso_time, note, present
from store.atif.messages import add_result_of_span
from store.atif.metrics import final_metrics
from store.atif.spans import encoded_span
from store.model_calls.json_values import Json, as_object, to_json
from store.model_calls.reading import read_tool
from store.model_calls.recorded import tool_use_of
from store.models import Attempt, Rollout, Span
from store.semconv import GROUP_KEY, PLAN_KEY, SOURCE_KEY, STEP_KEY

_RESERVED: Final = frozenset({GROUP_KEY, STEP_KEY, PLAN_KEY, SOURCE_KEY, ORIGIN})
"""The keys of the metadata that have separate fields in a document."""
_TOOL_CALL_IDS: Final = ("gen_ai.tool.call.id", "tool.call.id")
_ORDER: Final = (
    "step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content", "tool_calls",
    "observation", "metrics", "is_copied_context", "llm_call_count", "extra",
)  # fmt: skip
"""The fields of a step, in the order in which a document has them."""
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class ExportedAttempt:
    """An attempt with its rollout and its spans, which become a document."""

    rollout: Rollout
    attempt: Attempt
    spans: Sequence[Span]
    """The spans of the attempt in the order of their numbers."""
    error: Mapping[str, Any] | None = None
    """The error with which the attempt ended."""
    group: str | None = None
    step: int | None = None

    @property
    def header(self) -> Json:
        """The content of `extra` about the rollout and the attempt.

        If the attempt was imported from a document, the ids, the times and the other fields that the import could not
        set in the store are those of that document.
        """
        rollout, attempt = self.rollout, self.attempt
        metadata, of_attempt = rollout.metadata or {}, attempt.metadata or {}
        identity = _origin(metadata, "rollout_id") or present(
            rollout_id=rollout.rollout_id,
            status=rollout.status,
            start_time=rollout.start_time,
            end_time=rollout.end_time,
            resources_id=rollout.resources_id,
            config=rollout.config.model_dump(),
            plan_key=metadata.get(PLAN_KEY),
            source=metadata.get(SOURCE_KEY),
        )
        execution = _origin(of_attempt, "attempt_id") or present(
            attempt_id=attempt.attempt_id,
            number=attempt.sequence_id,
            status=attempt.status,
            start_time=attempt.start_time,
            end_time=attempt.end_time,
            worker_id=attempt.worker_id,
            error=self.error,
        )
        return {
            "version": VERSION,
            "rollout": identity
            | present(
                group=self.group,
                step=self.step,
                mode=rollout.mode,
                input=rollout.input,
                metadata=_without(metadata, _RESERVED),
            ),
            "attempt": execution
            | present(metadata=_without(of_attempt, {ORIGIN}), reward=attempt.reward, rewards=attempt.rewards or None),
        }

    def document(self) -> Json:
        """Return the document: the first conversation of the attempt, with all others as embedded trajectories."""
        header = self.header
        attempt_id = header["attempt"]["attempt_id"]
        attempts, _ = sort_in(self.spans)
        timed = attempts[0].spans if attempts else []
        numbers = {span.span_id: number for number, span in enumerate(self.spans, start=1)}
        first, *others = conversations(timed) or [Conversation()]
        if not first.steps:
            first.steps.append(_step_of_input(self.rollout.input, header["rollout"].get("start_time")))
        tools = [span for span in self.spans if tool_use_of(span.attributes) is not None]
        document = _trajectory(first, attempt_id, header["rollout"]["rollout_id"], tools, numbers)
        embedded = [
            _trajectory(other, f"{attempt_id}/{number}", None, tools, numbers)
            for number, other in enumerate(others, start=2)
        ]
        in_steps = {timed.span.span_id for one in (first, *others) for _, call in one.calls for timed in call.spans}
        spans = [
            encoded_span(span, number) for number, span in enumerate(self.spans, 1) if span.span_id not in in_steps
        ]
        document["extra"] = {KEY: {**header, "spans": spans}}
        return {**document, **present(subagent_trajectories=embedded or None)}


def _trajectory(
    conversation: Conversation,
    trajectory_id: str,
    session_id: str | None,
    tools: Sequence[Span],
    numbers: Mapping[str, int],
) -> Json:
    """Return a conversation as a trajectory. Each step of a call has the spans of the call in `extra`."""
    steps = [{"step_id": number, **step} for number, step in enumerate(conversation.steps, start=1)]
    by_step = {id(step): call for step, call in conversation.calls}
    recorded = {number: by_step[id(step)] for number, step in enumerate(conversation.steps) if id(step) in by_step}
    _add_results_of_spans(steps, tools)
    calls = [call for _, call in conversation.calls]
    definitions = _definitions(next((call.value.tools for call in calls if call.value.tools), ()))
    model = next((name for step in steps if (name := step.get("model_name"))), None)
    resource = calls[0].spans[0].span.resource.attributes if calls else {}
    agent = present(
        name=str(resource.get("service.name") or _UNKNOWN),
        version=str(resource.get("service.version") or _UNKNOWN),
        model_name=model,
        tool_definitions=definitions or None,
    )
    default_tools = tuple(read_tool(tool) for tool in definitions)
    for number, call in recorded.items():
        if steps[number].get("model_name") == model:
            steps[number].pop("model_name", None)
        if call.value.tools != default_tools:
            note(steps[number], tools=list(call.value.tools))
    steps = [{name: step[name] for name in _ORDER if name in step} for step in steps]
    trajectory: Json = {
        "schema_version": SCHEMA_VERSION,
        **present(session_id=session_id),
        "trajectory_id": trajectory_id,
        "agent": agent,
        "steps": steps,
        "final_metrics": final_metrics(steps),
    }
    # An import reads the calls with the same function. So it gets the same attributes, and the differences apply.
    for expected, call in zip(step_calls(trajectory), recorded.values(), strict=True):
        attributes = expected.attributes
        spans = [encoded_span(timed.span, numbers[timed.span.span_id], attributes) for timed in call.spans]
        note(expected.step, spans=spans)
    return trajectory


def _add_results_of_spans(steps: Sequence[Json], tools: Sequence[Span]) -> None:
    """Add the results of tool calls that only spans of tools contain. After the last call, no prompt contains them."""
    results: dict[str, Span | None] = {}
    for span in tools:
        call_id = next((value for name in _TOOL_CALL_IDS if (value := span.attributes.get(name)) is not None), None)
        if isinstance(call_id, str):
            results[call_id] = None if call_id in results else span  # an agent may use the same id twice
    for step in steps if results else ():
        answered = {result.get("source_call_id") for result in as_object(step.get("observation")).get("results", ())}
        for call in step.get("tool_calls") or ():
            call_id = call["tool_call_id"]
            span = results.get(call_id)
            if span is not None and call_id not in answered and (use := tool_use_of(span.attributes)) is not None:
                add_result_of_span(step, call_id, use.result, span.span_id)


def _definitions(tools: Sequence[Json]) -> list[Json]:
    """Return tools in the form of OpenAI's Chat API."""
    definitions: list[Json] = []
    for tool in tools:
        if "definition" in tool:
            definitions.append(as_object(_parsed(tool["definition"])) or {"type": tool.get("name")})
        else:
            fields = {**tool, **({"parameters": _parsed(tool["parameters"])} if "parameters" in tool else {})}
            definitions.append({"type": "function", "function": fields})
    return definitions


def _parsed(text: Any) -> Any:
    try:
        return orjson.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def _step_of_input(task: Any, start_time: float | None) -> Json:
    """Return the only step of an attempt without a call of a model, because ATIF requires a step."""
    text = "" if task is None else to_json(task)
    step: Json = {**present(timestamp=iso_time(start_time)), "source": USER, "message": text}
    note(step, is_message=False)
    return step


def _origin(metadata: Mapping[str, Any], name: str) -> Json:
    """Return the fields that an import kept under `ORIGIN`; empty if they do not contain the id in the field `name`."""
    origin = as_object(metadata.get(ORIGIN))
    return dict(origin) if isinstance(origin.get(name), str) else {}


def _without(metadata: Mapping[str, Any], names: frozenset[str] | set[str]) -> Json | None:
    return {name: value for name, value in metadata.items() if name not in names} or None
