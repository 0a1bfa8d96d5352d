"""Protection against requests that change data and come from pages of other origins.

A server on loopback without keys trusts every program on the machine. Browsers are such programs, and they run scripts
of unknown sites. Two headers identify these requests: `Origin` contains the origin of the page, and `Host` the name
under which the page reached the server.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from store.errors import Forbidden, StoreError
from store.server.auth.keyring import KeyRing
from store.server.call import headers_of
from store.server.errors import refusal
from store.server.routing import refuse

_NAMES: Final = 64
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginLayer:
    """An ASGI layer that refuses changes by pages of other origins, and requests under a foreign host name.

    Args:
        app: the next layer.
        origins: origins whose pages may change data; `*` for all. Their hosts are accepted as names of this server.
        is_local: whether the server listens only on loopback. If so, it accepts only `localhost`, IP
            addresses and the hosts of `origins` as its name.
        ring: the keys. While keys are required, any name is accepted, because a page of another site has no key.
        names: accepted values of `Host`, to which this layer adds. Empty bytes stand for a missing header.
    """

    def __init__(
        self,
        app: ASGIApp,
        origins: Sequence[str] = (),
        *,
        is_local: bool = False,
        ring: KeyRing | None = None,
        names: set[bytes] | None = None,
    ) -> None:
        self._app = app
        self._allowed = frozenset(origin.lower() for origin in origins)
        self._hosts = frozenset(_host(urlsplit(origin).netloc) for origin in origins)
        self._is_local = is_local
        self._ring = ring
        self._names = set[bytes]() if names is None else names
        self._names.add(b"")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass on a request, or refuse it."""
        if scope["type"] == "http":
            headers = headers_of(scope)
            # This is the usual request: it does not come from a browser, and its host name was accepted before.
            if b"origin" not in headers and (not self._is_local or headers.get(b"host", b"") in self._names):
                return self._app(scope, receive, send)
        return self._judge(scope, receive, send)

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            try:
                await self._check(scope)
            except StoreError as error:
                await refuse(scope, receive, send, refusal(error))
                return
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        headers = headers_of(scope)
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        # The stream layer checks the origin of a WebSocket.
        if origin and scope["type"] == "http" and scope["method"] not in _READS:
            self._check_origin(origin.decode("latin-1").lower(), host.decode("latin-1").lower())
        if self._is_local and host:
            await self._check_host(host.decode("latin-1"))

    def _check_origin(self, origin: str, host: str) -> None:
        if "*" in self._allowed or origin in self._allowed or (host and origin.partition("://")[2] == host):
            return
        raise Forbidden(
            f"pages of {origin[:200]} must not change data on this server",
            "to allow them, start the server with --cors-origin",
        )

    async def _check_host(self, given: str) -> None:
        """Refuse a host name that another site may have assigned to this machine (DNS rebinding)."""
        host = _host(given)
        if _is_ours(host) or host in self._hosts or "*" in self._allowed:
            # The set is limited, because clients may send any number of different names.
            if len(self._names) < _NAMES:
                self._names.add(given.encode("latin-1"))
            return
        if self._ring is not None:
            await self._ring.refresh()
            if self._ring.is_required:
                return
        raise Forbidden(
            f"{host[:200]!r} is not a name of this machine, and requests must use such a name if no keys are required",
            "use 127.0.0.1 or localhost in the URL, allow its origin with --cors-origin, or run rollbook keys enforce",
        )


def _host(netloc: str) -> str:
    """Return a host without its port."""
    host = netloc.rpartition("@")[2].lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


@lru_cache(64)
def _is_ours(host: str) -> bool:
    # Other names need a DNS lookup, whose answer another site may control.
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
