"""Cache of responses to repeated requests. Requests are compared byte for byte."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from store.llm_proxy.backends import Backend
from store.model_calls.json_values import Json


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A response as the backend sent it."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class AnswerCache:
    """The most recently used responses, whose bodies have at most `limit` bytes together; 0 disables the cache."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()

    def key(self, backend: Backend, path: str, body: bytes, request: Json, keys: Sequence[str]) -> bytes | None:
        """Return the cache key of a request, or None if the response must not be cached.

        Only responses at temperature 0 that are not streams are cached, and only if the cache is enabled.

        Args:
            backend: the backend of the call. The cache key includes the version of the backend's weights, because other
                weights generate other responses.
            path: the path of the request.
            body: the body that would be sent to the backend.
            request: the body that the client sent, parsed.
            keys: the client's API keys. Clients with different keys do not share responses.
        """
        is_cacheable = request.get("temperature") == 0 and not request.get("stream")
        if not self._limit or not is_cacheable:
            return None
        prefix = f"{backend.name}\n{backend.base_url}\n{backend.version}\n{path}\n"
        return hashlib.sha256(prefix.encode() + "\n".join(keys).encode() + b"\n\n" + body).digest()

    def get(self, key: bytes) -> CachedAnswer | None:
        """Return a cached response, or None."""
        cached = self._answers.get(key)
        if cached is not None:
            self._answers.move_to_end(key)
        return cached

    def put(self, key: bytes, cached: CachedAnswer) -> None:
        """Add a response, and remove the least recently used responses beyond the limit."""
        if len(cached.body) > self._limit:
            return
        self._size += len(cached.body) - len(self._answers[key].body if key in self._answers else b"")
        self._answers[key] = cached
        while self._size > self._limit:
            _, oldest = self._answers.popitem(last=False)
            self._size -= len(oldest.body)
