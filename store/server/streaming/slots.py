"""Limits on the number of open streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from store.errors import Unavailable

MAX_STREAMS: Final = 1000
MAX_STREAMS_PER_KEY: Final = 250
_RETRY_SECONDS: Final = 5.0


class StreamSlots:
    """The slots of the streams of one process.

    Args:
        total: the maximum number of open streams.
        per_key: the maximum number of open streams of one API key. This limit does not apply to requests without a key.
    """

    def __init__(self, total: int = MAX_STREAMS, per_key: int = MAX_STREAMS_PER_KEY) -> None:
        self.refused = 0
        """The number of streams that were refused so far."""
        self._total = total
        self._per_key = per_key
        self._open = 0
        self._by_key: Counter[str] = Counter()

    @contextmanager
    def take(self, key_id: str | None) -> Generator[None]:
        """Occupy a slot until the block ends.

        Args:
            key_id: the id of the API key of the request; None if the request has no key.

        Raises:
            Unavailable: all slots, or all slots of this key, are occupied.
        """
        reason: str | None = None
        if self._open >= self._total:
            reason = f"{self._open:,} streams are open, the most that this server allows (--max-streams)"
        elif key_id is not None and self._by_key[key_id] >= self._per_key:
            reason = (
                f"the key {key_id} has {self._per_key:,} open streams, the most that this server allows for one key"
                " (--max-streams-per-key)"
            )
        if reason is not None:
            self.refused += 1
            raise Unavailable(f"{reason}; close another stream", _RETRY_SECONDS)
        self._open += 1
        if key_id is not None:
            self._by_key[key_id] += 1
        try:
            yield
        finally:
            self._open -= 1
            if key_id is not None:
                self._by_key[key_id] -= 1
                if not self._by_key[key_id]:
                    del self._by_key[key_id]
