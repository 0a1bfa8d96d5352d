"""Forwarding of a call to a backend, and of the backend's response to the client, byte for byte."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from starlette.types import Send
from yarl import URL

from store.client.retrying import retry_after
from store.llm_proxy.addresses import Endpoint
from store.llm_proxy.backends import Backend
from store.llm_proxy.cache import AnswerCache, CachedAnswer
from store.llm_proxy.call import BodyReader, ProxiedCall
from store.llm_proxy.disconnect import Client
from store.llm_proxy.headers import SHOULD_RETRY, keys_of, to_backend, to_client
from store.llm_proxy.recorder import CallRecorder
from store.llm_proxy.refusals import Refusal
from store.llm_proxy.routes import ActiveBackend, Routes
from store.llm_proxy.settings import ProxySettings
from store.llm_proxy.translation import Translator

_FIRST_PAUSE: Final = 0.1
_MAX_HEAD_BYTES: Final = 64 * 1024
# By default, aiohttp adds these headers to a request without them. The backend should get only the client's headers.
_NO_HEADERS_OF_OUR_OWN: Final = ("User-Agent", "Content-Type", "Accept", "Accept-Encoding")


class BrokenOff(Exception):
    """The backend's response ended early, after its beginning had been sent to the client."""


class Forwarder:
    """Forwarder of calls. It must be created and used in one event loop.

    Args:
        session: the HTTP session for connections to backends.
        routes: the backends. `enter` selects a backend. It waits while all backends are paused, or for a rate limit.
        cache: the cache of responses at temperature 0.
        recorder: the writer of spans.
        translator: the translator of calls for backends with a provider.
        settings: the number of retries, the time limits, and the size limits.
        key: the key that clients must send to the proxy. With None, a client's own key is forwarded to the backend.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        routes: Routes,
        cache: AnswerCache,
        recorder: CallRecorder,
        translator: Translator,
        settings: ProxySettings,
        key: str | None,
    ) -> None:
        self._session = session
        self._routes = routes
        self._cache = cache
        self._recorder = recorder
        self._translator = translator
        self._settings = settings
        self._key = key

    async def forward(self, call: ProxiedCall, client: Client, send: Send) -> None:
        """Send a backend's response to the client, and record the call before the last bytes are sent.

        Raises:
            Refusal: no backend was available, or the backend did not respond.
            BrokenOff: the response ended early; `call` contains the reason.
        """
        active, outcome = await self._answer(call)
        try:
            if isinstance(outcome, CachedAnswer):
                call.is_cached = True
                call.begin_answer(200, "application/json", "", self._settings.max_recorded_bytes)
                call.received(outcome.body)
                await self.record(call)
                client.complete()
                await send({"type": "http.response.start", "status": 200, "headers": list(outcome.headers)})
                await send({"type": "http.response.body", "body": outcome.body})
                return
            response, key = outcome
            try:
                await self._relay(call, response, client, send)
            finally:
                # If the response is incomplete, this closes the connection, so that the backend can stop generating.
                response.release()
            reader = call.reader
            if key is not None and response.status == 200 and isinstance(reader, BodyReader) and reader.response():
                self._cache.put(key, CachedAnswer(tuple(to_client(response.raw_headers)), reader.body))
        finally:
            self._routes.leave(active)

    async def record(self, call: ProxiedCall) -> None:
        """Write the span of a call, if the call is recorded and the span has not been written yet."""
        if call.recording is None or call.is_recorded:
            return
        keys = [backend.api_key for backend in self._routes.backends]
        backend_key = call.backend.api_key if call.backend is not None else None
        await self._recorder.finish(call.record([*keys, backend_key, self._key], self._settings.max_recorded_bytes))

    async def _answer(
        self, call: ProxiedCall
    ) -> tuple[ActiveBackend, CachedAnswer | tuple[aiohttp.ClientResponse, bytes | None]]:
        avoid: str | None = None
        while True:
            active = await self._routes.enter(call.model, self._settings.wait_seconds, avoid)
            call.backend = active.backend
            call.tries += 1
            try:
                body = call.body_for(active.backend)
                key = self._cache.key(active.backend, call.path, body, call.request, keys_of(call.headers))
                cached = self._cache.get(key) if key is not None else None
                if cached is not None:
                    return active, cached
                outcome = await self._try(call, active.backend, body)
            except BaseException:
                self._routes.leave(active)
                raise
            if isinstance(outcome, aiohttp.ClientResponse):
                return active, (outcome, key)
            self._routes.leave(active)
            avoid = active.backend.name
            await asyncio.sleep(outcome)

    async def _try(self, call: ProxiedCall, backend: Backend, body: bytes) -> aiohttp.ClientResponse | float:
        """Return a backend's response, or the seconds to wait before the next try.

        Raises:
            Refusal: the backend did not respond, and the call is not retried.
        """
        is_last = call.tries > self._settings.num_retries
        try:
            response = await self._send(call, backend, body)
        except aiohttp.ConnectionTimeoutError:
            failure = f"backend {backend.name} accepts no connections"
        except TimeoutError:
            seconds = self._settings.silence_seconds
            raise Refusal(504, f"backend {backend.name} said nothing for {seconds:g} s", "backend_timeout") from None
        except (aiohttp.ClientConnectionError, OSError) as error:
            failure = f"backend {backend.name} cannot be reached: {type(error).__name__}"
        except (aiohttp.ClientError, ValueError) as error:
            message = f"backend {backend.name} did not send a valid HTTP response: {type(error).__name__}"
            raise Refusal(502, message, "backend_error") from None
        else:
            pause = None if is_last else self._pause_after(response, call.tries)
            if pause is None:
                return response
            response.release()
            return pause
        if is_last:
            # The proxy has retried the call. If the client retried too, the numbers of tries would multiply.
            is_retried = call.tries > 1
            raise Refusal(502, failure, "backend_unreachable", None if is_retried else 1.0)
        return _backoff(call.tries)

    def _pause_after(self, response: aiohttp.ClientResponse, tries: int) -> float | None:
        """Return the seconds to wait before a retry, or None if the response is sent to the client."""
        # A 429 without Retry-After usually concerns the quota of the client's account, so a retry would not help.
        has_retry_after = "Retry-After" in response.headers
        if response.status < 500 and not (response.status == 429 and has_retry_after):
            return None
        pause = max(retry_after(response.headers.get("Retry-After")), _backoff(tries))
        return pause if pause <= self._settings.wait_seconds else None

    async def _send(self, call: ProxiedCall, backend: Backend, body: bytes) -> aiohttp.ClientResponse:
        method = "GET" if call.endpoint is Endpoint.MODELS else "POST"
        root = backend.root if backend.provider is None else await self._translator.root(backend)
        return await self._session.request(
            method,
            URL(f"{root}/{call.path}", encoded=True),
            data=body if method == "POST" else None,
            headers=to_backend(call.headers, backend, call.endpoint, passes_keys=self._key is None),
            skip_auto_headers=_NO_HEADERS_OF_OUR_OWN,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._settings.connect_seconds, sock_read=self._settings.silence_seconds
            ),
        )

    async def _relay(self, call: ProxiedCall, response: aiohttp.ClientResponse, client: Client, send: Send) -> None:
        if call.recording is not None or self._settings.cache_bytes:
            encoding = response.headers.get("Content-Encoding", "")
            call.begin_answer(response.status, response.content_type, encoding, self._settings.max_recorded_bytes)
        call.status = response.status
        is_stream = response.content_type == "text/event-stream"
        if call.recording is not None and is_stream:
            await call.recording.numbered()
        if response.headers.get("Content-Length") == "0":
            # The response has no body, so the call is recorded before the head is sent.
            await self.record(call)
        await send({
            "type": "http.response.start",
            "status": response.status,
            "headers": _headers(call, response),
        })  # fmt: skip
        held_chunk = b""
        async for chunk in _chunks(call, response):
            is_complete = call.received(chunk)
            if not is_stream:
                # The last chunk must be sent after the call is recorded. So each chunk is held until the next chunk
                # arrives, which shows that the held chunk is not the last.
                chunk, held_chunk = held_chunk, chunk  # noqa: PLW2901 - the two are swapped
            elif is_complete:
                await self.record(call)
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self.record(call)
        client.complete()
        await send({"type": "http.response.body", "body": held_chunk})


def _headers(call: ProxiedCall, response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers for the client. After retries of the proxy, an error asks the client not to retry."""
    headers = to_client(response.raw_headers)
    if call.tries == 1 or response.status < 400:
        return headers
    return [*((name, value) for name, value in headers if name != SHOULD_RETRY), (SHOULD_RETRY, b"false")]


async def _chunks(call: ProxiedCall, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except TimeoutError:
        call.failed("backend_timeout", "the backend stopped sending in the middle of its answer")
        raise BrokenOff from None
    except (aiohttp.ClientError, OSError) as error:
        call.failed("backend_error", f"the backend's answer ended early: {type(error).__name__}")
        raise BrokenOff from None


def _backoff(tries: int) -> float:
    # The delay is partly random, so that calls that failed at the same time are not retried at the same time.
    return _FIRST_PAUSE * 2**tries * random.uniform(0.5, 1)


def new_session() -> aiohttp.ClientSession:
    """Return a session that adds no headers, follows no redirects, stores no cookies and decompresses nothing."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        max_line_size=_MAX_HEAD_BYTES,
        max_field_size=_MAX_HEAD_BYTES,
    )
