"""HTTP transport. It sends each call of the store to a server, and repeats the call if it fails and time is left."""

from __future__ import annotations

import logging
import math
import os
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, TypeVar

import aiohttp
import orjson
from pydantic import ValidationError
from yarl import URL

from store.client.event_stream import SILENCE_SECONDS, EventStream
from store.client.pools import Pool, Pools, resetting
from store.client.retrying import RETRIED_STATUSES, Attempts, Retries, RetryableFailure, retry_after
from store.errors import Closed, Incompatible, Invalid, RateLimited
from store.runtime import ids
from store.wire.errors import error_of
from store.wire.paths import IDEMPOTENCY_KEY
from store.wire.server_url import Address
from store.wire.sse import EVENT_STREAM

T = TypeVar("T")

logger = logging.getLogger("store.client")

_WARNING_CODE: Final = "299"
_JSON: Final = "application/json"
_SHOWN: Final = 200
_LARGE: Final = 512 * 1024
_NAMED: Final = b'"error_type"'
"""Text in each error of a Rollbook or Agent-lightning server. An error without this text comes from a proxy."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of the store, which may be sent several times."""

    operation: str
    """The name of the method, for errors."""
    method: str
    path: str
    """The percent-encoded path after the server's address, with its query string."""
    body: bytes | None = None
    key: str | None = None
    """The idempotency key, by which the server executes the call only once; None for reads."""
    waits: float = 0.0
    """The longest time that the server may wait before it responds, in seconds; infinity for no limit."""
    rollbook_only: bool = False
    """Whether only Rollbook servers support the call, and servers of Agent-lightning do not."""
    claims: bool = False
    """Whether the call claims rollouts, which the server must release if the caller is cancelled."""


def reading(operation: str, path: str, **details: Any) -> StoreCall:
    """Return a read without a body."""
    return StoreCall(operation, "GET", path, **details)


def changing(operation: str, path: str, body: bytes | None = None, **details: Any) -> StoreCall:
    """Return a write with a new idempotency key."""
    return StoreCall(operation, "POST", path, body, ids.call_key(), **details)


