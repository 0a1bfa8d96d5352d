"""Parser of server-sent events. The stream may arrive in chunks of any size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

EVENT_STREAM: Final = "text/event-stream"
"""The content type of a stream of server-sent events."""

_DATA: Final = b"data"


class EventReader:
    """Parser that yields the data of the events in a stream.

    An event of more than `limit` bytes is skipped as a whole, so that the memory of the parser is bounded. `skipped` is
    the number of skipped events.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self._line = bytearray()
        self._is_blank = True
        self._data: list[bytes] = []
        self._size = 0
        self._ended_in_return = False
        self._is_too_long = False
        self.skipped = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that the chunk completes. Events without data, such as comments, are skipped."""
        if not chunk:
            return
        was_half_a_line_end, self._ended_in_return = self._ended_in_return, chunk.endswith(b"\r")
        if was_half_a_line_end:
            chunk = chunk.removeprefix(b"\n")
        for line in chunk.splitlines(keepends=True):
            content = line.rstrip(b"\r\n")
            if len(content) == len(line):
                self._is_blank = False
                if self._fits(content):
                    self._line += content
            elif content or not self._is_blank:
                self._end_line(content)
            else:
                if self._data:
                    yield b"\n".join(self._data)
                    self._data.clear()
                self._size = 0
                self._is_too_long = False

    def _fits(self, part: bytes) -> bool:
        """Return whether the event is within the limit with the next part of its current line."""
        if not self._is_too_long and self._size + len(self._line) + len(part) > self._limit:
            self.skipped += 1
            self._is_too_long = True
            self._line.clear()
            self._data.clear()
        return not self._is_too_long

    def _end_line(self, rest: bytes) -> None:
        self._is_blank = True
        if not self._fits(rest):
            return
        # Most lines arrive in one chunk. The buffer then stays empty.
        line = bytes(self._line + rest) if self._line else rest
        self._line.clear()
        name, _, value = line.partition(b":")
        if name == _DATA:
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
