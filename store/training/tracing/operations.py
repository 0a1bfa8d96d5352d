"""Recording of functions and blocks as spans of the current attempt, with their inputs and outputs."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from store.semconv import OPERATION_INPUT, OPERATION_NAME, OPERATION_OUTPUT, OPERATION_SPAN
from store.training.tracing.core_fields import SpanCoreFields, SpanRecordingContext
from store.training.tracing.scope import current_scope, require_scope
from store.training.tracing.span_attributes import flat_attributes, sanitize_attributes
from store.training.tracing.span_recording import OperationFields, recording

F = TypeVar("F", bound=Callable[..., Any])


@overload
def operation(fn: F, *, propagate: bool = True, **attributes: Any) -> F: ...
@overload
def operation(fn: None = None, *, propagate: bool = True, **attributes: Any) -> OperationContext: ...
def operation(fn: Any = None, *, propagate: bool = True, **attributes: Any) -> Any:
    """Record a function or a block as a span of the current attempt.

        @operation
        def search(query): ...

        @operation(name="rerank")
        async def order(documents): ...

        with operation(name="vote", round=2) as op:
            op.set_input(answers)
            op.set_output(best)

    A function's arguments and its result are recorded; exceptions are recorded and raised again. The current attempt is
    looked up at each call, so modules may decorate functions when they are imported. Outside of attempts, a decorated
    function runs without being recorded.

    Args:
        fn: the function; None for a block, or for a decorator with arguments.
        propagate: whether to record the span. If false, the span is only built, and `OperationContext.span` returns it.
        attributes: further attributes; `name` is the operation's name, by default the name of the function.

    Raises:
        ValueError: `fn` is not a function, or the name was given twice.
        RuntimeError: a block was entered without a current attempt, although `propagate` is true.
    """
    if "name" in attributes:
        if OPERATION_NAME in attributes:
            raise ValueError(f"the operation's name was given twice, as name and as {OPERATION_NAME}")
        attributes[OPERATION_NAME] = attributes.pop("name")
    context = OperationContext(sanitize_attributes(attributes), propagate=propagate)
    if fn is None:
        return context
    if not callable(fn):
        raise ValueError(f"operation needs a function or attributes by name, not {type(fn).__name__}")  # noqa: TRY004
    return context(fn)


class OperationContext:
    """Result of `operation(...)`, usable as a decorator or as a context manager."""

    def __init__(self, attributes: Mapping[str, Any], *, propagate: bool) -> None:
        self._attributes = dict(attributes)
        self._propagate = propagate
        self._entered: Any = None
        self._recording: SpanRecordingContext | None = None

    def __call__(self, function: F) -> F:
        """Return a function that is recorded at each call."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            signature = None  # some builtins have no signature
        operation_attributes = {
            OPERATION_NAME: getattr(function, "__name__", type(function).__name__)
        } | self._attributes

        def attributes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
            return operation_attributes | flat_attributes(OPERATION_INPUT, _bound(signature, args, kwargs))

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                with _recorded(attributes_of(args, kwargs), propagate=self._propagate, required=False) as span:
                    result = await function(*args, **kwargs)
                    span.record_attributes(flat_attributes(OPERATION_OUTPUT, result))
                    return result

            return cast("F", awaiting)

        @wraps(function)
        def calling(*args: Any, **kwargs: Any) -> Any:
            with _recorded(attributes_of(args, kwargs), propagate=self._propagate, required=False) as span:
                result = function(*args, **kwargs)
                span.record_attributes(flat_attributes(OPERATION_OUTPUT, result))
                return result

        return cast("F", calling)

    def __enter__(self) -> Self:
        self._entered = _recorded(self._attributes, propagate=self._propagate, required=True)
        self._recording = self._entered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._entered.__exit__(kind, error, trace)

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Record the input: keyword arguments by name, positional arguments as the list `args`."""
        arguments: dict[str, Any] = ({"args": list(args)} if args else {}) | kwargs
        self._begun_recording().record_attributes(flat_attributes(OPERATION_INPUT, arguments))

    def set_output(self, output: Any) -> None:
        """Record the output."""
        self._begun_recording().record_attributes(flat_attributes(OPERATION_OUTPUT, output))

    def span(self) -> SpanCoreFields:
        """Return the span of the block.

        Raises:
            RuntimeError: the block was not entered, or has not ended yet.
        """
        return self._begun_recording().get_recorded_span()

    def _begun_recording(self) -> SpanRecordingContext:
        if self._recording is None:
            raise RuntimeError("the operation has not begun; use it in a with block")
        return self._recording


@contextmanager
def _recorded(attributes: Mapping[str, Any], *, propagate: bool, required: bool) -> Generator[SpanRecordingContext]:
    scope = require_scope("operation") if propagate and required else current_scope()
    if propagate and scope is not None:
        with recording(scope, OPERATION_SPAN, attributes) as span:
            yield span
        return
    fields = OperationFields(OPERATION_SPAN, sanitize_attributes(attributes), time.time())
    try:
        yield fields
    except BaseException as error:
        fields.record_exception(error)
        raise
    finally:
        fields.finish()


def _bound(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by parameter name, including defaults.

    If the arguments do not match the signature, return them under the names `args` and `kwargs`.
    """
    raw_arguments = {"args": list(args), "kwargs": kwargs}
    if signature is None:
        return raw_arguments
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return raw_arguments
    bound.apply_defaults()
    return bound.arguments
