"""The followers in the benchmark over HTTP: connections that read a stream of the log and discard it."""

from __future__ import annotations

import select
import socket
from urllib.parse import urlsplit

from store.wire.paths import LOG
from tests.benchmarks.protocol import serve

_CHUNK = 1 << 18
_HANGS_SECONDS = 60


class Followers:
    """Commands on a server."""

    def follow(self, url: str, count: int, size: int) -> int:
        """Let so many connections follow the log from its beginning until each has read `size` bytes; all they read."""
        parts = urlsplit(url)
        request = f"GET {LOG} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n".encode()
        left: dict[int, tuple[socket.socket, int]] = {}
        total = 0
        with select.epoll() as poll:
            for _ in range(count):
                connection = socket.create_connection((parts.hostname or "", parts.port or 0))
                connection.sendall(request)
                left[connection.fileno()] = (connection, size)
                poll.register(connection.fileno(), select.EPOLLIN)
            while left:
                ready = poll.poll(_HANGS_SECONDS)
                assert ready, "the server hangs"
                for number, _ in ready:
                    connection, missing = left.pop(number)
                    received = len(connection.recv(_CHUNK))
                    assert received, "the server ended a stream"
                    total += received
                    if received >= missing:
                        connection.close()
                    else:
                        left[number] = (connection, missing - received)
        return total


if __name__ == "__main__":
    serve(Followers())
