"""Protection against requests that change data and come from pages of other origins.

A server on loopback without keys trusts every program on the machine. Browsers are such programs, and they run scripts
of unknown sites. Two headers identify the requests of such scripts: `Origin` contains the origin of the page, and
`Host` contains the name under which the page reached the server.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Collection, Sequence
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
_PORTS: Final = {"http": 80, "https": 443}
_SCHEMES: Final = {"ws": "http", "wss": "https"}
_ORIGIN: Final = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(?::([0-9]{1,5}))?")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginLayer:
    """An ASGI layer that refuses changes by pages of other origins, and requests under a foreign host name.

    Args:
        app: the next layer.
        origins: origins whose pages may change data; `*` for all. The hosts of these origins are accepted as names of
            this server.
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
            # The usual request does not come from a browser, and its host name was accepted before.
            if b"origin" not in headers and (not self._is_local or headers.get(b"host", b"") in self._names):
                return self._app(scope, receive, send)
        return self._judge(scope, receive, send)

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            headers = headers_of(scope)
            host = headers.get(b"host", b"")
            try:
                # The stream layer checks the origin of a WebSocket.
                if (
                    scope["type"] == "http"
                    and scope["method"] not in _READS
                    and not may_come_from(scope, self._allowed)
                ):
                    raise _refused(headers)
                if self._is_local and host:
                    await self._check_host(host.decode("latin-1"))
            except StoreError as error:
                await refuse(scope, receive, send, refusal(error))
                return
        await self._app(scope, receive, send)

    async def _check_host(self, netloc: str) -> None:
        """Refuse a host name that another site may have assigned to this machine (DNS rebinding)."""
        host = _host(netloc)
        if _is_ours(host) or host in self._hosts or "*" in self._allowed:
            # The set is limited, because clients may send any number of different names.
            if len(self._names) < _NAMES:
                self._names.add(netloc.encode("latin-1"))
            return
        if self._ring is not None:
            await self._ring.refresh()
            if self._ring.is_required:
                return
        raise Forbidden(
            f"{host[:200]!r} is not a name of this machine, and requests must use such a name if no keys are required",
            "use 127.0.0.1 or localhost in the URL, allow its origin with --cors-origin, or run rollbook keys enforce",
        )


def may_come_from(scope: Scope, allowed: Collection[str]) -> bool:
    """Return whether a request comes from no page, from a page of this server, or from a page of an allowed origin.

    Args:
        scope: the request. If a trusted proxy reported a scheme, the request has this scheme.
        allowed: the allowed origins, in lower case; `*` for all.
    """
    headers = headers_of(scope)
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    if not origin or "*" in allowed or origin in allowed:
        return True
    scheme = _SCHEMES.get(scope["scheme"], scope["scheme"])
    server = _parts_of(f"{scheme}://{headers.get(b'host', b'').decode('latin-1').lower()}")
    return server is not None and _parts_of(origin) == server


def _parts_of(origin: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of an origin; None if it is malformed, or its scheme is not `http` or `https`."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return None
    scheme, host, port = match.groups()
    return scheme, host, int(port) if port else _PORTS[scheme]


def _refused(headers: dict[bytes, bytes]) -> Forbidden:
    origin, host = headers[b"origin"].decode("latin-1").lower(), headers.get(b"host", b"").decode("latin-1").lower()
    cure = "to allow them, start the server with --cors-origin"
    if origin == f"https://{host}":
        cure += "; if a proxy in front of the server ends TLS, let it send X-Forwarded-Proto"
    return Forbidden(f"pages of {origin[:200]} must not change data on this server", cure)


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
