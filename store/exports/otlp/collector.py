"""A collector of OpenTelemetry that receives spans over OTLP/HTTP."""

from __future__ import annotations

import asyncio
import gzip
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, NamedTuple, Self, cast, get_args
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from opentelemetry.util.re import parse_env_headers

from store.errors import Forbidden, Incompatible, Invalid, StoreError, Unauthorized, Unavailable
from store.otel import protobuf
from store.otel.encode import OtlpSpan, as_json, request

Encoding = Literal["protobuf", "json"]
Compression = Literal["gzip", "none"]

_PATH: Final = "/v1/traces"
_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_TOO_LARGE: Final = 413
_RETRYABLE: Final = frozenset({408, 429, 500, 502, 503, 504})
_SHORTEST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_LONGEST_RETRY_AFTER: Final = 600.0
_ANSWER_BYTES: Final = 65_536
_SHOWN: Final = 300


class Rejection(NamedTuple):
    """Spans that a collector has refused. They are not sent again."""

    spans: int = 0
    message: str = ""
    """The reason of the first refusal."""

    def and_also(self, other: Rejection) -> Rejection:
        """Return the sum of both rejections, with the earlier message."""
        return Rejection(self.spans + other.spans, self.message or other.message)


class SendingStopped(Exception):
    """The sender was stopped while it waited for the collector."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """Options for requests to a collector."""

    headers: Mapping[str, str] | None = None
    """Additional headers, such as `authorization`. They replace headers of the same name from the environment."""
    encoding: Encoding = "protobuf"
    compression: Compression = "gzip"
    timeout_seconds: float = 10.0
    """The longest time of one request."""
    retry_seconds: float | None = 300.0
    """The time for which a request is repeated while the collector does not take it; None for no limit."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            Invalid: a value is invalid.
        """
        for name, kind in (("encoding", Encoding), ("compression", Compression)):
            if getattr(self, name) not in get_args(kind):
                raise Invalid(name, f"{getattr(self, name)!r} is not one of {', '.join(get_args(kind))}")
        for name in ("timeout_seconds", "retry_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise Invalid(name, f"{seconds!r} is not a number of seconds above 0")
        for name, value in (self.headers or {}).items():
            if not name or not (name + value).isprintable():
                raise Invalid("headers", f"{name!r} is not a header; write its name and its value in one line")


class Collector:
    """Sender of spans to a collector. It repeats requests that the collector does not take.

    Args:
        url: the URL of the collector; `/v1/traces` is added unless it is there.
        options: how spans are sent.
        on_notice: called with a sentence when the collector stops taking spans, and when it takes spans again.
        stop: an event. When it is set, no request is repeated.

    Raises:
        Invalid: the URL is not an HTTP or HTTPS URL, or contains a user.
    """

    def __init__(
        self,
        url: str,
        options: CollectorOptions,
        on_notice: Callable[[str], object],
        stop: asyncio.Event | None = None,
    ) -> None:
        self.url = traces_url(url)
        self.requests = 0
        """The number of acknowledged requests."""
        self._options = options
        self._on_notice = on_notice
        self._stop = stop or asyncio.Event()
        self._proxy = _proxy_of(self.url)
        self._session: aiohttp.ClientSession | None = None
        self._is_down = False

    async def __aenter__(self) -> Self:
        options = self._options
        self._session = aiohttp.ClientSession(
            headers=_environment_headers() | dict(options.headers or {}),
            timeout=aiohttp.ClientTimeout(total=options.timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, spans: Sequence[OtlpSpan]) -> Rejection:
        """Send spans, wait until the collector has acknowledged them, and return the refused spans.

        Raises:
            Forbidden, Unauthorized: the collector demands other headers.
            Incompatible: the collector does not accept the request.
            SendingStopped: the collector does not take the request, and `stop` is set.
            Unavailable: the collector has not taken the request for `retry_seconds`.
        """
        body = protobuf.encode(request(spans)) if self._options.encoding == "protobuf" else as_json(spans)
        refused = await self._send(gzip.compress(body, 6, mtime=0) if self._options.compression == "gzip" else body)
        if refused is not None:
            return refused
        if len(spans) == 1:
            return Rejection(1, f"a span with {len(body):,} bytes is too large for the collector")
        middle = len(spans) // 2
        return (await self.send(spans[:middle])).and_also(await self.send(spans[middle:]))

    async def _send(self, body: bytes) -> Rejection | None:
        """Repeat a request until it is acknowledged, and return the refused spans; None if the request is too large."""
        begun = time.monotonic()
        pause = _SHORTEST_PAUSE
        while True:
            try:
                status, answer, retry_after = await self._post(body)
                problem = f"status {status}{_message(answer)}"
            except aiohttp.ClientConnectorCertificateError as error:
                raise self._error(0, str(error)) from None
            except (aiohttp.ClientError, TimeoutError) as error:
                status, answer, retry_after, problem = 0, _Answer(), 0.0, _problem(error)
            if 200 <= status < 300:
                self._tell_up()
                self.requests += 1
                return _refused(answer)
            if status == _TOO_LARGE:
                return None
            if status and status not in _RETRYABLE:
                raise self._error(status, problem)
            limit = self._options.retry_seconds
            wait = max(random.uniform(pause / 2, pause), retry_after)
            if limit is not None and time.monotonic() - begun + wait > limit:
                raise Unavailable(f"the collector at {self.url} has not taken spans for {limit:g} s ({problem})", wait)
            self._tell_down(problem)
            await self._wait(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _wait(self, seconds: float) -> None:
        if not self._stop.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
            except TimeoutError:
                return
        raise SendingStopped

    async def _post(self, body: bytes) -> tuple[int, _Answer, float]:
        """Send a request once; return the status, the answer, and the seconds of `Retry-After`."""
        options, session = self._options, self._session
        assert session is not None  # `__aenter__` creates it
        headers = {"Content-Type": f"application/{'x-protobuf' if options.encoding == 'protobuf' else 'json'}"}
        if options.compression == "gzip":
            headers["Content-Encoding"] = "gzip"
        async with session.post(
            self.url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
        ) as response:
            content = b""
            while len(content) < _ANSWER_BYTES and (part := await response.content.read(_ANSWER_BYTES - len(content))):
                content += part
            answer = _Answer(response.content_type, content, response.headers.get("Location", ""))
            return response.status, answer, _seconds(response.headers.get("Retry-After"))

    def _error(self, status: int, problem: str) -> StoreError:
        text = f"the collector at {self.url} does not accept the spans: {problem}"
        if status == 401:
            return Unauthorized(f"{text}; give its key with --header or {_HEADERS[0]}")
        if status == 403:
            return Forbidden(text, f"give another key with --header or {_HEADERS[0]}")
        return Incompatible(text, "check the URL, the headers and --encoding; nothing of this request was stored")

    def _tell_down(self, problem: str) -> None:
        if not self._is_down:
            self._is_down = True
            self._on_notice(f"the collector at {self.url} does not take spans ({problem}); trying again until it does")

    def _tell_up(self) -> None:
        if self._is_down:
            self._is_down = False
            self._on_notice(f"the collector at {self.url} takes spans again")


class _Answer(NamedTuple):
    content_type: str = ""
    content: bytes = b""
    location: str = ""


def _problem(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno:
        return os.strerror(error.errno) if error.errno > 0 else str(error.os_error)
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def traces_url(url: str) -> str:
    """Return the URL to which spans are sent: the URL of a collector, with `/v1/traces`.

    Raises:
        Invalid: the URL is not an HTTP or HTTPS URL, or contains a user.
    """
    parts = urlsplit(url)
    try:
        is_valid = parts.scheme in {"http", "https"} and parts.hostname is not None and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise Invalid("to", f"{url!r} is not the URL of a collector, such as http://localhost:4318")
    if parts.username is not None:
        raise Invalid("to", f"has a user; give it as a header, with --header or {_HEADERS[0]}")
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH))


def _proxy_of(url: str) -> str | None:
    """Return the proxy of the environment for a URL. The client would also send passwords from ~/.netrc."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _environment_headers() -> dict[str, str]:
    headers: dict[str, str] = {}
    for name in _HEADERS:
        headers |= parse_env_headers(os.environ.get(name, ""), liberal=True)
    return headers


