"""Any program of an agent is recorded with exactly one span per operation, and with its exact rewards.

A program is a list of steps. A new kind of step is a class with `run`, and a strategy in `STEPS`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import open_store
from store.models import Span
from store.semconv import ANNOTATION_SPAN, EXCEPTION_SPAN, MESSAGE_SPAN, OBJECT_SPAN, OPERATION_NAME, OPERATION_SPAN
from store.training import (
    Tracer,
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    operation,
)
from store.training.model_clients.client_calls import CALL_SPAN
from store.training.tracer import ATTEMPT_SPAN
from store.training.tracing.reward_spans import get_rewards_from_span
from tests.training.any_values import NUMBERS, TEXTS, VALUES, TextlessError, build
from tests.training.training_helpers import started


@dataclass
class Recorded:
    """The record that a program must leave."""

    tracer: Tracer
    client: openai.OpenAI
    names: Counter[str] = field(default_factory=Counter[str])
    """The number of spans by name."""
    operations: Counter[str] = field(default_factory=Counter[str])
    """The number of operations by name. Each operation has a name of its own."""
    rewards: list[list[tuple[str, float]]] = field(default_factory=list[list[tuple[str, float]]])

    def operation(self) -> str:
        """Expect one operation, and return its name."""
        name = f"operation {self.operations.total()}"
        self.names[OPERATION_SPAN] += 1
        self.operations[name] += 1
        return name


class Step(Protocol):
    """One action of an agent."""

    def run(self, recorded: Recorded) -> None:
        """Do the action, and state the spans that it must leave."""


@dataclass
class Seed:
    """Seed the random numbers of the agent."""

    seed: int

    def run(self, recorded: Recorded) -> None:
        del recorded
        random.seed(self.seed)


@dataclass
class Reward:
    value: Any
    attributes: Any

    def run(self, recorded: Recorded) -> None:
        try:
            emit_reward(self.value, attributes=build(self.attributes))
        except ValueError:
            assert not _is_finite(self.value)
            return
        recorded.names[ANNOTATION_SPAN] += 1
        recorded.rewards.append([("primary", float(self.value))])


@dataclass
class Annotation:
    value: Any

    def run(self, recorded: Recorded) -> None:
        try:
            emit_annotation({"value": build(self.value)})
        except ValueError:  # a type that annotations do not have
            return
        recorded.names[ANNOTATION_SPAN] += 1


@dataclass
class Message:
    text: str
    attributes: Any

    def run(self, recorded: Recorded) -> None:
        emit_message(self.text, {"value": build(self.attributes), self.text: 1})
        recorded.names[MESSAGE_SPAN] += 1


@dataclass
class Object:
    value: Any

    def run(self, recorded: Recorded) -> None:
        try:
            emit_object(build(self.value))
        except RuntimeError:  # not JSON
            return
        recorded.names[OBJECT_SPAN] += 1


@dataclass
class HandledException:
    text: str
    value: Any

    def run(self, recorded: Recorded) -> None:
        emit_exception(
            TextlessError() if self.text == "" else ValueError(self.text, build(self.value)), {"v": build(self.value)}
        )
        recorded.names[EXCEPTION_SPAN] += 1


@dataclass
class Function:
    """An operation that is a function, with arguments and a result of any kind."""

    argument: Any
    result: Any
    steps: list[Step]
    fails: bool

    def run(self, recorded: Recorded) -> None:
        result = build(self.result)

        @operation(name=recorded.operation(), note=result)
        def function(argument: Any, **further: Any) -> Any:
            del argument, further
            for step in self.steps:
                step.run(recorded)
            if self.fails:
                raise TextlessError
            return result

        if self.fails:
            with pytest.raises(TextlessError):
                function(build(self.argument), further=result)
        else:
            assert function(build(self.argument), further=result) is result


@dataclass
class Block:
    """An operation that is a block of code."""

    value: Any
    steps: list[Step]

    def run(self, recorded: Recorded) -> None:
        with operation(name=recorded.operation()) as block:
            block.set_input(build(self.value), named=build(self.value))
            for step in self.steps:
                step.run(recorded)
            block.set_output(build(self.value))


@dataclass
class ModelCall:
    """A call to a model: `kind` is a method of `ScriptedModel`, or `break` for a stream that is not read to its end."""

    kind: str
    prompt: str
    text: str

    def run(self, recorded: Recorded) -> None:
        recorded.names[CALL_SPAN] += 1
        is_stream = self.kind not in {"answer", "error"}
        messages: Any = [{"role": "user", "content": self.prompt}]
        with suppress(openai.APIError, httpx.HTTPError, UnicodeEncodeError):
            answer: Any = recorded.client.chat.completions.create(
                model=self.kind, messages=messages, stream=is_stream, extra_headers={"x-text": json.dumps(self.text)}
            )
            for _ in answer if is_stream else ():
                if self.kind == "break":
                    answer.close()
                    break


class ScriptedModel(BaseHTTPRequestHandler):
    """Model server that answers with the text in a header, in the way that the name of the model states."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a call."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        # The text may have half of a surrogate pair, which JSON can escape.
        text = json.loads(self.headers["x-text"])
        kind = request["model"]
        if kind == "answer":
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._send(200, "application/json", {"id": "c", "object": "chat.completion", "choices": [choice]})
        elif kind == "error":
            self._send(500, "application/json", {"error": {"message": text}})
        else:
            choices = [{"index": 0, "delta": {"role": "assistant", "content": text}}]
            chunk = {"id": "c", "object": "chat.completion.chunk", "choices": choices}
            end = b"data: [DONE]\n\n" if kind == "stream" else b""
            self._send(
                200, "text/event-stream", b"data: " + json.dumps(chunk).encode() + b"\n\n" + end, cut=kind == "cut"
            )

    def _send(self, status: int, media_type: str, body: Any, *, cut: bool = False) -> None:
        raw: bytes = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(raw) + cut))
        self.end_headers()
        self.wfile.write(raw)
        self.close_connection = cut

    def log_message(self, *_: Any, **__: Any) -> None:
        """Log nothing."""


