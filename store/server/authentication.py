"""Authentication: an ASGI layer that checks the keys of requests and refuses a request without a required key."""

from __future__ import annotations

import base64
import binascii
import logging
import time
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from store.errors import Forbidden, StoreError, Unauthorized
from store.runtime import context
from store.runtime.clock import to_seconds
from store.server.auth.admission import KEY_PROTOCOL, Admission
from store.server.auth.keyring import KeyRing
from store.server.errors import Headers, refusal
from store.server.partitions import place_of
from store.server.routes import dashboard
from store.server.routing import WEBSOCKET, Protected, RouteIndex, path_within, refuse
from store.sql.api_keys import ROLES, Key, Role, key_id_in
from store.wire.paths import PREFIX

logger = logging.getLogger("store.server")

_ANNOUNCED_SECONDS: Final = 60.0
_ANNOUNCED_CLIENTS: Final = 1000

OF_ALL_PARTITIONS: Final = frozenset({"/metrics"})
"""The paths whose responses are about all partitions, and which therefore require a key for all partitions."""

_RANKS: Final = {role: rank for rank, role in enumerate(ROLES)}


def may(role: Role, needed: Role) -> bool:
    """Return whether a role includes the needed role. A role that is not in `ROLES` includes no role."""
    return _RANKS.get(role, -1) >= _RANKS[needed]


