"""Callback handler that records LangChain's runs (chains, tools, calls to models) as spans of the current attempt."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langchain_core.outputs import LLMResult
from opentelemetry import trace

from store.model_calls import Protocol
from store.model_calls.attributes import CALL_SPAN
from store.model_calls.json_values import Json, as_objects, as_text
from store.training.model_clients.client_attributes import CallRecord
from store.training.model_clients.client_calls import ModelRun, current_model_run
from store.training.tracing.core_fields import record_exception
from store.training.tracing.scope import AttemptScope, current_scope, entered
from store.training.tracing.span_attributes import make_tag_attributes, sanitize_attributes

# Programs configure logging by this name, which is older than the module.
logger = logging.getLogger("store.training.openai_spans")

# LangChain generates ids with these prefixes for messages without an id from the model.
_OWN_IDS: Final = ("lc_", "run-")


@dataclass(slots=True)
class _OpenRun:
    """A run of a chain, a tool or a model that has not ended yet."""

    scope: AttemptScope
    span: trace.Span | None
    """The span; None for a call to a model, because its span is created when the call ends."""
    model: ModelRun | None = None
    call: CallRecord | None = None
    facts: Json = field(default_factory=dict[str, Any])
    """Attributes of a call to a model, from LangChain's metadata."""
    began: int = 0


class LangChainHandler(BaseCallbackHandler):
    """Callback handler that records chains, tools and calls to models. One handler serves any number of attempts.

    If an instrumented client, such as `openai`, makes a call to a model, only the client records the call, because only
    the client receives the token ids. A run belongs to the attempt in which it begins.

    Args:
        tags: tags of every recorded span.
    """

    # Without this flag, LangChain would call the handler of an async run in another thread with a copy of the context.
    # A context variable that the handler sets there would not reach the run.
    run_inline = True

    def __init__(self, tags: Sequence[str] | None = None) -> None:
        self._tags = make_tag_attributes(tags or ())
        self._runs: dict[UUID, _OpenRun] = {}

    def on_chain_start(
        self,
        serialized: Json | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Json | None = None,
        **details: Any,
    ) -> None:
        """Begin the span of a chain. For the outermost chain and for nodes of LangGraph, `lc_name` names the agent."""
        del inputs
        name = _name(serialized, details)
        is_agent = parent_run_id is None or (metadata or {}).get("langgraph_node") == name
        self._begin(f"langchain.Chain.{name}", run_id, parent_run_id, {"lc_name": name} if is_agent else {})

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """End the span of a chain."""
        del outputs
        self._end(run_id, {})

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """End the span of a chain with its error."""
        self._fail(run_id, error)

    def on_tool_start(
        self,
        serialized: Json | None,
        input_str: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: Json | None = None,
        **details: Any,
    ) -> None:
        """Begin the span of a tool."""
        # The name in `serialized` has priority, because the run may have the name of a chain around the tool.
        name = _name(serialized, {}) if serialized else _name(None, details)
        attributes = {"tool.name": name, "tool.parameters": input_str if inputs is None else inputs}
        if details.get("tool_call_id"):
            attributes |= {"tool.call.id": details["tool_call_id"], "tool.call.type": "function"}
        self._begin(f"langchain.Tool.{name}", run_id, parent_run_id, attributes)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """End the span of a tool with its result."""
        self._end(run_id, {"tool.result": output.content if isinstance(output, BaseMessage) else output})

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """End the span of a tool with its error."""
        self._fail(run_id, error)

    def on_chat_model_start(
        self,
        serialized: Json | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Json | None = None,
        **details: Any,
    ) -> None:
        """Begin a call to a chat model."""
        del serialized

        def request(messages: list[BaseMessage]) -> Json:
            parameters: Json = details.get("invocation_params") or {}
            return {**parameters, "messages": convert_to_openai_messages(messages)}

        try:
            arguments = request([message for batch in messages for message in batch])
        except Exception:
            logger.exception("the messages of a call to a model are not recorded")
            arguments = {}
        self._begin_model(Protocol.CHAT, arguments, metadata or {}, run_id, parent_run_id)

    def on_llm_start(
        self,
        serialized: Json | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Json | None = None,
        **details: Any,
    ) -> None:
        """Begin a call to a completion model."""
        del serialized
        parameters: Json = details.get("invocation_params") or {}
        request = {**parameters, "prompt": prompts}
        self._begin_model(Protocol.COMPLETIONS, request, metadata or {}, run_id, parent_run_id)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Record a call to a model, unless the client recorded the call."""
        self._end_model(run_id, response, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Record a failed call to a model, unless the client recorded the call."""
        self._end_model(run_id, None, error)

    def _begin(self, name: str, run_id: UUID, parent_run_id: UUID | None, attributes: Json) -> None:
        scope = current_scope()
        if scope is None:
            return
        self._forget_closed(parent_run_id)
        span_attributes = sanitize_attributes(self._tags | attributes)
        span = scope.tracer.start_span(name, self._context(parent_run_id), attributes=span_attributes)
        self._runs[run_id] = _OpenRun(scope, span)

    def _end(self, run_id: UUID, attributes: Json) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None and run.span is not None:
            run.span.set_attributes(sanitize_attributes(attributes))
            run.span.set_status(trace.StatusCode.OK)
            run.span.end()

    def _fail(self, run_id: UUID, error: BaseException) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None and run.span is not None:
            run.span.set_status(trace.StatusCode.ERROR, record_exception(run.span, error))
            run.span.end()

    def _begin_model(
        self, protocol: Protocol, request: Json, metadata: Json, run_id: UUID, parent_run_id: UUID | None
    ) -> None:
        scope = current_scope()
        if scope is None:
            return
        self._forget_closed(parent_run_id)
        attribute_keys = (("gen_ai.system", "ls_provider"), ("gen_ai.request.model", "ls_model_name"))
        facts = {name: metadata[key] for name, key in attribute_keys if isinstance(metadata.get(key), str)}
        # Callbacks of one call may run in different contexts, so the variable is never reset. A `ModelRun` whose
        # call has ended has no effect on later calls.
        model = ModelRun(self._context(parent_run_id), current_model_run.get())
        current_model_run.set(model)
        self._runs[run_id] = _OpenRun(scope, None, model, CallRecord(protocol, request), facts, time.time_ns())

    def _end_model(self, run_id: UUID, result: LLMResult | None, error: BaseException | None) -> None:
        run = self._runs.pop(run_id, None)
        if run is None or run.model is None or run.call is None:
            return
        run.model.is_over = True
        if run.model.is_recorded or not run.scope.is_open:
            return
        if result is not None:
            try:
                run.call.add_response(_response(result))
            except Exception:
                logger.exception("the response of a model is not recorded")
                run.call.mark_incomplete()
        attributes = self._tags | run.call.values | run.facts
        with entered(run.scope):
            span = run.scope.tracer.start_span(
                CALL_SPAN, run.model.context, attributes=attributes, start_time=run.began
            )
        if error is None:
            span.set_status(trace.StatusCode.OK)
        else:
            span.set_status(trace.StatusCode.ERROR, record_exception(span, error))
        span.end()

    def _context(self, parent_run_id: UUID | None) -> Any:
        """Return the context for a run's span, whose parent is the span of the parent run, or else the current span."""
        parent = self._runs.get(parent_run_id) if parent_run_id is not None else None
        return trace.set_span_in_context(
            trace.get_current_span() if parent is None or parent.span is None else parent.span
        )

    def _forget_closed(self, parent_run_id: UUID | None) -> None:
        """If an outermost run begins, forget the unfinished runs of attempts that are closed."""
        if parent_run_id is None:
            for run_id, run in list(self._runs.items()):
                if not run.scope.is_open:
                    self._runs.pop(run_id, None)


