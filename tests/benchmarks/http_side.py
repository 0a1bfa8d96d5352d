"""The client of the benchmark over HTTP: equal requests for all servers, in the protocol of Agent-lightning 0.3."""

from __future__ import annotations

import base64
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from store.models.calls import EnqueueManyRolloutsCall
from store.semconv import ATTEMPT_ID, ROLLOUT_ID
from store.wire.calls import path_of
from store.wire.paths import ATTEMPT, DEQUEUE, OTLP_TRACES, ROLLOUTS, SPANS, WORKERS
from tests.benchmarks.http_client import Work, drive, get, post
from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import INPUT, SPANS_PER_LIFECYCLE, percentiles, span_fields

# Each key of the body, as Agent-lightning's client sends them.
_ENQUEUE_PATH = path_of(EnqueueManyRolloutsCall)
_ENQUEUE = post(
    _ENQUEUE_PATH,
    orjson.dumps(
        {"rollouts": [{"input": INPUT, "mode": None, "resources_id": None, "config": None, "metadata": None}]}
    ),
)
_ENQUEUED_AT_ONCE = 1000
_READ_AT_ONCE = 100
_NANOS = 1_000_000_000
_PROTOBUF = "application/x-protobuf"

Claimed = tuple[str, str]
"""The ids of a rollout and of its attempt."""