class AuthLayer:
    """An ASGI layer that passes on permitted requests, and refuses all other requests before reading their body.

    A request that matches none of `routes` gets the response 404 or 405, even with a valid key.

    Args:
        app: the next layer.
        ring: the valid keys.
        root_name: the partition at the root.
        routes: all routes, with the roles that they require.
    """

    def __init__(self, app: ASGIApp, ring: KeyRing, root_name: str, routes: Iterable[Protected]) -> None:
        self._app = app
        self._ring = ring
        self._root_name = root_name
        self._routes = RouteIndex(routes)
        self._announcements = Announcements()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass on a request, or refuse it."""
        # While there are no keys, most requests are passed on here. Routes below `PREFIX` set `rollbook.route`
        # themselves.
        if self._ring.is_idle and scope["type"] == "http" and scope["path"].startswith(PREFIX):
            return self._app(scope, receive, send)
        return self._judge(scope, receive, send)

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            try:
                has_route = await self._admit(scope)
            except Unauthorized as error:
                if _is_visit(scope):
                    await dashboard.show_login(scope, send)
                    return
                await refuse(scope, receive, send, refusal(error))
                return
            except StoreError as error:
                if _is_visit(scope):
                    await dashboard.show_refusal(scope, send, error)
                    return
                await refuse(scope, receive, send, refusal(error))
                return
            if not has_route:
                await refuse(scope, receive, send, _nothing_there(scope))
                return
        admitted: Admission | None = scope.get("rollbook.admission")
        if admitted is None:
            await self._app(scope, receive, send)
            return
        acting = context.actor.set(admitted.actor)
        try:
            await self._app(scope, receive, send)
        finally:
            context.actor.reset(acting)

    async def _admit(self, scope: Scope) -> bool:
        """Check the key of a request. Return False if keys are required and the request has no route.

        Raises:
            Unauthorized: there is no key, or the key is not valid.
            Forbidden: the key does not permit the request.
            Unavailable: the keys cannot be read.
        """
        partition, root = place_of(scope)
        method, path = WEBSOCKET if scope["type"] == "websocket" else scope["method"], path_within(scope, root)
        if method == "HEAD":
            method = "GET"
        route = self._find(method, path)
        if route is not None:
            # The metrics and the log need the route if the request ends here.
            scope["rollbook.route"] = route.path
            if route.role == "open" and partition is None:
                return True
        await self._ring.refresh()
        if not self._ring.is_used:
            return True
        if route is None:
            # The key is checked first, so a client without a key does not learn which paths exist.
            _check_sent(scope, self._ring)
            return not self._ring.is_required
        admitted = admission(scope, self._ring, route, self._root_name if partition is None else partition)
        if admitted is not None:
            scope["rollbook.admission"] = admitted
        elif (required_from := self._ring.required_from) is not None:
            self._announcements.announce(scope, required_from)
        return True

    def _find(self, method: str, path: str) -> Protected | None:
        path = dashboard.without_twin(path)
        route = self._routes.find(method, path, {})
        if route is None and method == "GET" and dashboard.is_page(path):
            # Every client with access to pages sees the page that reports a missing page.
            route = self._routes.find(method, dashboard.LIVE, {})
        return route


def admission(scope: Scope, ring: KeyRing, route: Protected, partition: str) -> Admission | None:
    """Return the admission of a request for a route; None if no key was sent and none is required.

    Raises:
        Unauthorized: the key is missing or not valid.
        Forbidden: the key does not permit the request.
    """
    key = _check_sent(scope, ring)
    if key is None:
        return None
    needed = "reader" if route.role == "open" else route.role
    if not may(key.role, needed):
        raise Forbidden(
            f"the key {key.key_id} has the role {key.role}, and {route.method} {route.path} requires the role {needed}",
            f"use a key with the role {needed}",
        )
    if key.partition is not None and route.path in OF_ALL_PARTITIONS:
        raise Forbidden(
            f"the key {key.key_id} is for one partition, and {route.path} is about all of them", "use a key for all"
        )
    if key.partition not in {None, partition}:
        raise Forbidden(f"the key {key.key_id} is valid for the partition {key.partition!r} only")
    return Admission(key)


def _check_sent(scope: Scope, ring: KeyRing) -> Key | None:
    """Return the valid key in a request; None if no key was sent and none is required.

    Raises:
        Unauthorized: the key is not valid, or a required key is missing.
    """
    text = _key_text(scope)
    if text is None:
        if ring.is_required:
            raise Unauthorized("no key was sent")
        return None
    # The id is stored before the check, so that the log entry of a refused request contains it.
    scope["rollbook.key_id"] = key_id_in(text)
    return ring.find(text)


def _key_text(scope: Scope) -> str | None:
    """Return the text of the key in a request; None if there is none.

    Raises:
        Unauthorized: there are several keys, or the scheme of the key is not supported.
    """
    keys: list[str] = []
    for name, value in scope["headers"]:
        if name == b"authorization":
            keys.append(_authorization_key(value))
        elif name == b"x-api-key":
            keys.append(value.decode("latin-1"))
        elif name == b"sec-websocket-protocol" and scope["type"] == "websocket":
            protocols = (protocol.strip() for protocol in value.decode("latin-1").split(","))
            keys += [text.removeprefix(KEY_PROTOCOL) for text in protocols if text.startswith(KEY_PROTOCOL)]
    if len(keys) > 1:
        raise Unauthorized(f"{len(keys)} keys were sent; send one")
    return keys[0] if keys else _cookie_key(scope)


def _cookie_key(scope: Scope) -> str | None:
    """Return the key in a browser's cookie. A request that changes data must also have an `Origin` header.

    Raises:
        Unauthorized: a request that changes data has no `Origin`.
    """
    text = dashboard.key_of(scope)
    if text is None or scope["type"] != "http" or scope["method"] in {"GET", "HEAD"}:
        return text
    if not any(name == b"origin" and value for name, value in scope["headers"]):
        raise Unauthorized(
            "a key in a cookie is valid for pages only, and no Origin was sent; send the key as a header"
        )
    return text


def _is_visit(scope: Scope) -> bool:
    _, root = place_of(scope)
    path = path_within(scope, root)
    is_page = path == "/" or (dashboard.is_page(path) and not path.endswith(".json"))
    return is_page and dashboard.is_page_visit(scope)


def _authorization_key(value: bytes) -> str:
    scheme, _, credentials = value.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return credentials.strip().decode("latin-1")
        case b"basic":
            # Some clients can send a key only as the password of a URL.
            try:
                return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2].decode("latin-1")
            except (binascii.Error, ValueError):
                raise Unauthorized("the Basic Authorization header cannot be decoded") from None
        case _:
            raise Unauthorized("the scheme of the Authorization header is not supported; send `Bearer <key>`")


class Announcements:
    """Warnings to clients without a key that keys will be required, in response headers and in the log."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def announce(self, scope: Scope, required_from: int) -> None:
        """Add a warning to the response headers, and log it at most once per minute and client."""
        moment = datetime.fromtimestamp(to_seconds(required_from), UTC).isoformat(timespec="seconds")
        text = f"this server requires an API key from {moment}, and the request has none"
        scope["rollbook.warning"] = f'299 rollbook "{text}"'.encode()
        client = (scope.get("client") or ("unknown",))[0]
        now = time.monotonic()
        if now - self._logged.get(client, float("-inf")) < _ANNOUNCED_SECONDS:
            return
        if len(self._logged) >= _ANNOUNCED_CLIENTS:
            self._logged.clear()
        self._logged[client] = now
        logger.warning("%s", text, extra={"client": client, "path": scope["path"]})


def _nothing_there(scope: Scope) -> tuple[int, bytes, Headers]:
    # A server without keys sends the same responses.
    if scope["type"] == "websocket" or scope["method"] in {"GET", "HEAD"}:
        return 404, b'{"detail":"Not Found"}', []
    return 405, b'{"detail":"Method Not Allowed"}', []