def _name(serialized: Mapping[str, Any] | None, details: Mapping[str, Any]) -> str:
    name = details.get("name") or (serialized or {}).get("name")
    return name if isinstance(name, str) else "unnamed"


def _response(result: LLMResult) -> Json:
    """Return a result in the format of OpenAI's response to a chat completion or a completion."""
    response: Json = dict(result.llm_output or {})
    choices: list[Json] = []
    for generation in (generation for batch in result.generations for generation in batch):
        details: Json = dict(generation.generation_info or {})
        choice: Json = {"index": len(choices), "text": generation.text}
        message: Any = getattr(generation, "message", None)
        if isinstance(message, BaseMessage):
            details |= message.response_metadata
            choice["message"] = _message(message)
            if message.id and not message.id.startswith(_OWN_IDS):
                response.setdefault("id", message.id)
            # LangChain sets counts that the response lacks to 0. So the counts of the response have priority.
            response["usage"] = (
                details.get("token_usage") or details.get("usage") or getattr(message, "usage_metadata", None)
            )
        incomplete: Any = details.get("incomplete_details") or {}
        reasons = (
            details.get("finish_reason"),
            details.get("stop_reason"),
            incomplete.get("reason"),
            details.get("status"),
        )
        choice["finish_reason"] = next((reason for reason in reasons if reason), None)
        choice["logprobs"] = details.get("logprobs")
        names = ("id", "model", "model_name", "system_fingerprint")
        response |= {name: details[name] for name in names if details.get(name)}
        choices.append(choice)
    return {
        **response,
        "model": response.get("model_name") or response.get("model"),
        "choices": choices,
        "usage": response.get("usage") or response.get("token_usage"),
    }


def _message(message: BaseMessage) -> Json:
    """Return a message of a response in the format of OpenAI, with all data of the response that LangChain keeps."""
    extras: Json = message.additional_kwargs
    content: Any = message.content
    in_content = {as_text(item.get("type")) for item in as_objects(content)}
    fields = {name: value for name, value in extras.items() if name not in _OF_LANGCHAIN}
    if not in_content & {"tool_use", "function_call", "custom_tool_call", "tool_call"}:
        fields["tool_calls"] = extras.get("tool_calls") or [
            {"id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
            for name in ("tool_calls", "invalid_tool_calls")
            for call in getattr(message, name, ())
        ]
    return {**fields, "role": "assistant", "content": content or None}


_OF_LANGCHAIN: Final = frozenset({"parsed", "tool_calls"})
