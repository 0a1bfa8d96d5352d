"""Recording of the calls that client packages, such as `openai`, make to models, as spans of the current attempt.

An attempt is one execution of a task by an agent. A span contains the prompt, the response, token ids and logprobs, but
no headers. Calls outside of attempts are not recorded.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import trace
from opentelemetry.context import Context

from store.model_calls.json_values import plain
from store.training.scope import current_scope

# Programs configure logging by this name, which is older than the module.
logger = logging.getLogger("store.training.openai_spans")

CALL_SPAN: Final = "openai.chat.completion"
"""The name of the span of a call that generates text, in any protocol. Adapters find these spans by this name."""
EMBEDDINGS_SPAN: Final = "openai.embeddings"

# The clients set this header on requests for a raw response. If its value is `stream`, the caller reads the body.
_RAW_HEADER: Final = "X-Stainless-Raw-Response"
_STREAMING: Final = "stream"


@dataclass(frozen=True, slots=True)
class RecordedApi:
    """One API of a client, and the conversion of its calls to span attributes."""

    span: str
    """The name of the span."""
    of_request: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Function from the arguments of a call to span attributes."""
    of_answer: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Function from a response to span attributes."""
    assembled: Callable[[Sequence[Any]], dict[str, Any]]
    """Function that combines the events of a stream into one response."""
    answer_field: str
    """A field that every response object has and no stream object has."""


class ModelRun:
    """A call to a model that a framework, such as LangChain, reports.

    If a client package records the call, the instrumentation of the framework does not record the call again.
    """

    def __init__(self, context: Context, around: ModelRun | None) -> None:
        self.context = context
        """The OpenTelemetry context with the parent of the call's span."""
        self.is_recorded = False
        self.is_over = False
        # A framework may report several calls before it makes the first of them. So a client's call marks all of them.
        self._around = None if around is None or around.is_over else around

    def mark_recorded(self) -> None:
        """Set `is_recorded` for this call, and for the earlier calls that were open when the framework reported it."""
        self.is_recorded = True
        if self._around is not None:
            self._around.mark_recorded()


current_model_run: Final[ContextVar[ModelRun | None]] = ContextVar("rollbook_model_run", default=None)


def recording_method(api: RecordedApi) -> Callable[[Callable[..., Any], bool], Callable[..., Any]]:
    """Return a function that wraps a method of a client, so that its calls are recorded."""

    def wrap(original: Callable[..., Any], is_async: bool) -> Callable[..., Any]:  # noqa: FBT001 - see `ClientMethods`
        # The client's decorators hide which methods are coroutines, so the class name decides.
        if is_async:

            @wraps(original)
            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                call = ClientCall.begin(api, kwargs)
                if call is None:
                    return await original(*args, **kwargs)
                with call.open():
                    answer = await original(*args, **kwargs)
                    return call.answered(answer, await _parsed_later(answer, kwargs))

            return awaiting

        @wraps(original)
        def calling(*args: Any, **kwargs: Any) -> Any:
            call = ClientCall.begin(api, kwargs)
            if call is None:
                return original(*args, **kwargs)
            with call.open():
                answer = original(*args, **kwargs)
                return call.answered(answer, _parsed(answer, kwargs))

        return calling

    return wrap


def recording_manager(api: RecordedApi) -> Callable[[Callable[..., Any], bool], Callable[..., Any]]:
    """Return a function that wraps a method of a client. The method returns a context manager of a recorded stream."""

    def wrap(original: Callable[..., Any], is_async: bool) -> Callable[..., Any]:  # noqa: FBT001 - see `ClientMethods`
        manager = _AsyncManager if is_async else _Manager

        @wraps(original)
        def opening(*args: Any, **kwargs: Any) -> Any:
            return manager(original(*args, **kwargs), api, {**kwargs, "stream": True})

        return opening

    return wrap


def _parsed(answer: Any, request: Mapping[str, Any]) -> Any:
    """Return the parsed body of a raw response, None for a raw response that streams, and any other answer itself.

    The client caches the parsed body, so the caller can parse the response again.
    """
    if not (hasattr(answer, "parse") and hasattr(answer, "http_response")):
        return answer
    headers: Mapping[str, str] = request.get("extra_headers") or {}
    return None if headers.get(_RAW_HEADER) == _STREAMING else answer.parse()


async def _parsed_later(answer: Any, request: Mapping[str, Any]) -> Any:
    parsed = _parsed(answer, request)
    return await parsed if inspect.isawaitable(parsed) else parsed


