"""Recordings of the corpus by the proxy and by the instrumented clients, from the same bytes of one model server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import openai

from store import open_store
from store.llm_proxy import Backend, LLMProxy
from store.model_calls import ModelCall, call_of
from store.models import Span
from store.training import Tracer
from store.training.model_clients.openai_spans import uninstrument_openai
from store.training.tracer import ATTEMPT_SPAN
from tests.lazy_modules import lazy
from tests.llm_proxy.model_server import ModelServer, model_server, sends
from tests.model_calls import chat, responses
from tests.model_calls.corpus import CORPUS
from tests.model_calls.entries import MODEL, Entry, Json
from tests.torture import IS_TORTURE

anthropic: Any = lazy("anthropic")

CLIENT_DIFFERENCES: Final[dict[str, tuple[str, ...]]] = {
    "cannot read the stream from its first event on": ("chat event ids and retry times (stream)",),
    "raises an exception for bytes that are no JSON in UTF-8": (
        "chat event that is not JSON (stream)",
        "chat bytes that are not UTF-8 (stream)",
    ),
    "raises an exception for a chunk with an error": ("chat error in a chunk with choices (stream)",),
    "ignores events without a name": ("messages no names of events (stream)",),
    "reads true as 1": ("chat usage of other types (whole)", "chat usage of other types (stream)"),
    "reads infinite numbers as null": ("chat log probability that is null or infinite (whole)",),
}
"""The recordings by the client that differ from the proxy's, by what the client does."""


@dataclass
class Recording:
    """One request through the proxy, and the spans that the proxy and the client recorded."""

    entry: Entry
    is_stream: bool
    began: float = 0.0
    ended: float = 0.0
    request: Json = field(default_factory=dict[str, Any])
    """The body that the server received."""
    error: str | None = None
    """The exception that the client raised."""
    spans: list[Span] = field(default_factory=list[Span])

    @property
    def name(self) -> str:
        """The name of the entry, and its form."""
        return f"{self.entry.name} ({'stream' if self.is_stream else 'whole'})"

    def call_by(self, *, proxy: bool) -> ModelCall:
        """Return the call that the proxy or the client recorded."""
        (span,) = [span for span in self.spans if ("agl.call.backend" in span.attributes) is proxy]
        return call_of(span.attributes)


def record_corpus() -> list[Recording]:
    """Send every request of the corpus through one proxy, and return the recordings.

    A short run sends each request in one form only: without a stream, or with one.
    """
    return asyncio.run(_recorded())


async def _recorded() -> list[Recording]:
    recordings: list[Recording] = []
    for number, entry in enumerate(CORPUS):
        forms = [
            is_stream for is_stream in (False, True) if (entry.frames if is_stream else entry.response is not None)
        ]
        recordings += [
            Recording(entry, is_stream) for is_stream in (forms if IS_TORTURE else [forms[number % len(forms)]])
        ]
    async with await open_store("memory://") as store, model_server() as model:
        backend = Backend("main", model.url, models=[MODEL])
        async with LLMProxy(store=store, backends=[backend]) as proxy:
            rollout = await store.start_rollout(1)
            rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
            url = f"{proxy.endpoint}/rollout/{rollout_id}/attempt/{attempt_id}"
            tracer = Tracer()
            with tracer.lifespan(store):
                async with tracer.trace_context(rollout_id=rollout_id, attempt_id=attempt_id):
                    await asyncio.to_thread(_send_all, url, model, recordings)
        spans = [span for span in await store.query_spans(rollout_id) if span.name != ATTEMPT_SPAN]
    for recording in recordings:
        recording.spans = [span for span in spans if recording.began <= (span.start_time or 0) <= recording.ended]
    return recordings


