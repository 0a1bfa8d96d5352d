"""`HTTPStore`, the client of a server. A method sends a request, and repeats it if it fails and time is left."""
# ruff: noqa: ASYNC109 - argument names follow Agent-lightning.

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Self, TypeVar, cast

from store.client import requests
from store.client.annotations import HTTPAnnotations
from store.client.core import FULL_WAIT, HTTPCore
from store.client.finishing import finish
from store.client.log import HTTPLog
from store.client.reads import HTTPReads
from store.client.retrying import Retries
from store.client.runs import HTTPRuns
from store.client.scanners import HTTPScanners
from store.client.transport import StoreCall, Transport, reading, trust_context
from store.errors import Incompatible, Invalid, SpanConflict
from store.interface.store import Store
from store.models import (
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    Rollout,
    Span,
)
from store.models.calls import (
    ChangingCall,
    DequeueManyRolloutsCall,
    DequeueRolloutCall,
    EnqueueManyRolloutsCall,
    EnqueueRolloutCall,
    FinishAttemptCall,
)
from store.models.enums import build_models
from store.models.spans import with_ids
from store.validation import arguments
from store.wire import encoding, paths, server_url

T = TypeVar("T")

span_logger = logging.getLogger("store.spans")

KEY_VARIABLE: Final = "ROLLBOOK_API_KEY"