def _refused(answer: _Answer) -> Rejection:
    """Return the refused spans that the answer to a successful request states; no spans if it cannot be read."""
    try:
        if answer.content_type == "application/json":
            partial: dict[str, Any] = orjson.loads(answer.content or b"{}").get("partialSuccess") or {}
            return Rejection(int(partial.get("rejectedSpans", 0)), _sentence(str(partial.get("errorMessage", ""))))
        success = ExportTraceServiceResponse.FromString(answer.content).partial_success
    except (DecodeError, ValueError, AttributeError, TypeError):
        return Rejection()
    return Rejection(success.rejected_spans, _sentence(success.error_message))


def _message(answer: _Answer) -> str:
    """Return the reason in the answer to a failed request, with a colon before it; empty if there is no reason."""
    text = ""
    if answer.location:
        text = f"moved to {answer.location}"
    elif answer.content_type == "application/x-protobuf":
        # The answer is a google.rpc.Status. Its field `message` has the same number as `error_message` of this type.
        with suppress(DecodeError):
            text = ExportTracePartialSuccess.FromString(answer.content).error_message
    elif answer.content_type == "application/json":
        text = _json_message(answer.content)
    elif answer.content_type == "text/plain":
        text = answer.content.decode(errors="replace")
    return f": {_sentence(text)}" if text else ""


def _sentence(text: str) -> str:
    """Return the text of a collector in one line, without control characters."""
    line = " ".join(text.split())[:_SHOWN]
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def _json_message(content: bytes) -> str:
    try:
        fields = orjson.loads(content)
    except orjson.JSONDecodeError:
        return ""
    message = cast("dict[str, Any]", fields).get("message") if isinstance(fields, dict) else None
    return message if isinstance(message, str) else content.decode()


def _seconds(retry_after: str | None) -> float:
    """Return the seconds to wait by `Retry-After`, which is a number or a date; 0 for any other value."""
    if retry_after is None:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER) if math.isfinite(seconds) else 0.0
