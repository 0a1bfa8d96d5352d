"""Tracer of agents. It is based on OpenTelemetry, and sends every span of an attempt to the store.

A scope describes the attempt to which the running code belongs: the ids of the attempt, and the recorder of its spans.
A scope may also describe a trace without an attempt, whose spans stay in this process. A provider is a `TracerProvider`
of OpenTelemetry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as LiveSpan

from store.errors import Invalid, StoreError, WrongProcess
from store.model_calls.attributes import CALL_SPAN
from store.models import Span, TraceStatus
from store.semconv import ATTEMPT_ID, OPERATION_NAME, ROLLOUT_ID
from store.training.model_clients.anthropic_spans import instrument_anthropic
from store.training.model_clients.client_calls import end_open_calls
from store.training.model_clients.openai_spans import instrument_openai
from store.training.tracing.core_fields import SpanCoreFields, core_fields, record_exception
from store.training.tracing.recorder import LocalRecorder, RecordedSpans, StoreRecorder
from store.training.tracing.scope import AttemptScope, current_scope, entered, require_scope
from store.training.tracing.span_attributes import sanitize_attributes
from store.training.tracing.span_recording import LiveOperation, record_fields, recording
from store.training.tracing.spool import SpanSpool
from store.training.tracing.tracer_providers import (
    change_id,
    global_provider,
    new_provider,
    recording_tracer,
    use_system_ids,
)

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.model_clients.langchain_spans import LangChainHandler

logger = logging.getLogger("store.training.tracer")

ATTEMPT_SPAN: Final = "agentlightning.attempt"
"""The name of an attempt's root span."""

SPOOL_SECONDS: Final = 60.0
"""If the store cannot be reached, a finished attempt waits at most this many seconds until its spans are stored."""

_TRACER: Final = "store.training"
_ANTHROPIC_TRACER: Final = "com.anthropic.sdk.python"

_last_trace: ContextVar[list[Span] | None] = ContextVar("rollbook_last_trace", default=None)


class ScopeProcessor(SpanProcessor):
    """Span processor that passes finished spans to the attempt in which they began.

    Args:
        stamps: whether to set the attempt's ids as attributes of each span, for other processors of the provider.
    """

    def __init__(self, *, stamps: bool = False) -> None:
        self._stamps = stamps
        self.may_repeat_ids = True
        """Whether the provider's id generator may repeat an id."""
        self._begun: dict[int, AttemptScope] = {}

    def on_start(self, span: LiveSpan, parent_context: Context | None = None) -> None:
        """Remember the attempt in which a span began."""
        del parent_context
        try:
            scope = current_scope()
        except WrongProcess as error:
            logger.warning("span %r is not recorded: %s", span.name, error)
            return
        if scope is None and span.parent is not None:
            # The code propagates OpenTelemetry's context, but not the scope.
            scope = self._begun.get(span.parent.span_id)
        if scope is None or _repeats_call(span):
            return
        span_id = span.get_span_context().span_id
        if self.may_repeat_ids and (span_id in self._begun or scope.recorder.has(span_id)):
            logger.warning("span %r has the id %016x of another span, and gets a new id", span.name, span_id)
            span_id = change_id(span)
        self._begun[span_id] = scope
        if self._stamps and scope.rollout_id is not None:
            span.set_attributes({ROLLOUT_ID: scope.rollout_id, ATTEMPT_ID: scope.attempt_id or ""})

    def on_end(self, span: ReadableSpan) -> None:
        """Pass a span to its attempt if the attempt is still open."""
        context = span.get_span_context()
        scope = None if context is None else self._begun.pop(context.span_id, None)
        if scope is not None and scope.is_open:
            scope.recorder.put(span)

    def forget(self, scope: AttemptScope) -> None:
        """Forget the unfinished spans of an attempt."""
        for span_id, begun_in in list(self._begun.items()):
            if begun_in is scope:
                self._begun.pop(span_id, None)