class Client:
    """Commands on servers, each given by its URL and the id of its process."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._prepared: list[bytes] = []
        self._limits = itertools.count(_READ_AT_ONCE + 1)
        self._offsets = itertools.count(1)

    def lifecycles(self, url: str, pid: int, connections: int, seconds: float) -> dict[str, Any]:
        """Let connections run lifecycles one after another for some seconds; what one took, and cost the server."""
        taken: list[float] = []
        end = time.perf_counter() + seconds
        works = (self._lifecycles(f"worker-{number}", end, taken) for number in range(connections))
        measured = _measured(url, pid, works)
        done = len(taken)
        return {
            "count": done,
            "per_second": done / measured["seconds"],
            "requests_per_second": measured["requests"] / measured["seconds"],
            "cpu_ms": measured["cpu_seconds"] * 1000 / done,
            "cpu_ms_per_request": measured["cpu_seconds"] * 1000 / measured["requests"],
            "client_cpu_ms": measured["client_cpu_seconds"] * 1000 / done,
            "latency": percentiles(taken),
        }

    def _lifecycles(self, worker: str, end: float, taken: list[float]) -> Work:
        dequeue = _dequeue(1, worker)
        while (begun := time.perf_counter()) < end:
            yield _ENQUEUE
            claimed = orjson.loads((yield dequeue))[0]
            rollout_id, attempt_id = claimed["rollout_id"], claimed["attempt"]["attempt_id"]
            for number in range(1, SPANS_PER_LIFECYCLE + 1):
                yield self._span(rollout_id, attempt_id, number)
            path = ATTEMPT.format(rollout_id=rollout_id, attempt_id=attempt_id)
            yield post(path, b'{"status":"succeeded"}')
            taken.append(time.perf_counter() - begun)

    def _span(self, rollout_id: str, attempt_id: str, number: int) -> bytes:
        return post(SPANS, orjson.dumps(span_fields(rollout_id, attempt_id, number, next(self._numbers))))

    def spans(self, url: str, pid: int, connections: int, count: int, claims: bool = True) -> dict[str, Any]:
        """Post so many spans, one a request; to attempts of made-up ids unless it `claims` them."""
        attempts = self._claim(url, connections) if claims else [("ro-012345678901", "at-01234567")] * connections
        numbers = itertools.cycle(attempts)
        # Made before anything is timed, since the fastest server takes as little time for one as this client.
        requests = [self._span(*next(numbers), number) for number in range(1, count + 1)]
        return self._send(url, pid, connections, requests, count)

    def prepare_traces(self, url: str, traces: int, spans: int) -> None:
        """Claim attempts and make a trace of each, ready for `export`."""
        self._prepared = [self._trace(*claimed, spans) for claimed in self._claim(url, traces)]

    def export(self, url: str, pid: int, connections: int, spans: int) -> dict[str, Any]:
        """Export the prepared traces, one a request; the rate is of spans."""
        return self._send(url, pid, connections, self._prepared, spans * len(self._prepared))

    def _trace(self, rollout_id: str, attempt_id: str, spans: int) -> bytes:
        otlp_spans = [self._otlp_span(rollout_id, attempt_id, number) for number in range(1, spans + 1)]
        resource = Resource(attributes=_pairs({ROLLOUT_ID: rollout_id, ATTEMPT_ID: attempt_id}))
        group = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=otlp_spans)])
        return post(OTLP_TRACES, ExportTraceServiceRequest(resource_spans=[group]).SerializeToString(), _PROTOBUF)

    def _otlp_span(self, rollout_id: str, attempt_id: str, number: int) -> Span:
        fields = span_fields(rollout_id, attempt_id, number, next(self._numbers))
        return Span(
            trace_id=bytes.fromhex(fields["trace_id"]),
            span_id=bytes.fromhex(fields["span_id"]),
            name=fields["name"],
            start_time_unix_nano=int(fields["start_time"] * _NANOS),
            end_time_unix_nano=int(fields["end_time"] * _NANOS),
            attributes=_pairs(fields["attributes"]),
        )

    def fill(self, url: str, rollouts: int, spans: int) -> str:
        """Enqueue so many rollouts, and record spans of one; return its id."""
        ((rollout_id, attempt_id),) = self._claim(url, 1)
        drive(url, [_one_by_one(iter([self._span(rollout_id, attempt_id, number) for number in range(1, spans + 1)]))])
        one = orjson.loads(_ENQUEUE.partition(b"\r\n\r\n")[2])["rollouts"]
        many = post(_ENQUEUE_PATH, orjson.dumps({"rollouts": one * _ENQUEUED_AT_ONCE}))
        drive(url, [_one_by_one(iter([many] * ((rollouts - 1) // _ENQUEUED_AT_ONCE)))])
        return rollout_id

    def read_spans(
        self, url: str, pid: int, connections: int, count: int, rollout_id: str, again: bool = False
    ) -> dict[str, Any]:
        """Read all spans of a rollout, each time as nobody asked for them before; or the same way `again` and again."""
        # A limit beyond their number changes the question and not the answer.
        limits = itertools.repeat(_READ_AT_ONCE) if again else self._limits
        urls = [f"{SPANS}?rollout_id={rollout_id}&limit={next(limits)}" for _ in range(count)]
        return self._send(url, pid, connections, [get(address) for address in urls], count)

    def read_rollouts(self, url: str, pid: int, connections: int, count: int, again: bool = False) -> dict[str, Any]:
        """Read a hundred rollouts, each time others; or the first hundred `again` and again."""
        offsets = itertools.repeat(0) if again else self._offsets
        urls = [f"{ROLLOUTS}?limit={_READ_AT_ONCE}&offset={next(offsets)}" for _ in range(count)]
        return self._send(url, pid, connections, [get(address) for address in urls], count)

    def enqueue_large(self, url: str, size: int) -> None:
        """Enqueue a rollout whose input has so many bytes that do not compress well."""
        text = base64.b64encode(random.Random(1).randbytes(size * 3 // 4)).decode()
        drive(url, [_one_by_one(iter([post(_ENQUEUE_PATH, orjson.dumps({"rollouts": [{"input": text}]}))]))])

    def gets(self, url: str, seconds: float) -> dict[str, Any]:
        """Read a short page on one connection, one after another for some seconds; how long each took."""
        taken: list[float] = []
        end = time.perf_counter() + seconds

        def work() -> Work:
            while (begun := time.perf_counter()) < end:
                yield get(f"{WORKERS}?limit={next(self._limits)}")
                taken.append(time.perf_counter() - begun)

        drive(url, [work()])
        return {"count": len(taken), **percentiles(taken)}

    def _claim(self, url: str, count: int) -> list[Claimed]:
        claimed: list[Claimed] = []

        def work() -> Work:
            for _ in range(count):
                yield _ENQUEUE
            answer = orjson.loads((yield _dequeue(count, "worker-0")))
            claimed.extend((one["rollout_id"], one["attempt"]["attempt_id"]) for one in answer)

        drive(url, [work()])
        assert len(claimed) == count
        return claimed

    def _send(self, url: str, pid: int, connections: int, requests: list[bytes], units: int) -> dict[str, Any]:
        """Send requests as their connections come free; the rate and the cost are of units."""
        line = iter(requests)
        measured = _measured(url, pid, (_one_by_one(line) for _ in range(connections)))
        return {
            "count": units,
            "per_second": units / measured["seconds"],
            "cpu_us": measured["cpu_seconds"] * 1e6 / units,
            "client_cpu_us": measured["client_cpu_seconds"] * 1e6 / units,
        }


def _one_by_one(requests: Iterator[bytes]) -> Work:
    for request in requests:  # noqa: UP028 - an iterator has nothing to send answers to
        yield request


def _dequeue(limit: int, worker: str) -> bytes:
    return post(DEQUEUE, orjson.dumps({"limit": limit, "worker_id": worker}))


def _measured(url: str, pid: int, works: Iterable[Work]) -> dict[str, float]:
    server, client = psutil.Process(pid), psutil.Process()
    spent, own_spent = _cpu_seconds(server), _cpu_seconds(client)
    requests, seconds = drive(url, works)
    return {
        "requests": requests,
        "seconds": seconds,
        "cpu_seconds": _cpu_seconds(server) - spent,
        "client_cpu_seconds": _cpu_seconds(client) - own_spent,
    }


def _cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def _pairs(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_AS_OTLP[type(value)](value)) for key, value in attributes.items()]


_AS_OTLP: dict[type, Callable[[Any], AnyValue]] = {
    bool: lambda value: AnyValue(bool_value=value),
    int: lambda value: AnyValue(int_value=value),
    float: lambda value: AnyValue(double_value=value),
    str: lambda value: AnyValue(string_value=value),
}


if __name__ == "__main__":
    serve(Client())
