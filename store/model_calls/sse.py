"""Parser of server-sent events. The stream may arrive in chunks of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_DATA: Final = b"data"


class EventReader:
    """Parser that yields the data of the events in a stream. Its memory is bounded.

    An event of more than `limit` bytes is skipped as a whole. `skipped` is the number of skipped events.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._is_blank = True
        self._data: list[bytes] = []
        self._size = 0
        self._ended_in_return = False
        self._is_too_long = False
        self.skipped = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that the chunk completes."""
        if not chunk:
            return
        was_half_a_line_end, self._ended_in_return = self._ended_in_return, chunk.endswith(b"\r")
        if was_half_a_line_end:
            chunk = chunk.removeprefix(b"\n")
        for line in chunk.splitlines(keepends=True):
            bare = line.rstrip(b"\r\n")
            self._extend(bare)
            if len(bare) < len(line):
                event = self._end_line()
                if event is not None:
                    yield event

    def _extend(self, part: bytes) -> None:
        if not part:
            return
        self._is_blank = False
        if not self._is_too_long and self._size + len(self._line) + len(part) > self._limit:
            self.skipped += 1
            self._is_too_long = True
            self._line.clear()
            self._data.clear()
        if not self._is_too_long:
            self._line += part

    def _end_line(self) -> bytes | None:
        if not self._is_blank:
            name, _, value = bytes(self._line).partition(b":")
            if name == _DATA:
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
            self._line.clear()
            self._is_blank = True
            return None
        event = b"\n".join(self._data) if self._data else None
        self._data.clear()
        self._size = 0
        self._is_too_long = False
        return event
