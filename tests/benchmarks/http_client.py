"""An HTTP client with little overhead: keep-alive connections, prepared requests, responses split by their length.

A client that needs as much processor time as the server would distort the measurement. This client drives generators
from one loop over one epoll. They yield requests and receive the bodies of the responses.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Generator, Iterable
from urllib.parse import urlsplit

Work = Generator[bytes, bytes]
"""Yields requests, and gets the body of each one's answer."""

_CHUNK = 1 << 18
# Longer than any answer takes; a server that hangs ends the benchmark.
_HANGS_SECONDS = 60


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """Return a POST."""
    told = f"host: 127.0.0.1\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}"
    return f"POST {path} HTTP/1.1\r\n{told}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    """Return a GET."""
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


class BadAnswer(RuntimeError):
    """A server refused what it was to be measured by."""


class _Connection:
    def __init__(self, address: tuple[str, int], work: Work) -> None:
        self._work = work
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = b""
        self._wanted = -1
        self._body_at = 0
        self.requests = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def begin(self) -> bool:
        """Send the first request; return whether there is one."""
        return self._send(next(self._work, None))

    def read(self) -> bool:
        """Take what has arrived, and go on if it completes an answer; return whether there is more to do."""
        received = self._socket.recv(_CHUNK)
        if not received:
            raise BadAnswer(f"the server closed the connection after {self._got[:400]!r}")
        self._got = self._got + received if self._got else received
        if self._wanted < 0:
            self._begin_body()
        if self._wanted < 0 or len(self._got) < self._wanted:
            return True
        body = self._got[self._body_at : self._wanted]
        self._got, self._wanted = self._got[self._wanted :], -1
        try:
            return self._send(self._work.send(body))
        except StopIteration:
            return self._send(None)

    def _begin_body(self) -> None:
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._got[:end].lower()
        at = head.find(b"content-length: ")
        if self._got[9:10] != b"2" or at < 0:
            raise BadAnswer(self._got[:2000].decode(errors="replace"))
        self._body_at = end + 4
        self._wanted = self._body_at + int(head[at + 16 :].partition(b"\r\n")[0])

    def _send(self, request: bytes | None) -> bool:
        if request is None:
            self._socket.close()
            return False
        self.requests += 1
        self._socket.sendall(request)
        return True


def drive(url: str, works: Iterable[Work]) -> tuple[int, float]:
    """Run each work on a connection of its own, all at once; return how many requests were answered, and the seconds.

    Raises:
        BadAnswer: a server answered with anything but 2xx.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    connections = [_Connection((parts.hostname, parts.port), work) for work in works]
    open_by_number: dict[int, _Connection] = {}
    with select.epoll() as poll:
        begun = time.perf_counter()
        for connection in connections:
            if connection.begin():
                open_by_number[connection.fileno()] = connection
                poll.register(connection.fileno(), select.EPOLLIN)
        while open_by_number:
            ready = poll.poll(_HANGS_SECONDS)
            if not ready:
                raise BadAnswer(f"no answer for {_HANGS_SECONDS} s")
            for number, _ in ready:
                # A closed socket leaves the poll by itself.
                if not open_by_number[number].read():
                    del open_by_number[number]
        took = time.perf_counter() - begun
    return sum(connection.requests for connection in connections), took
