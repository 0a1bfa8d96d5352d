"""Recording of the calls that client packages, such as `openai`, make to models, as spans of the current attempt.

A span contains the prompt, the response, token ids and logprobs, but no headers. Calls outside of attempts are not
recorded.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context

from store.model_calls import Protocol
from store.model_calls.attributes import CALL_SPAN, EMBEDDINGS_SPAN
from store.training.model_clients.client_attributes import CallRecord
from store.training.model_clients.client_streams import record_body, record_stream
from store.training.tracing.core_fields import record_exception
from store.training.tracing.scope import AttemptScope, current_scope

# Programs configure logging by this name, which is older than the module.
logger = logging.getLogger("store.training.openai_spans")


@dataclass(frozen=True, slots=True)
class RecordedApi:
    """One API of a client."""

    protocol: Protocol
    answer_field: str
    """A field that every response object has and no stream object has."""

    @property
    def span(self) -> str:
        """The name of the span."""
        return EMBEDDINGS_SPAN if self.protocol is Protocol.EMBEDDINGS else CALL_SPAN


class ModelRun:
    """A call to a model that a framework, such as LangChain, reports.

    If a client package records the call, the instrumentation of the framework does not record the call again.
    """

    def __init__(self, context: Context, around: ModelRun | None) -> None:
        self.context = context
        """The OpenTelemetry context with the parent of the call's span."""
        self.is_recorded = False
        self.is_over = False
        # A framework may report several calls before it makes the first of them. `mark_recorded` marks all of them.
        self._around = None if around is None or around.is_over else around

    def mark_recorded(self) -> None:
        """Set `is_recorded` for this call, and for the calls that were open when the framework reported this call."""
        self.is_recorded = True
        if self._around is not None:
            self._around.mark_recorded()


current_model_run: Final[ContextVar[ModelRun | None]] = ContextVar("rollbook_model_run", default=None)


def recording_method(api: RecordedApi) -> Callable[[Callable[..., Any], bool], Callable[..., Any]]:
    """Return a function that wraps a method of a client, so that calls of the method are recorded."""

    def wrap(original: Callable[..., Any], is_async: bool) -> Callable[..., Any]:  # noqa: FBT001 - see `ClientMethods`
        # The client's decorators hide which methods are coroutines, so the class name decides.
        if not is_async:

            @wraps(original)
            def calling(*args: Any, **kwargs: Any) -> Any:
                return _call(api, partial(original, *args, **kwargs), kwargs)

            return calling

        @wraps(original)
        def starting(*args: Any, **kwargs: Any) -> Any:
            try:
                request = original(*args, **kwargs)
            except BaseException as error:
                if (call := ClientCall.begin(api, kwargs)) is not None:
                    call.end(error)
                raise
            return _await(api, request, kwargs)

        if not inspect.iscoroutinefunction(original):
            # A decorator of the client checks the arguments before the caller awaits the result.
            return starting

        @wraps(original)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            return await starting(*args, **kwargs)

        return awaiting

    return wrap


def recording_manager(api: RecordedApi) -> Callable[[Callable[..., Any], bool], Callable[..., Any]]:
    """Return a function that wraps a method of a client. The method returns a context manager, which sends the request
    at the start of the `with` block.
    """

    def wrap(original: Callable[..., Any], is_async: bool) -> Callable[..., Any]:  # noqa: FBT001 - see `ClientMethods`
        @wraps(original)
        def opening(*args: Any, **kwargs: Any) -> Any:
            manager, arguments = original(*args, **kwargs), {**kwargs, "stream": True}
            name = next((name for name in dir(manager) if name.endswith("__api_request")), None)
            if name is None:
                logger.error("calls of %s are not recorded: its version is not supported", type(manager).__qualname__)
            else:
                send = getattr(manager, name)
                recorded = _Request(api, send, arguments) if is_async else partial(_call, api, send, arguments)
                setattr(manager, name, recorded)
            return manager

        return opening

    return wrap


