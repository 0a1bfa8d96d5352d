"""Cache of answers to repeated requests, which are compared byte for byte."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from store.llm_proxy.backends import Backend
from store.llm_proxy.parts import Json


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """An answer as the backend sent it."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class AnswerCache:
    """The most recently used answers, in at most `limit` bytes; 0 disables the cache."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()

    def key(self, backend: Backend, path: str, body: bytes, request: Json, keys: Sequence[str]) -> bytes | None:
        """Return the key of a request's answer; None if the answer may differ every time or is a stream.

        Args:
            backend: the backend that would answer; other weights have other answers.
            path: the path of the request.
            body: the body of the request, as it would be sent.
            request: the same body, parsed.
            keys: the client's API keys; clients do not share answers.
        """
        is_certain = request.get("temperature") == 0 and not request.get("stream")
        if not self._limit or not is_certain:
            return None
        place = f"{backend.name}\n{backend.base_url}\n{backend.version}\n{path}\n"
        return hashlib.sha256(place.encode() + "\n".join(keys).encode() + b"\n\n" + body).digest()

    def get(self, key: bytes) -> CachedAnswer | None:
        """Return a cached answer."""
        cached = self._answers.get(key)
        if cached is not None:
            self._answers.move_to_end(key)
        return cached

    def put(self, key: bytes, cached: CachedAnswer) -> None:
        """Add an answer, and remove the least recently used ones beyond the limit."""
        if len(cached.body) > self._limit:
            return
        self._size += len(cached.body) - len(self._answers[key].body if key in self._answers else b"")
        self._answers[key] = cached
        while self._size > self._limit:
            _, oldest = self._answers.popitem(last=False)
            self._size -= len(oldest.body)
