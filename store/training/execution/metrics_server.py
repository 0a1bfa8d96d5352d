"""The server from which Prometheus reads the metrics of runners."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from store.runtime.metrics_text import CONTENT_TYPE
from store.training.running.runner_metrics import metrics
from store.wire.listener import bind

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.execution.strategy import RunnerSide
    from store.training.running.runner import ExecutionEvent

_HOST: Final = "127.0.0.1"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer a request."""
        body = metrics.text() if self.path == "/metrics" else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def served(port: int) -> Generator[int]:
    """Serve the metrics of this process on loopback until the block ends, and yield the port.

    Raises:
        PortTaken: another program listens on the port.
    """
    server = _Server((_HOST, port), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = bind(_HOST, port)
    thread = threading.Thread(target=server.serve_forever, name="rollbook metrics", daemon=True)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MeasuredBundle:
    """The runners' side, whose workers serve metrics.

    The first worker uses `port`, the other workers use the following ports.

    Attributes:
        side: the runners' side.
        port: the port of the first worker.
    """

    side: RunnerSide
    port: int

    async def __call__(self, store: Store, worker_id: int, event: ExecutionEvent) -> None:
        """Run the rollouts of a store as one worker until the event is set."""
        with served(self.port + worker_id):
            await self.side(store, worker_id, event)
