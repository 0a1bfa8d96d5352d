"""Instrumentation of the `openai` client, which records calls as spans of the current attempt.

A span contains prompt, response, token ids and logprobs, but no headers. Only public classes of the client are patched.
Calls outside of attempts are unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import trace

from store.training.openai_attributes import assembled, dumped, of_answer, of_request
from store.training.scope import current_scope

logger = logging.getLogger(__name__)

CALL_SPAN: Final = "openai.chat.completion"
"""The name of a call's span, which adapters look for."""

_MODULE: Final = "openai.resources.chat.completions"
_CLASSES: Final = ("Completions", "AsyncCompletions")
_METHODS: Final = ("create", "parse")
_originals: dict[tuple[str, str], Any] = {}


def instrument_openai() -> bool:
    """Record every chat completion of the `openai` client; return False if it is not installed. Idempotent."""
    if _originals:
        return True
    if find_spec("openai") is None:
        return False
    module = import_module(_MODULE)
    for name in _CLASSES:
        kind: type[Any] = getattr(module, name)
        for method in _METHODS:
            original = kind.__dict__.get(method)
            if original is not None:
                _originals[name, method] = original
                setattr(kind, method, _recorded(original, is_async=name.startswith("Async")))
    return True


def uninstrument_openai() -> None:
    """Restore the original methods of the `openai` client."""
    module = import_module(_MODULE) if _originals else None
    for (name, method), original in _originals.items():
        setattr(getattr(module, name), method, original)
    _originals.clear()


def _recorded(original: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    # The client's decorators hide which methods are coroutines, so the class name decides.
    if is_async:

        @wraps(original)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            call = _Call.begin(kwargs)
            if call is None:
                return await original(*args, **kwargs)
            with call.open():
                return call.answered(await original(*args, **kwargs))

        return awaiting

    @wraps(original)
    def calling(*args: Any, **kwargs: Any) -> Any:
        call = _Call.begin(kwargs)
        if call is None:
            return original(*args, **kwargs)
        with call.open():
            return call.answered(original(*args, **kwargs))

    return calling


class _Call:
    """One call, from its request to the end of its response."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._is_streaming = False

    @classmethod
    def begin(cls, request: Mapping[str, Any]) -> _Call | None:
        scope = current_scope()
        if scope is None:
            return None
        return cls(scope.tracer.start_span(CALL_SPAN, attributes=_safely(of_request, request)))

    def open(self) -> _Open:
        """Return a context manager for the time until the response. Spans that begin in it are children of the
        call's span.
        """
        return _Open(self, self._span)

    def answered(self, answer: Any) -> Any:
        """Record a response, or prepare to record a stream, and return the object for the caller."""
        # LangChain requests raw responses. `parse` reads the body once and caches it, so LangChain can call it, too.
        parsed = answer.parse() if hasattr(answer, "parse") and hasattr(answer, "http_response") else answer
        if hasattr(parsed, "choices"):
            self._record(dumped(parsed))
        elif parsed is answer and (hasattr(answer, "__next__") or hasattr(answer, "__anext__")):
            self._is_streaming = True
            return _AsyncTee(answer, self) if hasattr(answer, "__anext__") else _Tee(answer, self)
        return answer

    def streamed(self, chunks: list[Any]) -> None:
        """Record a streamed response, and end the span."""
        self._record(_safely(assembled, chunks))
        self._is_streaming = False
        self.end()

    def _record(self, answer: Mapping[str, Any]) -> None:
        self._span.set_attributes(_safely(of_answer, answer))

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
    def __init__(self, call: _Call, span: trace.Span) -> None:
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

    def __init__(self, stream: Any, call: _Call) -> None:
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
        # This records a stream that was not read to its end.
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


def _safely(function: Callable[[Any], dict[str, Any]], value: Any) -> dict[str, Any]:
    """Return the function's result for a payload, or an empty dict if the payload cannot be read."""
    try:
        return function(value)
    except Exception:
        logger.exception("a call of the openai client could not be recorded completely")
        return {}
