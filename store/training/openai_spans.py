"""Calls of the `openai` client as spans of the current attempt: prompt, answer, tokens and their ids, logprobs.

Only its public classes are touched, and no header is ever recorded. Outside of attempts a call is what it was.
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
"""The name of a call's span; adapters look for it."""

_MODULE: Final = "openai.resources.chat.completions"
_CLASSES: Final = ("Completions", "AsyncCompletions")
_METHODS: Final = ("create", "parse")
_originals: dict[tuple[str, str], Any] = {}


def instrument_openai() -> bool:
    """Record every chat completion of the `openai` client; False if it is not installed. Twice does no more."""
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
    """Leave the `openai` client as it was."""
    module = import_module(_MODULE) if _originals else None
    for (name, method), original in _originals.items():
        setattr(getattr(module, name), method, original)
    _originals.clear()


def _recorded(original: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    # The client's decorators hide which of its methods are coroutines; its classes do not.
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
    """One call, from its request to the end of its answer."""

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
        """While the answer has not come: what happens lies below the call's span."""
        return _Open(self, self._span)

    def answered(self, answer: Any) -> Any:
        """Record an answer, or what it turns into as it comes, and return what the caller gets of it."""
        # A raw response, as LangChain asks for: it reads its body once and keeps what it read.
        parsed = answer.parse() if hasattr(answer, "parse") and hasattr(answer, "http_response") else answer
        if hasattr(parsed, "choices"):
            self._record(dumped(parsed))
        elif parsed is answer and (hasattr(answer, "__next__") or hasattr(answer, "__anext__")):
            self._is_streaming = True
            return _AsyncTee(answer, self) if hasattr(answer, "__anext__") else _Tee(answer, self)
        return answer

    def streamed(self, chunks: list[Any]) -> None:
        """Record an answer that came in pieces, and end."""
        self._record(_safely(assembled, chunks))
        self._is_streaming = False
        self.end()

    def _record(self, answer: Mapping[str, Any]) -> None:
        self._span.set_attributes(_safely(of_answer, answer))

    def failed(self, error: BaseException) -> None:
        """Record what was raised, and end."""
        self._span.record_exception(error)
        self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._is_streaming = False
        self._span.end()

    def end(self) -> None:
        """End, unless the answer is still coming."""
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
    """A stream whose chunks are kept as they are handed on."""

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
        # Of a stream that nobody read to its end.
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
        """Close the stream, and record what came of it."""
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
        """Close the stream, and record what came of it."""
        await self._stream.close()
        self._end()


def _safely(function: Callable[[Any], dict[str, Any]], value: Any) -> dict[str, Any]:
    """Return what a function makes of what went over the wire; of what it cannot read, nothing."""
    try:
        return function(value)
    except Exception:
        logger.exception("a call of the openai client could not be recorded whole")
        return {}