class ClientCall:
    """Recording of one call, from its request to the end of its response."""

    def __init__(self, api: RecordedApi, span: trace.Span) -> None:
        self._api = api
        self._span = span
        self._is_streaming = False

    @classmethod
    def begin(cls, api: RecordedApi, request: Mapping[str, Any]) -> ClientCall | None:
        """Begin the span of a call; return None outside of attempts."""
        scope = current_scope()
        if scope is None:
            return None
        run, context = current_model_run.get(), None
        if run is not None and not run.is_over:
            context = run.context
            if api.span == CALL_SPAN:
                run.mark_recorded()
        return cls(api, scope.tracer.start_span(api.span, context, attributes=safely(api.of_request, request)))

    def open(self) -> _Open:
        """Return a context manager for the time until the response. Spans that begin in this time are children of the
        call's span.
        """
        return _Open(self, self._span)

    def answered(self, answer: Any, parsed: Any) -> Any:
        """Record a response, or prepare to record a stream, and return the object for the caller."""
        if hasattr(parsed, self._api.answer_field):
            self._record(plain(parsed))
        elif parsed is answer and (hasattr(answer, "__next__") or hasattr(answer, "__anext__")):
            return self.tee(answer)
        return answer

    def tee(self, stream: Any) -> Any:
        """Return a wrapper of a stream that records the chunks that the caller reads."""
        self._is_streaming = True
        return _AsyncTee(stream, self) if hasattr(stream, "__anext__") else _Tee(stream, self)

    def streamed(self, chunks: list[Any]) -> None:
        """Record a streamed response, and end the span."""
        self._record(safely(self._api.assembled, chunks))
        self._is_streaming = False
        self.end()

    def _record(self, answer: Mapping[str, Any]) -> None:
        self._span.set_attributes(safely(self._api.of_answer, answer))

    def failed(self, error: BaseException) -> None:
        """Record an exception, and end the span."""
        self._span.record_exception(error)
        self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._is_streaming = False
        self._span.end()

    def end(self) -> None:
        """End the span, unless the response is still streaming."""
        if not self._is_streaming:
            self._span.set_status(trace.StatusCode.OK)
            self._span.end()


class _Open:
    def __init__(self, call: ClientCall, span: trace.Span) -> None:
        self._call = call
        self._current = trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def __enter__(self) -> None:
        self._current.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._current.__exit__(kind, error, traceback)
        if error is None:
            self._call.end()
        else:
            self._call.failed(error)


class _Teeing:
    """Wrapper of a stream that collects the chunks that are read from it."""

    def __init__(self, stream: Any, call: ClientCall) -> None:
        self._stream = stream
        self._call = call
        self._chunks: list[Any] = []
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._call.streamed(self._chunks)

    def _fail(self, error: BaseException) -> None:
        if not self._is_over:
            self._is_over = True
            self._call.failed(error)

    def __del__(self) -> None:
        # The caller may drop a stream before its end; the chunks that were read are recorded.
        self._end()


class _Tee(_Teeing):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            chunk = next(self._stream)
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self._chunks.append(chunk)
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream, and record the chunks that were read."""
        self._stream.close()
        self._end()


class _AsyncTee(_Teeing):
    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            chunk = await anext(self._stream)
        except StopAsyncIteration:
            self._end()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self._chunks.append(chunk)
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the stream, and record the chunks that were read."""
        await self._stream.close()
        self._end()


class _Managing:
    """Wrapper of a context manager that sends its request when it is entered."""

    def __init__(self, manager: Any, api: RecordedApi, request: Mapping[str, Any]) -> None:
        self._manager = manager
        self._api = api
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    @staticmethod
    def _tee(stream: Any, call: ClientCall) -> Any:
        raw = getattr(stream, "_raw_stream", None)
        if raw is not None:
            stream._raw_stream = call.tee(raw)  # noqa: SLF001 - the helper reads its events from this stream
        return stream


class _Manager(_Managing):
    def __enter__(self) -> Any:
        call = ClientCall.begin(self._api, self._request)
        if call is None:
            return self._manager.__enter__()
        with call.open():
            return self._tee(self._manager.__enter__(), call)

    def __exit__(self, *raised: object) -> Any:
        return self._manager.__exit__(*raised)


class _AsyncManager(_Managing):
    async def __aenter__(self) -> Any:
        call = ClientCall.begin(self._api, self._request)
        if call is None:
            return await self._manager.__aenter__()
        with call.open():
            return self._tee(await self._manager.__aenter__(), call)

    def __aexit__(self, *raised: Any) -> Awaitable[Any]:
        return self._manager.__aexit__(*raised)


def safely(function: Callable[[Any], dict[str, Any]], value: Any) -> dict[str, Any]:
    """Return the result of a function for a value, or an empty dict if the function raises an exception."""
    try:
        return function(value)
    except Exception:
        logger.exception("a call to a model could not be recorded completely")
        return {}