class Tracer:
    """Tracer that opens a scope for each attempt. All spans that begin in the scope are recorded, also those of other
    OpenTelemetry tracers of the same provider.

    Any number of attempts may be traced at once, in tasks and in threads. The provider is private by default, so
    pass `tracer_provider=tracer.provider` to instrumentations of other libraries.

    Args:
        install_global: whether to use the global provider of this process, and to install one if there is none. Spans
            outside of attempts are not recorded. Spans of attempts have the attempt's ids as attributes, for other
            exporters.
        provider: the provider to use instead of a private one. Spans of attempts get the same attributes as with
            `install_global`.
        spool: the files in which spans wait while the store cannot be reached; None for at most 64 MB of temporary
            files. If the spool has a directory, a starting runner stores the spans that dead processes left there.
        spool_seconds: the maximum number of seconds for which a finished attempt waits until its spans are stored.
        openai: whether to record the calls of the `openai` client; None records them if the client is installed.
        anthropic: whether to record the calls of the `anthropic` client; None records them if the client is installed.

    Raises:
        Invalid: a client that is to be recorded is not installed.
    """

    def __init__(
        self,
        *,
        install_global: bool = False,
        provider: TracerProvider | None = None,
        spool: SpanSpool | None = None,
        spool_seconds: float = SPOOL_SECONDS,
        openai: bool | None = None,
        anthropic: bool | None = None,
    ) -> None:
        self._install_global = install_global
        self._given = provider
        self._spool = spool or SpanSpool()
        self._spool_seconds = spool_seconds
        self._clients = {"openai": openai, "anthropic": anthropic}
        for client in (name for name, is_wanted in self._clients.items() if is_wanted):
            _require(client, client)
        self._store: Store | None = None
        self._worker_id: int | None = None
        self._processor = ScopeProcessor(stamps=install_global or provider is not None)
        self._provider: TracerProvider | None = None
        self._tracer: trace.Tracer | None = None
        self._last_trace: list[Span] = []

    def __reduce__(self) -> tuple[Any, ...]:
        # A provider contains threads and locks, which cannot be pickled, so the copy creates its own provider.
        if self._given is not None:
            raise TypeError("a tracer with a custom provider cannot be sent to another process; create it there")
        return partial(
            Tracer,
            install_global=self._install_global,
            spool=self._spool,
            spool_seconds=self._spool_seconds,
            **self._clients,
        ), ()

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Create the provider, and instrument the clients of model servers."""
        del args, kwargs
        _ = self.provider
        for name, instrument in _INSTRUMENTS.items():
            if self._clients[name] is not False:
                instrument()

    def init_worker(self, worker_id: int, store: Store | None = None, *args: Any, **kwargs: Any) -> None:
        """Set the store for the spans of attempts."""
        del args, kwargs
        self._worker_id = worker_id
        self._store = store

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Forget the store that `init_worker` set."""
        del worker_id, args, kwargs
        self._worker_id = self._store = None

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the provider may be used again."""
        del args, kwargs

    @contextmanager
    def lifespan(self, store: Store | None = None) -> Generator[Tracer]:
        """Set up the tracer during a block, for use without a runner."""
        self.init()
        self.init_worker(0, store)
        try:
            yield self
        finally:
            self.teardown_worker(0)
            self.teardown()

    @property
    def spool(self) -> SpanSpool:
        """The files in which spans wait while the store cannot be reached."""
        return self._spool

    @property
    def provider(self) -> TracerProvider:
        """The provider whose spans are recorded."""
        if self._provider is None:
            self._provider = self._given or (global_provider() if self._install_global else new_provider())
            self._processor.may_repeat_ids = not use_system_ids(self._provider)
            self._provider.add_span_processor(self._processor)
        return self._provider

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: Store | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[trace.Tracer]:
        """Trace a block below one root span, and store the spans in an attempt.

        Yield a tracer for further spans. Without ids, the spans are not stored; `get_last_trace` returns them.

        Args:
            name: the name of the trace, usually the rollout's id.
            store: the store for the spans; None for the store of `init_worker`.
            rollout_id: the id of the rollout.
            attempt_id: the id of the attempt.

        Raises:
            ValueError: one id was given without the other, ids were given without a store, or a trace is already open.
        """
        scope = self.open_scope(name, store=store, rollout_id=rollout_id, attempt_id=attempt_id)
        try:
            with entered(scope), self.root_span(scope):
                yield scope.tracer
        finally:
            recorded = await self.close_scope(scope)
            if recorded.left or recorded.lost:
                logger.error(
                    "attempt %s has %d spans that are not stored", scope.attempt_id, recorded.left + recorded.lost
                )

    def open_scope(
        self,
        name: str | None = None,
        *,
        store: Store | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        worker_id: str | None = None,
        runner: Any = None,
    ) -> AttemptScope:
        """Begin to record an attempt. The caller must enter the returned scope, and close it with `close_scope`.

        Raises:
            ValueError: as `trace_context`.
        """
        if current_scope() is not None:
            raise ValueError("a trace is already open here; leave it first, or start a task for the new one")
        if (rollout_id is None) != (attempt_id is None):
            raise ValueError("give rollout_id and attempt_id together, or neither of them")
        goes_to = store or self._store
        if rollout_id is None or attempt_id is None:
            recorder: LocalRecorder | StoreRecorder = LocalRecorder()
        elif goes_to is None:
            raise ValueError("an attempt needs a store for its spans; call init_worker(worker_id, store) first")
        else:
            recorder = StoreRecorder(goes_to, rollout_id, attempt_id, self._spool)
        if self._tracer is None:
            # The SDK creates a new tracer at each call, which takes as long as ten spans, so one is reused.
            self._tracer = recording_tracer(self.provider, _TRACER)
        return AttemptScope(
            name=name or rollout_id or "trace",
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            worker_id=worker_id,
            tracer=self._tracer,
            recorder=recorder,
            runner=runner,
        )

    @contextmanager
    def root_span(self, scope: AttemptScope) -> Generator[trace.Span]:
        """Open the root span of an attempt."""
        # The context is empty, because a span around the runner is not part of the attempt.
        with scope.tracer.start_as_current_span(
            ATTEMPT_SPAN,
            context=Context(),
            attributes={OPERATION_NAME: scope.name},
            record_exception=False,
            set_status_on_exception=False,
        ) as root:
            try:
                yield root
            except Exception as error:
                root.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {record_exception(root, error)}")
                raise
            finally:
                end_open_calls(scope)

    async def close_scope(self, scope: AttemptScope, wait_seconds: float | None = None) -> RecordedSpans:
        """Stop recording, wait until the recorded spans are stored, and return them.

        Args:
            scope: the scope to close.
            wait_seconds: the maximum number of seconds to wait for a store that cannot be reached; None for
                `spool_seconds`.
        """
        scope.is_open = False
        self._processor.forget(scope)
        recorder = scope.recorder
        if isinstance(recorder, StoreRecorder):
            recorded = await recorder.close(self._spool_seconds if wait_seconds is None else wait_seconds)
        else:
            recorded = RecordedSpans(cast("LocalRecorder", recorder).spans())
        return self._keep_last_trace(recorded)

    def take_last_spans(self, scope: AttemptScope) -> RecordedSpans | None:
        """Stop recording, and return the recorded spans with the last ones, which the caller stores.

        Return None if `close_scope` has to store the spans, because earlier spans are not stored yet. After a result,
        the caller reports what became of the last spans to `keep_last_spans`.
        """
        recorder = scope.recorder
        assert isinstance(recorder, StoreRecorder)  # the scope of an attempt
        scope.is_open = False
        self._processor.forget(scope)
        return recorder.take_last()

    async def keep_last_spans(
        self, scope: AttemptScope, unsent: Sequence[Span], results: Sequence[Span | StoreError | None] | None
    ) -> RecordedSpans:
        """Return the recorded spans of a scope after the call that was to store its last spans.

        Args:
            scope: the scope.
            unsent: the last spans.
            results: the result for each of them, as in `FinishedAttempt`; None if the call failed. Spans that are not
                stored yet are stored now, if possible.
        """
        recorder = scope.recorder
        assert isinstance(recorder, StoreRecorder)  # the scope of an attempt
        if results is None:
            recorded = await recorder.store_last(unsent, self._spool_seconds)
        else:
            recorded = await recorder.note_last(unsent, results, self._spool_seconds)
        return self._keep_last_trace(recorded)

    def _keep_last_trace(self, recorded: RecordedSpans) -> RecordedSpans:
        self._last_trace = recorded.spans
        _last_trace.set(recorded.spans)
        return recorded

    def get_last_trace(self) -> list[Span]:
        """Return the spans of the last trace that this task closed or, if there is none, that this tracer closed."""
        mine = _last_trace.get()
        return list(self._last_trace if mine is None else mine)

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span without duration in the current attempt, and return it.

        Raises:
            RuntimeError: there is no current attempt.
        """
        scope = require_scope("create_span")
        at = time.time() if timestamp is None else timestamp
        fields = core_fields(
            name, status or TraceStatus(status_code="OK"), sanitize_attributes(attributes or {}), at, at
        )
        record_fields(scope, fields)
        return fields

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Generator[LiveOperation]:
        """Record a block as one span of the current attempt.

        Raises:
            RuntimeError: there is no current attempt.
        """
        scope = require_scope("operation_context")
        with recording(scope, name, attributes or {}, start_time, end_time) as operation:
            yield operation

    def get_langchain_handler(self, tags: Sequence[str] | None = None) -> LangChainHandler:
        """Return a callback handler that records chains, tools and models of LangChain in the current attempt.

        Pass the handler as `config={"callbacks": [handler]}`. One handler serves any number of attempts.

        Args:
            tags: tags of every span that the handler records.

        Raises:
            Invalid: langchain-core is not installed.
        """
        _require("langchain", "langchain_core")
        from store.training.model_clients.langchain_spans import LangChainHandler

        return LangChainHandler(tags)


OtelTracer = Tracer
"""Agent-lightning's name for the tracer."""


def _repeats_call(span: LiveSpan) -> bool:
    """Return whether a span is the `anthropic` client's own span for a call that is already recorded.

    The client creates spans of its own if the process has a global provider.
    """
    is_of_anthropic = span.instrumentation_scope is not None and span.instrumentation_scope.name == _ANTHROPIC_TRACER
    around = trace.get_current_span()
    return is_of_anthropic and isinstance(around, ReadableSpan) and around.name == CALL_SPAN


_INSTRUMENTS: Final[Mapping[str, Callable[[], bool]]] = {
    "openai": instrument_openai,
    "anthropic": instrument_anthropic,
}


def _require(extra: str, package: str) -> None:
    """Check that a package is installed.

    Raises:
        Invalid: the package is not installed.
    """
    if find_spec(package) is None:
        raise Invalid(
            extra, f"needs the package {package}, which is not installed; run pip install 'rollbook[{extra}]'"
        )
