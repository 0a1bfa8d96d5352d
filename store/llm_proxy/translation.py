"""Translation of calls for model servers whose protocol is neither OpenAI's nor Anthropic's.

LiteLLM translates the calls; it is installed with the extra `litellm`. A `Translator` is an HTTP server on this machine
that only the proxy calls. It accepts the protocol of the proxy's clients and calls the model through LiteLLM. The proxy
therefore forwards, retries and records a translated call like any other call.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web

from store.llm_proxy.addresses import Endpoint

if TYPE_CHECKING:
    from types import ModuleType

    from store.llm_proxy.backends import Backend

_CALLS: Final[Mapping[Endpoint, str]] = {
    Endpoint.CHAT: "acompletion",
    Endpoint.COMPLETIONS: "atext_completion",
    Endpoint.EMBEDDINGS: "aembedding",
    Endpoint.RESPONSES: "aresponses",
    Endpoint.MESSAGES: "anthropic_messages",
}
"""LiteLLM's function for each endpoint."""
_SAMPLING: Final = {"temperature", "top_p", "top_k", "stream", "stop", "seed", "user", "n", "metadata"}
_TOOLS: Final = {"tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort", "thinking"}
_PENALTIES: Final = {"presence_penalty", "frequency_penalty", "logit_bias", "stream_options", "max_tokens"}
# Only these parameters are accepted. With other parameters of LiteLLM, an agent could choose the server, the key or a
# callback.
_PARAMETERS: Final[Mapping[Endpoint, frozenset[str]]] = {
    Endpoint.CHAT: frozenset(
        _SAMPLING
        | _TOOLS
        | _PENALTIES
        | {"messages", "functions", "function_call", "max_completion_tokens", "modalities", "audio", "prediction"}
        | {"logprobs", "top_logprobs", "service_tier", "verbosity", "web_search_options", "store"}
    ),
    Endpoint.COMPLETIONS: frozenset(_SAMPLING | _PENALTIES | {"prompt", "best_of", "echo", "logprobs", "suffix"}),
    Endpoint.EMBEDDINGS: frozenset({"input", "dimensions", "encoding_format", "user"}),
    Endpoint.RESPONSES: frozenset(
        _SAMPLING
        | _TOOLS
        | {"input", "instructions", "max_output_tokens", "reasoning", "text", "include", "truncation", "store"}
    ),
    Endpoint.MESSAGES: frozenset(
        _SAMPLING | _TOOLS | {"messages", "max_tokens", "system", "stop_sequences", "output_config"}
    ),
}
_IGNORED: Final = frozenset({"metadata", "store"})
"""Parameters that only concern the account at the provider. They are accepted, but not sent to the provider."""


class Translator:
    """Server that translates calls. It must be created and used in one event loop.

    Args:
        seconds: the time limit that LiteLLM gets for each call of a model.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._secret = secrets.token_urlsafe(24)
        self._backends: dict[str, Backend] = {}
        self._starting: asyncio.Task[str] | None = None
        self._runner: web.AppRunner | None = None

    async def root(self, backend: Backend) -> str:
        """Return the base URL for calls to a backend. The first use of this method starts the server."""
        self._backends[backend.name] = backend
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return f"{await asyncio.shield(self._starting)}/{list(self._backends).index(backend.name)}"

    async def close(self) -> None:
        """Stop the server."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._runner is not None:
            await self._runner.cleanup()

    async def _start(self) -> str:
        litellm = await asyncio.to_thread(_litellm)

        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._answer(litellm, request)

        app = web.Application(client_max_size=0)
        app.router.add_post(f"/{self._secret}/{{number}}/{{path:.+}}", answer)
        # With `handler_cancellation`, the call of the model is cancelled when the proxy closes its connection.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/{self._secret}"

    async def _answer(self, litellm: ModuleType, request: web.Request) -> web.StreamResponse:
        backend = list(self._backends.values())[int(request.match_info["number"])]
        try:
            call, arguments = _arguments(litellm, backend, request.match_info["path"], await request.read())
            key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
            answer = await call(
                **arguments,
                **({"api_base": backend.base_url} if backend.base_url else {}),
                **({"api_key": key} if key else {}),
                **backend.options,
                timeout=self._seconds,
                # The proxy itself retries calls, so LiteLLM must not.
                num_retries=0,
                max_retries=0,
            )
        except Exception as error:  # noqa: BLE001 - LiteLLM's errors have no common class
            return _failure(error)
        if hasattr(answer, "__aiter__"):
            return await _stream(request, answer)
        return web.Response(body=_json(answer), content_type="application/json")


def _litellm() -> ModuleType:
    # Without this variable, LiteLLM would download its list of prices when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = importlib.import_module("litellm")
    vars(litellm)["suppress_debug_info"] = True
    return litellm


def _arguments(
    litellm: ModuleType, backend: Backend, path: str, body: bytes
) -> tuple[Callable[..., Awaitable[Any]], dict[str, Any]]:
    """Return LiteLLM's function for a call, and its arguments.

    Raises:
        _Refused: the endpoint or a parameter cannot be translated, or the body is not a JSON object.
    """
    endpoint = next((endpoint for endpoint in _CALLS if endpoint == path), None)
    if endpoint is None:
        raise _Refused(404, f"/v1/{path} cannot be translated for {backend.provider}")
    try:
        request = json.loads(body)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise _Refused(400, "the body is not a JSON object")
    values = cast("dict[str, Any]", request)
    unknown = sorted(values.keys() - _PARAMETERS[endpoint] - {"model"})
    if unknown:
        raise _Refused(
            400,
            f"parameter {unknown[0]!r} is not translated for {backend.provider}; "
            "leave it out, or set it in the options of the backend",
        )
    arguments = {name: value for name, value in values.items() if name not in _IGNORED and name != "model"}
    arguments["model"] = f"{backend.provider}/{values.get('model') or ''}"
    return getattr(litellm, _CALLS[endpoint]), arguments


class _Refused(Exception):
    """A call that the translator refuses."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status


async def _stream(request: web.Request, chunks: AsyncIterator[Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    is_ended = False
    try:
        async for chunk in chunks:
            if not response.prepared:
                await response.prepare(request)
            # LiteLLM's streams of Anthropic messages already consist of encoded events.
            await response.write(chunk if isinstance(chunk, bytes) else b"data: " + _json(chunk) + b"\n\n")
            is_ended = isinstance(chunk, bytes)
    except Exception as error:  # noqa: BLE001 - LiteLLM's errors have no common class
        if not response.prepared:
            return _failure(error)
        # The connection is aborted, so that the proxy records the response as incomplete.
        if request.transport is not None:
            request.transport.abort()
        return response
    if not response.prepared:
        await response.prepare(request)
    if not is_ended:
        await response.write(b"data: [DONE]\n\n")
    return response


def _json(answer: Any) -> bytes:
    is_plain = isinstance(answer, dict)
    return json.dumps(cast("Any", answer) if is_plain else answer.model_dump(mode="json")).encode()


def _failure(error: Exception) -> web.Response:
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) and 400 <= status < 600 else 502
    headers = cast("Mapping[str, str]", getattr(error, "litellm_response_headers", None) or {})
    retry_after = headers.get("retry-after")
    body = {"error": {"message": str(error), "type": type(error).__name__, "param": None, "code": str(status)}}
    return web.json_response(body, status=status, headers={} if retry_after is None else {"retry-after": retry_after})