def recording_conversion(original: Callable[..., Any], is_async: bool) -> Callable[..., Any]:  # noqa: FBT001 - see `ClientMethods`
    """Return a wrapper of a client's conversion of responses. If the conversion fails, the response is recorded."""
    if is_async:

        @wraps(original)
        async def converting(response: Any, *args: Any, **kwargs: Any) -> Any:
            with _recording_failure(response):
                return await original(response, *args, **kwargs)

        return converting

    @wraps(original)
    def convert(response: Any, *args: Any, **kwargs: Any) -> Any:
        with _recording_failure(response):
            return original(response, *args, **kwargs)

    return convert


@contextmanager
def _recording_failure(response: Any) -> Generator[None]:
    try:
        yield
    except BaseException:
        if (call := _current_call.get()) is not None:
            call.unconverted(response)
        raise


def _call(api: RecordedApi, send: Callable[[], Any], arguments: Mapping[str, Any]) -> Any:
    call = ClientCall.begin(api, arguments)
    if call is None:
        return send()
    with call.open():
        answer = send()
        call.answered(answer, arguments)
    return answer


async def _await(api: RecordedApi, request: Awaitable[Any], arguments: Mapping[str, Any]) -> Any:
    call = ClientCall.begin(api, arguments)
    if call is None:
        return await request
    with call.open():
        answer = await request
        call.answered(answer, arguments)
    return answer


class _Request:
    """Awaitable of a recorded request. Unlike a coroutine, the object may stay unawaited without a warning."""

    def __init__(self, api: RecordedApi, request: Awaitable[Any], arguments: Mapping[str, Any]) -> None:
        self._api = api
        self._request = request
        self._arguments = arguments

    def __await__(self) -> Generator[Any, Any, Any]:
        return _await(self._api, self._request, self._arguments).__await__()