class Transport:
    """Sender of calls to one server."""

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str],
        retries: Retries,
        connections: int,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self._retries = retries
        self._pools = Pools(lambda: Pool(headers, connections, trust))
        self._closed = False
        self._warnings = set[str]()
        # The finaliser refers to the pools, so that the pools exist until the finaliser closes their sessions. aiohttp
        # warns of each session that is deleted without being closed.
        weakref.finalize(self, self._pools.close_soon).atexit = False

    async def request(self, call: StoreCall, decode: Callable[[bytes], T]) -> T:
        """Return the decoded response to a call.

        Raises:
            StoreError: the error that the server returned, or `Unavailable` if the server did not respond in time.
        """
        body = await self.send(call)
        try:
            return decode(body)
        except (ValidationError, orjson.JSONDecodeError, LookupError, TypeError):
            raise self._incompatible(f"answered {call.operation} with {body[:_SHOWN]!r}") from None

    async def send(self, call: StoreCall) -> bytes:
        """Return the undecoded response to a call.

        Raises:
            StoreError: see `request`.
        """
        if self._closed:
            raise Closed(call.operation)
        pool = self._pools.current()
        async with pool.call(call.operation, waits=call.waits > 0):
            attempts = Attempts(self._retries, call.operation, self.address.base, waits=call.waits > 0)
            while True:
                exchange = await self._unless_failed(self._exchange(pool, call, attempts.timeout), attempts.timeout)
                outcome = exchange if isinstance(exchange, RetryableFailure) else self._check_response(call, *exchange)
                if isinstance(outcome, bytes):
                    return outcome
                await pool.pause(call.operation, attempts.pause_after(outcome))

    async def pause(self, operation: str, seconds: float) -> None:
        """Sleep between two calls.

        Raises:
            Closed: the store is closed, or was closed meanwhile.
        """
        if self._closed:
            raise Closed(operation)
        await self._pools.current().pause(operation, seconds)

    async def close(self) -> None:
        """End the calls that wait, and close the connections of all loops."""
        self._closed = True
        await self._pools.close()

    async def follow(self, call: StoreCall) -> EventStream | None:
        """Open an event stream, or return None if the server responds with a plain body instead.

        Raises:
            StoreError: see `request`.
        """
        if self._closed:
            raise Closed(call.operation)
        pool = self._pools.current()
        attempts = Attempts(self._retries, call.operation, self.address.base, waits=True)
        while True:
            async with pool.call(call.operation, waits=True):
                outcome = await self._try_to_follow(pool, call)
            if not isinstance(outcome, RetryableFailure):
                return outcome
            await pool.pause(call.operation, attempts.pause_after(outcome))

    async def _try_to_follow(self, pool: Pool, call: StoreCall) -> EventStream | RetryableFailure | None:
        outcome = await self._unless_failed(self._begin(pool, call), SILENCE_SECONDS)
        if isinstance(outcome, RetryableFailure):
            return outcome
        if outcome.status == 200 and outcome.content_type == EVENT_STREAM:
            return EventStream(pool, outcome, call.operation)
        async with outcome:
            body = await self._unless_failed(outcome.read(), SILENCE_SECONDS)
        result = body if isinstance(body, RetryableFailure) else self._check_response(call, outcome, body)
        return result if isinstance(result, RetryableFailure) else None

    async def _begin(self, pool: Pool, call: StoreCall) -> aiohttp.ClientResponse:
        session = await pool.session()
        return await session.request(
            call.method,
            URL(self.address.base + call.path, encoded=True),
            headers={"Accept": f"{EVENT_STREAM}, {_JSON}"},
            timeout=aiohttp.ClientTimeout(
                total=None, sock_read=SILENCE_SECONDS, sock_connect=self._retries.connect_seconds
            ),
            allow_redirects=False,
        )

    async def _unless_failed(self, exchange: Awaitable[T], seconds: float) -> T | RetryableFailure:
        """Return the result of an exchange, or a failure that may be retried.

        The exchange must raise only errors of aiohttp and of the operating system.

        Raises:
            StoreError: a retry cannot succeed.
        """
        try:
            return await exchange
        except TimeoutError:
            return RetryableFailure(f"did not answer within {seconds:g} s", is_timeout=True)
        except aiohttp.ClientSSLError as error:
            raise Incompatible(
                f"{self.address.base} is not trusted: {error}",
                "give the certificate of its authority as ca_file=… or in SSL_CERT_FILE",
            ) from error
        except aiohttp.ClientResponseError as error:
            raise self._incompatible(f"does not speak HTTP: {error.message}") from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            return RetryableFailure(f"did not answer: {error or type(error).__name__}")

    async def _exchange(
        self,
        pool: Pool,
        call: StoreCall,
        timeout: float,  # noqa: ASYNC109 - the name of aiohttp's parameter
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        total = None if math.isinf(call.waits) else timeout + call.waits
        headers = {"Content-Type": _JSON} if call.body is not None else {}
        if call.key is not None:
            headers[IDEMPOTENCY_KEY] = call.key
        session = await pool.session()
        with resetting() if call.claims else nullcontext():
            async with (
                pool.connection(waits=call.waits > 0),
                session.request(
                    call.method,
                    URL(self.address.base + call.path, encoded=True),
                    data=_payload(call.body),
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=total, sock_connect=self._retries.connect_seconds),
                    allow_redirects=False,
                ) as response,
            ):
                return response, await response.read()

    def _check_response(
        self, call: StoreCall, response: aiohttp.ClientResponse, body: bytes
    ) -> bytes | RetryableFailure:
        """Return the body of a successful response, or a failure that may be retried.

        Raises:
            StoreError: a retry cannot succeed.
        """
        status = response.status
        if (warning := response.headers.get("Warning")) is not None:
            self._show(warning)
        if status < 300:
            return body
        if status < 400:
            raise self._incompatible(f"redirects to {response.headers.get('Location')}")
        sent = f"{call.method} {call.path.partition('?')[0]}"
        error = error_of(status, body, sent)
        is_from_server = _NAMED in body
        # A proxy may limit the account of its client instead of the rate of calls, and a retry would not help then. So
        # only the rate limit of the server is retried.
        if status in RETRIED_STATUSES or (is_from_server and isinstance(error, RateLimited)):
            pause = error.retry_after_seconds if is_from_server else retry_after(response.headers.get("Retry-After"))
            return RetryableFailure(
                f"answered {status} {response.reason}", pause or 0.0, error if is_from_server else None
            )
        if call.rollbook_only and status in {404, 405} and not is_from_server:
            raise self._incompatible(f"has no {sent}")
        raise error

    def _show(self, warning: str) -> None:
        """Log a server's warning once, for example that the server will require a key."""
        code, _, rest = warning.partition(" ")
        text = rest.partition(" ")[2].strip('"')
        if code == _WARNING_CODE and text and text not in self._warnings:
            self._warnings.add(text)
            logger.warning("%s: %s", self.address.base, text)

    def _incompatible(self, problem: str) -> Incompatible:
        return Incompatible(
            f"{self.address.base} {problem}", "give the URL of a Rollbook server, as `rollbook serve` prints it"
        )


def _payload(body: bytes | None) -> bytes | BytesIO | None:
    """Return a body for sending. A large body is sent in parts, so that it does not block the event loop."""
    return body if body is None or len(body) < _LARGE else BytesIO(body)


def trust_context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in a file, and the authorities of the system.

    `SSL_CERT_FILE` replaces the authorities of the system.

    Raises:
        Invalid: the file is missing, or contains no PEM certificates.
    """
    context = ssl.create_default_context()
    if ca_file is None:
        return context
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError:
        raise Invalid("ca_file", f"{os.fspath(ca_file)} contains no PEM certificates") from None
    except OSError as error:
        raise Invalid("ca_file", f"{os.fspath(ca_file)} cannot be read: {error.strerror}") from None
    return context
