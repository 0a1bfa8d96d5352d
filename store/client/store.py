"""`HTTPStore`, the client of a server. A method sends a request, and repeats it if it fails and time is left."""
# ruff: noqa: A002, ASYNC109 - argument names follow Agent-lightning.

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Self, TypeVar

from store.client import requests
from store.client.annotations import HTTPAnnotations
from store.client.core import FULL_WAIT, HTTPCore
from store.client.log import HTTPLog
from store.client.reads import HTTPReads
from store.client.retrying import Retries
from store.client.runs import HTTPRuns
from store.client.transport import StoreCall, Transport, reading, trust_context
from store.errors import Incompatible, Invalid, SpanConflict
from store.interface.store import Store
from store.models import (
    UNSET,
    Attempt,
    AttemptedRollout,
    AttemptError,
    AttemptStatus,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    ResourcesUpdate,
    ResourceUnion,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Unset,
    Worker,
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
            except Incompatible:
                await store.core.transport.send(reading("open_store", paths.HEALTH))
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def store_id(self) -> str:
        """The id of the server's database; empty until the server has answered."""
        return self.core.store_id

    @property
    def log(self) -> HTTPLog:
        return self._log

    @property
    def runs(self) -> HTTPRuns:
        return self._runs

    @property
    def annotations(self) -> HTTPAnnotations:
        return self._annotations

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.url, self._settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.core.transport.address.base!r})"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}

    def otlp_traces_endpoint(self) -> str:
        return self.core.transport.address.otlp_traces

    # -- creation ----------------------------------------------------------------------------------------------------

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        body = requests.rollout(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata, worker_id=worker_id
        )
        return await self.core.change("start_rollout", paths.ROLLOUTS, body, encoding.decode_attempted_rollout)

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Rollout:
        one = requests.rollout(input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata)
        body = b'{"rollouts":[' + one + b"]}"
        try:
            answer = await self.core.change("enqueue_rollout", paths.ENQUEUE, body, encoding.decode_rollouts)
        except Invalid as error:
            raise requests.of_single_rollout(error) from None
        return answer[0]

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        given = arguments.several(rollouts, "rollouts")
        if not given:
            return []
        body = requests.rollouts(given)
        return await self.core.change("enqueue_many_rollouts", paths.ENQUEUE, body, encoding.decode_rollouts)

    # -- the queue ---------------------------------------------------------------------------------------------------

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await self._claim("dequeue_rollout", 1, worker_id, wait_seconds)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> list[AttemptedRollout]:
        if arguments.whole(limit, "limit", "a number of rollouts") <= 0:
            return []
        return await self._claim("dequeue_many_rollouts", limit, worker_id, wait_seconds)

    async def _claim(
        self, operation: str, limit: int, worker_id: str | None, wait_seconds: float
    ) -> list[AttemptedRollout]:
        arguments.wait_seconds(wait_seconds)

        async def claim(seconds: float) -> list[AttemptedRollout]:
            waits = {"wait_seconds": seconds} if seconds else {}
            body = requests.body(limit=limit, **requests.given(worker_id=worker_id), **waits)
            decode = encoding.decode_attempted_rollouts
            return await self.core.change(operation, paths.DEQUEUE, body, decode, waits=seconds, claims=True)

        return await self.core.in_slices(operation, wait_seconds, claim, bool)

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        path = requests.path(paths.ATTEMPTS, rollout_id=requests.name(rollout_id, "rollout_id"))
        body = requests.body(**requests.given(worker_id=worker_id))
        return await self.core.change("start_attempt", path, body, encoding.decode_attempted_rollout)

    # -- updates -----------------------------------------------------------------------------------------------------

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        path = requests.path(paths.ROLLOUT, rollout_id=requests.name(rollout_id, "rollout_id"))
        body = requests.body(
            input=input, mode=mode, resources_id=resources_id, status=status, config=config, metadata=metadata
        )
        return await self.core.change("update_rollout", path, body, encoding.decode_rollout)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset = UNSET,
        *,
        error: AttemptError | Unset = UNSET,
    ) -> Attempt:
        ids = {
            "rollout_id": requests.name(rollout_id, "rollout_id"),
            "attempt_id": requests.name(attempt_id, "attempt_id"),
        }
        path = requests.path(paths.LATEST_ATTEMPT if attempt_id == "latest" else paths.ATTEMPT, **ids)
        at = last_heartbeat_time
        # None is sent unchanged, because the server refuses it with an error.
        if at is not None and not isinstance(at, Unset):  # pyright: ignore[reportUnnecessaryComparison]
            at = arguments.moment(at, "last_heartbeat_time")
        fields = {"worker_id": worker_id, "last_heartbeat_time": at, "metadata": metadata, "error": error}
        body = requests.body(status=status, **fields)
        return await self.core.change("update_attempt", path, body, encoding.decode_attempt)

    # -- spans -------------------------------------------------------------------------------------------------------

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

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        ids = {
            "rollout_id": arguments.text(rollout_id, "rollout_id"),
            "attempt_id": arguments.text(attempt_id, "attempt_id"),
        }
        body = requests.body(**ids)
        answer = await self.core.change("get_next_span_sequence_id", paths.NEXT_SPAN, body, encoding.decode_next_span)
        return answer.sequence_id

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        pairs = arguments.pairs(rollout_attempt_ids, "rollout_attempt_ids")
        if not pairs:
            return []
        body = requests.body(rollout_attempt_ids=[list(pair) for pair in pairs])
        answer = await self.core.change(
            "get_many_span_sequence_ids", paths.NEXT_SPANS, body, encoding.decode_next_spans, rollbook_only=True
        )
        return answer.sequence_ids

    # -- resources and workers ---------------------------------------------------------------------------------------

    async def add_resources(self, resources: Mapping[str, ResourceUnion]) -> ResourcesUpdate:
        body = requests.resources(resources)
        return await self.core.change("add_resources", paths.RESOURCES, body, encoding.decode_resources)

    async def update_resources(self, resources_id: str, resources: Mapping[str, ResourceUnion]) -> ResourcesUpdate:
        path = requests.path(paths.RESOURCES_BY_ID, resources_id=requests.name(resources_id, "resources_id"))
        return await self.core.change(
            "update_resources", path, requests.resources(resources), encoding.decode_resources
        )

    async def update_worker(self, worker_id: str, heartbeat_stats: Mapping[str, Any] | Unset = UNSET) -> Worker:
        if heartbeat_stats is None:  # pyright: ignore[reportUnnecessaryComparison] (callers are not type-checked)
            raise TypeError("heartbeat_stats is None; leave it out to keep the stored statistics")
        path = requests.path(paths.WORKER, worker_id=requests.name(worker_id, "worker_id"))
        body = requests.body(heartbeat_stats=heartbeat_stats)
        return await self.core.change("update_worker", path, body, encoding.decode_worker)

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        arguments.timeout(timeout)
        wanted = requests.texts(arguments.several(rollout_ids, "rollout_ids"), "rollout_ids") or []
        requested = 0.0
        answered = -1.0

        async def wait(seconds: float) -> list[Rollout]:
            nonlocal requested, answered
            body = requests.body(rollout_ids=wanted, timeout=seconds)
            began = time.monotonic()
            call = StoreCall("wait_for_rollouts", "POST", paths.WAIT, body, waits=seconds)
            ended = await self.core.transport.request(call, encoding.decode_rollouts)
            requested, answered = seconds, time.monotonic() - began
            return ended

        def is_over(ended: list[Rollout]) -> bool:
            # The server responds well before the timeout only if it has no rollout left to wait for.
            return len(ended) == len(wanted) or answered < requested * FULL_WAIT

        seconds = math.inf if timeout is None else max(timeout, 0.0)
        return await self.core.in_slices("wait_for_rollouts", seconds, wait, is_over)

    # -- closing -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        await self.core.transport.close()


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