class HTTPStore(HTTPReads, Store):
    """Client of one partition of a server's database. A partition is a separate store in the same database.

    The constructor does not connect; `await open_store(url)` also checks that the server answers. A store may be used
    from any event loop and thread, pickled, and used in a forked process: each loop of each process has its own
    connections. A request that changes data and fails is repeated with the same idempotency key, so that the server
    executes it only once.

    Args:
        url: `http://host:port`, with an optional partition: `/p/<name>` or `?partition=<name>`.
        api_key: sent with every request; None for the value of `ROLLBOOK_API_KEY`, if it is set. The key is never
            shown, but a pickle of the store contains it.
        ca_file: a PEM file of certificates to trust in addition to the certificates of the system or in
            `SSL_CERT_FILE`.
        read_only: refuse calls that write.
        retry_seconds: how long a failed call is retried: no attempt of a call starts later than this after its first
            attempt.
        timeout_seconds: the timeout of one attempt. For a call that asks the server to wait, for example for a rollout,
            the requested time is added to this timeout.
        connect_seconds: the timeout of connecting.
        connections: the maximum number of connections per event loop. Calls that ask the server to wait use other
            connections, which this maximum does not include.

    Raises:
        Invalid: the URL, the API key, the certificate file or a timeout is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        read_only: bool = False,
        retry_seconds: float = 30.0,
        timeout_seconds: float = 15.0,
        connect_seconds: float = 5.0,
        connections: int = 64,
    ) -> None:
        self.url = url
        self._settings: dict[str, Any] = {
            "api_key": os.environ.get(KEY_VARIABLE) or None if api_key is None else api_key,
            "ca_file": ca_file,
            "read_only": read_only,
            "retry_seconds": retry_seconds,
            "timeout_seconds": timeout_seconds,
            "connect_seconds": connect_seconds,
            "connections": connections,
        }
        retries = Retries(retry_seconds, timeout_seconds, connect_seconds)
        headers = _headers(self._settings["api_key"])
        where = server_url.parse(url)
        trust = trust_context(ca_file) if where.base.startswith("https:") else None
        if ca_file is not None and trust is None:
            raise Invalid("ca_file", "has an effect only with an https:// URL; leave ca_file out")
        super().__init__(HTTPCore(Transport(where, headers, retries, connections, trust), read_only=read_only))
        self._log = HTTPLog(self.core)
        self._runs = HTTPRuns(self.core)
        self._annotations = HTTPAnnotations(self.core)
        self._scanners = HTTPScanners(self.core)
        self.store_id = ""
        """The id of the server's database; empty unless `open` returned the store, and for other servers."""

    @classmethod
    async def open(cls, url: str, **settings: Any) -> Self:
        """Return a store after the server has answered a request.

        If it is a server of Agent-lightning, methods that such servers do not support raise `Incompatible` when called.

        Raises:
            Invalid: an argument is invalid; the arguments are those of the constructor.
            Unavailable: the server does not answer.
            NotFound: the server has no such partition.
        """
        store = cls(url, **settings)
        if not store.core.read_only:
            build_models()
        try:
            try:
                await store.core.check_server("open_store")
                store.store_id = store.core.store_id
            except Incompatible:
                await store.core.transport.send(reading("open_store", paths.HEALTH))
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def log(self) -> HTTPLog:
        return self._log

    @property
    def runs(self) -> HTTPRuns:
        return self._runs

    @property
    def annotations(self) -> HTTPAnnotations:
        return self._annotations

    @property
    def scanners(self) -> HTTPScanners:
        return self._scanners

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.url, self._settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.core.transport.address.base!r})"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}

    def otlp_traces_endpoint(self) -> str:
        return self.core.transport.address.otlp_traces

    async def call(self, call: ChangingCall[T]) -> T:
        if isinstance(call, FinishAttemptCall):
            return cast("T", await finish(self, self.core, call))
        if isinstance(call, EnqueueRolloutCall):
            return cast("T", await _enqueue(self.core, call))
        if isinstance(call, DequeueRolloutCall):
            claim = DequeueManyRolloutsCall(1, call.worker_id, call.wait_seconds)
            claimed = await self.core.call(claim, call.method)
            return cast("T", claimed[0] if claimed else None)
        return await self.core.call(call)

    async def add_span(self, span: Span) -> Span | None:
        answer = await self.core.change("add_span", paths.SPANS, requests.span(span), encoding.decode_span_or_none)
        if answer is None:
            _log_duplicate(span)
        return answer

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        spans = arguments.several(spans, "spans")
        recorded, derived = await _record(self.core, "add_many_spans", spans)
        stored = [index for index, _ in recorded]
        if len(stored) < len(spans):
            for index in sorted(set(range(len(spans))) - set(stored)):
                _log_duplicate(spans[index])
        return [with_ids(spans[index], *derived[index]) if index in derived else spans[index] for index in stored]

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Store spans like `add_many_spans`, and return a pair (index in the call, sequence_id) for each new span.

        Args:
            spans: the spans. They may belong to several attempts.
            number: whether to replace the sequence_id of each span by the next free number of its rollout, in the
                transaction that stores the span.

        Raises:
            NotFound: a rollout or an attempt does not exist. The spans are stored in groups, one for each attempt, and
                the groups before the first group without a rollout or an attempt are stored.
        """
        return (await _record(self.core, "record_spans", spans, number=number))[0]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        span = arguments.sdk_span(rollout_id, attempt_id, readable_span, sequence_id)
        body = requests.batch([requests.span(span)], number=sequence_id is None)
        answer = await self.core.change(
            "add_otel_span", paths.SPANS_BATCH, body, encoding.decode_recorded, rollbook_only=True
        )
        if not answer.recorded:
            _log_duplicate(span)
            return None
        for ids in answer.derived:
            span = with_ids(span, ids.span_id, ids.parent_id)
        return span.model_copy(update={"sequence_id": answer.recorded[0][1]})

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        arguments.timeout(timeout)
        ids = requests.texts(arguments.several(rollout_ids, "rollout_ids"), "rollout_ids") or []
        requested = 0.0
        answered = -1.0

        async def wait(seconds: float) -> list[Rollout]:
            nonlocal requested, answered
            body = requests.body(rollout_ids=ids, timeout=seconds)
            began = time.monotonic()
            call = StoreCall("wait_for_rollouts", "POST", paths.WAIT, body, waits=seconds)
            ended = await self.core.transport.request(call, encoding.decode_rollouts)
            requested, answered = seconds, time.monotonic() - began
            return ended

        def is_over(ended: list[Rollout]) -> bool:
            # The server responds well before the timeout only if it has no rollout left to wait for.
            return len(ended) == len(ids) or answered < requested * FULL_WAIT

        seconds = math.inf if timeout is None else max(timeout, 0.0)
        return await self.core.in_slices("wait_for_rollouts", seconds, wait, is_over)

    async def close(self) -> None:
        await self.core.transport.close()


async def _enqueue(core: HTTPCore, call: EnqueueRolloutCall) -> Rollout:
    # The call has the fields of a request. Building a request of them would take as long as encoding it.
    request = cast("EnqueueRolloutRequest", call)
    try:
        enqueued = await core.call(EnqueueManyRolloutsCall([request]), call.method)
    except Invalid as error:
        raise requests.of_single_rollout(error) from None
    return enqueued[0]


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": f"rollbook/{_version()}"}
    if api_key:
        server_url.check_key(api_key)
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def _version() -> str:
    try:
        return version("rollbook")
    except PackageNotFoundError:
        return "unknown"


def _log_duplicate(span: Span) -> None:
    span_logger.error(
        "Duplicated span added: rollout=%s attempt=%s span=%s", span.rollout_id, span.attempt_id, span.span_id
    )


def _unpickle(url: str, settings: dict[str, Any]) -> HTTPStore:
    return HTTPStore(url, **settings)


async def _record(
    core: HTTPCore, operation: str, spans: Sequence[Span], *, number: bool = False
) -> tuple[list[tuple[int, int]], dict[int, tuple[str, str | None]]]:
    """Record spans; return the index and the number of each new span, and the derived ids by span index."""
    recorded: list[tuple[int, int]] = []
    derived: dict[int, tuple[str, str | None]] = {}
    conflicts: list[int] = []
    for places, body in requests.span_batches(spans, number=number) if spans else []:
        try:
            answer = await core.change(operation, paths.SPANS_BATCH, body, encoding.decode_recorded, rollbook_only=True)
            pairs = answer.recorded
            derived |= {places[ids.index]: (ids.span_id, ids.parent_id) for ids in answer.derived}
        except SpanConflict as error:
            conflicts += [places[index] for index in error.indexes]
            pairs = [(index, sequence_id) for index, sequence_id in error.recorded]
        recorded += [(places[index], sequence_id) for index, sequence_id in pairs]
    if conflicts:
        keys = [(spans[index].rollout_id, spans[index].attempt_id, spans[index].span_id) for index in conflicts]
        raise SpanConflict(keys, conflicts, recorded)
    return recorded, derived
