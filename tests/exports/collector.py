"""A collector of OpenTelemetry for tests: a server in a thread, whose answers a test determines."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from store.models import Span
from store.otel import json_format, protobuf
from store.otel.spans import Traces


@dataclass
class Answer:
    """The answer to a request."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    is_divided: bool = False
    """Whether the second half of the body arrives later than the first."""
    drops_connection: bool = False
    """Whether the connection is closed instead, after the spans were taken."""


@dataclass
class Request:
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    """The headers by lower-case name."""
    traces: Traces

    @property
    def spans(self) -> list[Span]:
        return self.traces.spans


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: forwarders are killed in the middle of a request."""


class CollectorServer:
    """The server. It takes the spans of each request that it answers with 200."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        """The answers to the next requests; then all requests are answered with 200."""
        self.requests: list[Request] = []
        self.copies: dict[tuple[str, str], list[bytes]] = {}
        """For each span, by attempt and id, its content as often as it was taken."""
        self.has_request = threading.Event()
        self._arrival = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                collector.take(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
                """Print nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def wait(self, requests: int) -> None:
        """Wait until this many requests have arrived."""
        with self._arrival:
            assert self._arrival.wait_for(lambda: len(self.requests) >= requests, 60)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        """Take the spans of a request, and answer it."""
        headers = {name.lower(): value for name, value in handler.headers.items()}
        body = handler.rfile.read(int(headers["content-length"]))
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        is_protobuf = headers["content-type"] == "application/x-protobuf"
        # The stock parser must read the same bytes.
        if is_protobuf:
            ExportTraceServiceRequest.FromString(body)
        traces = (protobuf if is_protobuf else json_format).decode(body)
        answer = self.answers.pop(0) if self.answers else Answer()
        with self._arrival:
            self.requests.append(Request(handler.path, headers, traces))
            self._arrival.notify_all()
        if answer.status == 200:
            for span in traces.spans:
                self.copies.setdefault((span.attempt_id, span.span_id), []).append(
                    orjson.dumps(span.model_dump(mode="json"))
                )
        self.has_request.set()
        if answer.drops_connection:
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        middle = len(answer.body) // 2 if answer.is_divided else 0
        handler.wfile.write(answer.body[:middle])
        if answer.is_divided:
            time.sleep(0.1)
        handler.wfile.write(answer.body[middle:])


@contextmanager
def collecting() -> Generator[CollectorServer]:
    """Run a collector until the end of the block."""
    server = CollectorServer()
    try:
        yield server
    finally:
        server.close()
