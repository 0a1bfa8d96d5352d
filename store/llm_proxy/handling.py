"""Request handler of the proxy: access control, parsing, error responses, and the recording of each call.

A call is recorded as a span if the request names an attempt.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from store.llm_proxy.addresses import CallAddress, Endpoint, parse
from store.llm_proxy.call import ProxiedCall
from store.llm_proxy.disconnect import ClientDisconnected, while_connected
from store.llm_proxy.forwarding import BrokenOff, Forwarder
from store.llm_proxy.headers import has_key
from store.llm_proxy.metrics import ProxyMetrics
from store.llm_proxy.recorder import CallRecorder
from store.llm_proxy.refusals import Refusal, send_body, send_json
from store.llm_proxy.routes import Routes
from store.llm_proxy.settings import ProxySettings
from store.model_calls.json_values import Json
from store.runtime.metrics_text import CONTENT_TYPE

HEALTH: Final = "/health"
METRICS: Final = "/metrics"


class ProxyHandler:
    """ASGI application of the proxy.

    Args:
        forwarder: the component that forwards calls to the backends.
        routes: the backends and their state.
        recorder: the component that opens a recording for each call of an attempt.
        settings: the settings, from which the maximum size of requests is used.
        key: the key that clients must send. With None, clients need no key, but requests of browser pages are refused.
    """

    def __init__(
        self, forwarder: Forwarder, routes: Routes, recorder: CallRecorder, settings: ProxySettings, key: str | None
    ) -> None:
        self._forwarder = forwarder
        self._routes = routes
        self._recorder = recorder
        self._settings = settings
        self._key = key
        self._metrics = ProxyMetrics()
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        task = asyncio.current_task()
        assert task is not None  # an application runs in a task
        self._running.add(task)
        try:
            await self._handle(scope, receive, send)
        finally:
            self._running.discard(task)

    async def finished(self) -> None:
        """Wait until all calls, including cancelled calls, have ended and their spans are written."""
        while self._running:
            await asyncio.wait(self._running)
        await self._recorder.close()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["raw_path"].decode("latin-1")
        try:
            if path == HEALTH:
                await send_json(send, 200, _health(self._routes, self._recorder.store_id))
                return
            headers = Headers(raw=scope["headers"])
            self._check_allowed(headers)
            if path == METRICS and scope["method"] == "GET":
                await send_body(send, 200, self._metrics.text(self._routes), CONTENT_TYPE)
                return
            address = parse(scope["method"], path, headers)
        except Refusal as refusal:
            await refusal.send(send)
            return
        try:
            await self._answer(address, headers, scope, receive, send)
        except Refusal as refusal:
            await refusal.send(send, is_anthropic=address.endpoint.is_anthropic)
        except ClientDisconnected:
            pass

    async def _answer(self, address: CallAddress, headers: Headers, scope: Scope, receive: Receive, send: Send) -> None:
        if address.endpoint is Endpoint.MODELS and (declared := self._routes.declared()) is not None:
            await _send_models(send, declared, address.path)
            return
        body = await self._read(receive)
        recording = None
        if address.rollout_id is not None and address.attempt_id is not None and address.endpoint.protocol is not None:
            recording = await self._recorder.open(address.rollout_id, address.attempt_id)
        call = ProxiedCall(address, scope["query_string"], headers, body, recording)
        started_at = time.monotonic()
        try:
            call.check_request()
            async with while_connected(receive) as client:
                await self._forwarder.forward(call, client, send)
        except Refusal as refusal:
            call.status = refusal.status
            call.failed(refusal.code or str(refusal.status), str(refusal))
            raise
        except ClientDisconnected:
            call.failed("client_left", "the client disconnected before it had the whole answer")
        except BrokenOff:
            await self._forwarder.record(call)
            # The connection is closed without the end of the response, so that the client does not consider the
            # response complete. `close` still delivers the data that was sent before.
            scope["rollbook.connection"].transport.close()
            while (await receive())["type"] != "http.disconnect":
                continue
        finally:
            # A complete call has already been recorded, and `failed` keeps only the first failure. So these lines
            # affect only the remaining calls, most of which were cancelled.
            call.failed("stopped", "the proxy was stopped before the answer was complete")
            await self._forwarder.record(call)
            self._metrics.ended(call.backend and call.backend.name, call.status, time.monotonic() - started_at)

    def _check_allowed(self, headers: Headers) -> None:
        if self._key is not None and not has_key(headers, self._key):
            raise Refusal(401, "this proxy requires its key, as Authorization: Bearer … or x-api-key", "no_key")
        if self._key is None and "origin" in headers:
            # Without this check, any web page in a browser on this machine could call the backends at the owner's cost.
            raise Refusal(403, "pages in a browser may call this proxy only if it has an api_key", "origin")

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._settings.max_request_bytes:
                limit = self._settings.max_request_bytes
                raise Refusal(413, f"the request has more than {limit:,} bytes; send images by URL, or shorten it")
            parts.append(part)
            has_more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _health(routes: Routes, store_id: str | None) -> Json:
    """Return the state of the proxy and its backends, and the id of its store. The backends receive no requests."""
    return {
        "status": "ok",
        "store": store_id,
        "waiting": routes.waiting_calls,
        "backends": [
            {
                "name": backend.name,
                "version": backend.version,
                "models": list(backend.models),
                "in_flight": backend.in_flight,
                "paused": backend.is_paused,
            }
            for backend in routes.health()
        ],
    }


async def _send_models(send: Send, declared: list[tuple[str, str]], path: str) -> None:
    models = {name: {"id": name, "object": "model", "created": 0, "owned_by": owner} for name, owner in declared}
    if path == Endpoint.MODELS:
        await send_json(send, 200, {"object": "list", "data": list(models.values())})
        return
    model = path.removeprefix(f"{Endpoint.MODELS}/")
    if model not in models:
        raise Refusal(404, f"no backend serves the model {model!r}; the models are {sorted(models)}", "model_not_found")
    await send_json(send, 200, models[model])
