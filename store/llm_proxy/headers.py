"""Selection of the headers that are forwarded between client and backend, and the API keys in these headers."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers

from store.llm_proxy.addresses import OWN_HEADERS, Endpoint
from store.llm_proxy.backends import Backend

# RFC 9110 §7.6.1: these headers, and the headers listed in `Connection`, belong to one connection.
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"proxy-authenticate", "proxy-authorization", "proxy-connection"}
)
_KEYS: Final = frozenset({"authorization", "x-api-key", "api-key"})
# Cookies belong to one client and one origin. The client's `accept-encoding` is replaced by `identity`, because the
# proxy must be able to read the response.
_NOT_SENT: Final = _HOP_BY_HOP | OWN_HEADERS | {"host", "content-length", "expect", "cookie", "accept-encoding"}
_SHORTEST_SECRET: Final = 8
SHOULD_RETRY: Final = b"x-should-retry"
"""The header that tells the clients of OpenAI and Anthropic whether to retry a failed call."""


def to_backend(headers: Headers, backend: Backend, endpoint: Endpoint, *, passes_keys: bool) -> list[tuple[str, str]]:
    """Return the headers of a client's request that are forwarded to a backend.

    Args:
        headers: the client's headers.
        backend: the backend. If the backend has a key, this key replaces the client's key in the same header.
        endpoint: the endpoint of the call. It determines the header for the backend's key if the client sent no key.
        passes_keys: whether to forward the client's key to a backend without a key.
    """
    dropped = _NOT_SENT | _listed(headers.getlist("connection"))
    if backend.api_key is not None or not passes_keys:
        dropped |= _KEYS
    forwarded = [(name, value) for name, value in headers.items() if name not in dropped]
    forwarded.append(("accept-encoding", "identity"))
    if backend.api_key is not None:
        if "x-api-key" in headers or (endpoint.is_anthropic and "authorization" not in headers):
            forwarded.append(("x-api-key", backend.api_key))
        else:
            forwarded.append(("authorization", f"Bearer {backend.api_key}"))
    return forwarded


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a backend's response that are forwarded to the client.

    The order and duplicates of the headers are kept; names are in lower case.
    """
    lowered = [(name.lower(), value) for name, value in headers]
    listed = [value.decode("latin-1") for name, value in lowered if name == b"connection"]
    dropped = {name.encode("latin-1") for name in _HOP_BY_HOP | _listed(listed)}
    return [(name, value) for name, value in lowered if name not in dropped]


def _listed(connection: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for value in connection for name in value.split(","))


def keys_of(headers: Headers) -> list[str]:
    """Return the API keys that the client sent."""
    return [headers[name].removeprefix("Bearer ").strip() for name in sorted(_KEYS) if name in headers]


def has_key(headers: Headers, key: str) -> bool:
    """Return whether a client sent this key."""
    return any(hmac.compare_digest(client_key.encode(), key.encode()) for client_key in keys_of(headers))


def secrets(*keys: str | None) -> tuple[str, ...]:
    """Return the keys that must not appear in a span.

    Keys of fewer than eight characters, such as `dummy`, are left out, because such keys are placeholders.
    """
    return tuple(key for key in keys if key is not None and len(key) >= _SHORTEST_SECRET)