@dataclass
class LibrarySpan:
    """A span of an instrumentation of OpenTelemetry, which passes values to the SDK as they are."""

    name: str
    value: Any
    steps: list[Step]

    def run(self, recorded: Recorded) -> None:
        tracer = recorded.tracer.provider.get_tracer("library")
        with tracer.start_as_current_span(f"library {self.name}") as span:
            span.set_attribute("value", self.value)
            span.add_event(self.name, {self.name or "x": self.value})
            span.set_status(_status(self.name))
            for step in self.steps:
                step.run(recorded)
        recorded.names["library"] += 1


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _status(text: str) -> Any:
    from opentelemetry.trace import Status, StatusCode

    return Status(StatusCode.ERROR, text)


REWARDS = st.one_of(NUMBERS, st.booleans())
# The SDK itself raises errors for objects without text and for deep values, so libraries do not pass them.
SDK_VALUES = st.one_of(TEXTS, NUMBERS, st.binary(max_size=4), st.lists(st.one_of(TEXTS, NUMBERS), max_size=3))
SIMPLE_STEPS: list[st.SearchStrategy[Any]] = [
    st.builds(Seed, st.integers(0, 1)),
    st.builds(Reward, REWARDS, st.one_of(st.none(), VALUES, st.dictionaries(TEXTS, VALUES, max_size=3))),
    st.builds(Annotation, VALUES),
    st.builds(Message, TEXTS, VALUES),
    st.builds(Object, VALUES),
    st.builds(HandledException, TEXTS, VALUES),
    st.builds(ModelCall, st.sampled_from(["answer", "error", "stream", "break", "cut"]), TEXTS, TEXTS),
]
"""Strategies of steps without steps inside."""
STEPS = st.recursive(
    st.one_of(SIMPLE_STEPS),
    lambda steps: st.one_of(
        st.builds(Function, VALUES, VALUES, st.lists(steps, max_size=3), st.booleans()),
        st.builds(Block, VALUES, st.lists(steps, max_size=3)),
        st.builds(LibrarySpan, TEXTS, SDK_VALUES, st.lists(steps, max_size=3)),
    ),
    max_leaves=6,
)
PROGRAMS: st.SearchStrategy[list[Step]] = st.lists(STEPS, min_size=1, max_size=6)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """A client of a scripted model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0, timeout=20
    ) as client:
        yield client
    server.shutdown()
    server.server_close()


@given(program=PROGRAMS)
@settings(max_examples=40, deadline=None)
def test_every_program_leaves_one_span_per_operation_and_its_exact_rewards(
    client: openai.OpenAI, program: list[Step]
) -> None:
    spans, recorded = asyncio.run(_run(program, client))
    assert Counter(map(_name, spans)) == recorded.names + Counter({ATTEMPT_SPAN: 1})
    names = [span.attributes[OPERATION_NAME] for span in spans if span.name == OPERATION_SPAN]
    assert Counter(names) == recorded.operations
    assert [rewards for span in spans if (rewards := get_rewards_from_span(_rewarded(span)))] == recorded.rewards
    assert len({span.span_id for span in spans}) == len(spans)


async def _run(program: list[Step], client: openai.OpenAI) -> tuple[list[Span], Recorded]:
    tracer = Tracer(openai=True, anthropic=False)
    recorded = Recorded(tracer, client)
    async with await open_store("memory://") as store:
        rollout = await started(store)
        with tracer.lifespan(store):
            async with tracer.trace_context(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id):
                for step in program:
                    step.run(recorded)
        return list(await store.query_spans(rollout.rollout_id)), recorded


def _name(span: Span) -> str:
    return "library" if span.name.startswith("library") else span.name


def _rewarded(span: Span) -> Span:
    """Return a span of which only the reward is read; annotations may have any attribute."""
    attributes = {key: value for key, value in span.attributes.items() if key.startswith("agentlightning.reward.")}
    return span.model_copy(update={"attributes": attributes})


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """The SDK and the tracer log a warning for each unusual value."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