LANGCHAIN_DIFFERENCES: Final[dict[str, tuple[str, ...]]] = {
    "raises an exception": (
        "chat arguments as an object",
        "chat arguments as JSON that is no object",
        "chat tool call of an unknown type",
        "chat null choices",
        "responses function call with an object",
    ),
    "drops fields that OpenAI does not have": (
        "chat reasoning_content",
        "chat reasoning",
        "chat reasoning under both names",
        "chat OpenRouter's reasoning details",
        "chat thinking blocks of LiteLLM",
        "chat OpenRouter's images",
        "chat tool call with Gemini's signature",
    ),
    "drops annotations": ("chat annotations",),
    "drops roles": ("chat role of the answer",),
    "drops the indexes of choices": ("chat choices in another order",),
    "drops token ids": (
        "chat token ids without usage",
        "chat token ids in provider_specific_fields",
        "chat token ids of the prompt in the choice",
        "chat response_token_ids",
        "responses token ids",
    ),
    "drops items": (
        "responses item of an unknown type",
        "responses part of an unknown type",
        "responses local shell call",
        "responses shell call",
        "responses results of tools that the server ran",
    ),
    "reads missing counts as 0": ("responses usage of the prompt only",),
    "reads missing arguments as an empty object": (
        "chat empty arguments",
        "chat missing arguments",
        "chat null arguments",
    ),
}
"""The entries that LangChain changes before its handler gets them, by the reason."""


def record_with_langchain() -> list[tuple[Entry, ModelCall]]:
    """Return the entries that LangChain can send without a stream, and the calls that its handler recorded."""
    return asyncio.run(_recorded_with_langchain())


async def _recorded_with_langchain() -> list[tuple[Entry, ModelCall]]:
    langchain_openai: Any = import_module("langchain_openai")
    questions = (chat.QUESTION, responses.QUESTION)
    entries = [entry for entry in CORPUS if entry.response is not None and entry.request in questions]
    uninstrument_openai()
    async with await open_store("memory://") as store, model_server() as model:
        rollout = await store.start_rollout(1)
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        tracer = Tracer(openai=False)
        handler = tracer.get_langchain_handler()
        options: Json = {"base_url": f"{model.url}/v1", "api_key": "k", "max_retries": 0, "model": MODEL}
        models = {
            "chat": langchain_openai.ChatOpenAI(**options),
            "responses": langchain_openai.ChatOpenAI(**options, use_responses_api=True),
        }

        def work() -> None:
            for entry in entries:
                model.will(sends(entry.body))
                question = entry.request.get("input") or entry.request["messages"][0]["content"]
                with suppress(Exception):
                    models[entry.protocol].invoke(question, {"callbacks": [handler]})

        with tracer.lifespan(store):
            async with tracer.trace_context(rollout_id=rollout_id, attempt_id=attempt_id):
                await asyncio.to_thread(work)
        spans = [span for span in await store.query_spans(rollout_id) if span.name != ATTEMPT_SPAN]
    calls = [call_of(span.attributes) for span in sorted(spans, key=lambda span: span.start_time or 0)]
    return list(zip(entries, calls, strict=True))


def _send_all(url: str, model: ModelServer, recordings: list[Recording]) -> None:
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as first,
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as second,
    ):
        methods: dict[str, Callable[..., Any]] = {
            "chat": first.chat.completions.create,
            "completions": first.completions.create,
            "responses": first.responses.create,
            "embeddings": first.embeddings.create,
            "messages": second.messages.create,
        }
        for recording in recordings:
            _send(methods[recording.entry.protocol], model, recording)


def _send(method: Callable[..., Any], model: ModelServer, recording: Recording) -> None:
    entry = recording.entry
    kind = "text/event-stream" if recording.is_stream else "application/json"
    model.will(sends(entry.stream if recording.is_stream else entry.body, kind))
    names = inspect.signature(method).parameters.keys()
    arguments: Json = {name: value for name, value in entry.request.items() if name in names}
    arguments["extra_body"] = {name: value for name, value in entry.request.items() if name not in names}
    recording.began = time.time()
    try:
        answer = method(**arguments, **({"stream": True} if recording.is_stream else {}))
        if recording.is_stream:
            for _ in answer:
                pass
    except Exception as error:  # noqa: BLE001 - clients raise errors of many kinds for malformed responses
        recording.error = f"{type(error).__name__}: {error}"
    recording.ended = time.time()
    recording.request = model.asked[-1].json