class ClientCall:
    """Recording of one call, from its request to the end of its response. No method raises an exception.

    The class implements `Reading` for a response that the caller reads piece by piece.
    """

    def __init__(self, api: RecordedApi, scope: AttemptScope, span: trace.Span, attributes: CallRecord) -> None:
        self._api = api
        self.scope = scope
        self._span = span
        self._attributes = attributes
        self._is_read_later = False
        self._encoding: str | None = None
        self._http: Any = None
        self.events: list[Any] = []
        self.body: list[bytes] = []
        self.is_busy = False
        self.is_parsed = False
        self.is_done = False
        _open_calls[self] = None

    @classmethod
    def begin(cls, api: RecordedApi, request: Mapping[str, Any]) -> ClientCall | None:
        """Begin the span of a call; return None outside of attempts."""
        scope = current_scope()
        if scope is None:
            return None
        try:
            run, context = current_model_run.get(), None
            if run is not None and not run.is_over:
                context = run.context
                if api.span == CALL_SPAN:
                    run.mark_recorded()
            attributes = _request_attributes(api.protocol, request)
            return cls(api, scope, scope.tracer.start_span(api.span, context), attributes)
        except Exception:
            logger.exception("a call to a model is not recorded")
            return None

    def open(self) -> _Open:
        """Return a context manager for the time until the response. Spans that begin in this time are children of the
        call's span.
        """
        return _Open(self, self._span)

    def answered(self, answer: Any, request: Mapping[str, Any]) -> None:
        """Record a response now, or while the caller reads it. The type and values of the response do not change."""
        try:
            if hasattr(answer, "parse") and hasattr(answer, "http_response"):
                self._take_raw(answer, is_stream=request.get("stream") is True)
            elif hasattr(answer, self._api.answer_field):
                self._attributes.add_response(answer)
            elif hasattr(answer, "_iterator") and hasattr(answer, "response"):
                self._is_read_later = True
                record_stream(answer, self)
            elif isinstance(answer, str):
                # A client returns the text of a response that is not JSON.
                self._attributes.add_body(answer.encode(errors="surrogatepass"))
        except Exception:
            logger.exception("the response of a model could not be recorded completely")

    def unconverted(self, answer: Any) -> None:
        """Record a response that the client could not convert; the caller gets an exception instead."""
        try:
            if answer.http_response.is_closed:
                self._attributes.add_body(answer.http_response.content)
        except Exception:
            logger.exception("the response of a model could not be recorded completely")

    def _take_raw(self, answer: Any, *, is_stream: bool) -> None:
        response = answer.http_response
        if response.is_closed:
            self._attributes.add_body(response.content)
            return
        self._is_read_later = True
        self._http = type(response)
        self._encoding = response.headers.get("content-encoding")
        record_body(response, self, keeps=True)
        if is_stream:
            record_stream(_parsed(answer), self, is_raw=True)

    def leave(self) -> None:
        """End the span, unless the caller still reads the response."""
        if not self._is_read_later:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Record the received part of the response, and end the span. Later calls have no effect.

        Args:
            error: the exception that the caller gets.
        """
        try:
            _open_calls.pop(self)
        except KeyError:
            return
        failure = None if error is None else record_exception(self._span, error)
        try:
            if self._is_read_later:
                server_error = self._record_reading()
                failure = server_error if failure is None else failure
        except Exception:
            logger.exception("the response of a model could not be recorded completely")
            self._attributes.mark_incomplete()
        self._span.set_attributes(self._attributes.values)
        self._span.set_status(trace.StatusCode.OK if failure is None else trace.StatusCode.ERROR, failure)
        try:
            self._span.end()
        except Exception:
            logger.exception("a call to a model is not recorded")

    def _record_reading(self) -> str | None:
        """Record the part of the response that the caller read. Return the message of the server's error, or None."""
        if self.is_parsed or not self.body:
            return self._attributes.add_events(self.events, has_end_mark=self.is_done)
        body = b"".join(self.body)
        if self._encoding:
            # The HTTP client removes the compression.
            body = self._http(200, headers={"content-encoding": self._encoding}, content=body).content
        if body.lstrip()[:1] in {b"{", b"["}:
            self._attributes.add_body(body)
            return None
        return self._attributes.add_event_body(body, has_end_mark=self.is_done)


class _Open:
    def __init__(self, call: ClientCall, span: trace.Span) -> None:
        self._call = call
        self._current = trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def __enter__(self) -> None:
        self._current.__enter__()
        self._token = _current_call.set(self._call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _current_call.reset(self._token)
        self._current.__exit__(kind, error, traceback)
        if error is None:
            self._call.leave()
        else:
            self._call.end(error)


_current_call: Final[ContextVar[ClientCall | None]] = ContextVar("rollbook_client_call", default=None)
"""The call whose response the client is waiting for."""

_open_calls: Final[dict[ClientCall, None]] = {}
"""The calls that have not ended, in the order of their beginnings. A finaliser may end a call at any time and in any
thread, so only atomic operations change the dict."""


def end_open_calls(scope: AttemptScope) -> None:
    """End the open calls of an attempt, and record the parts of the responses that the agent read."""
    for call in list(_open_calls):
        if call.scope is scope:
            call.end()


def _request_attributes(protocol: Protocol, request: Mapping[str, Any]) -> CallRecord:
    try:
        return CallRecord(protocol, request)
    except Exception:
        logger.exception("the request of a call to a model is not recorded")
        return CallRecord(protocol, {})


def _parsed(answer: Any) -> Any:
    """Return the stream of a raw response. The client caches the stream, so the caller gets the same stream."""
    parsed = answer.parse()
    if not inspect.iscoroutine(parsed):
        return parsed
    # `parse` waits only for the body of a response that is not a stream.
    try:
        parsed.send(None)
    except StopIteration as done:
        return done.value
    parsed.close()
    raise RuntimeError(f"{type(answer).__qualname__}.parse waited for the body of a stream")
