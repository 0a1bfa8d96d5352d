"""Who asks, and whether they may: an ASGI layer that lets nobody past without a key, once there is one."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Awaitable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from store.errors import Forbidden, StoreError, Unauthorized
from store.server.auth.admission import KEY_PROTOCOL, Admission
from store.server.auth.keyring import KeyRing
from store.server.auth.roles import ACCESS, OF_ALL_PARTITIONS, WEBSOCKET, Access, may
from store.server.errors import Headers, refusal
from store.server.partitions import place_of
from store.server.routes import dashboard
from store.server.routing import Operation, RouteIndex, StoreRoute, answer, path_within
from store.server.streaming import paths as stream_paths
from store.sql.api_keys import Key
from store.wire.paths import PREFIX

logger = logging.getLogger("store.server")


class AuthLayer:
    """An ASGI layer that lets in whoever may, and answers everybody else.

    Args:
        app: what is behind it.
        ring: the keys that count.
        root_name: the partition at the root.
        operations: what the route table answers.
    """

    def __init__(
        self, app: ASGIApp, ring: KeyRing, root_name: str, operations: Sequence[Operation | StoreRoute]
    ) -> None:
        self._app = app
        self._ring = ring
        self._root_name = root_name
        self._routes = RouteIndex(operations)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let in, or refuse."""
        # As nearly always while there are no keys. What lies below this prefix notes its route by itself.
        if self._ring.is_idle and scope["type"] == "http" and scope["path"].startswith(PREFIX):
            return self._app(scope, receive, send)
        return self._judge(scope, receive, send)

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            try:
                known = await self._admit(scope)
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
            if not known:
                await refuse(scope, receive, send, _nothing_there(scope))
                return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> bool:
        """Let in a request that may; return False for one that asks for what has no entry in the table.

        Raises:
            Unauthorized: no key, or none that counts.
            Forbidden: the key may not.
            Unavailable: keys cannot be read.
        """
        partition, root = place_of(scope)
        method, path = WEBSOCKET if scope["type"] == "websocket" else scope["method"], path_within(scope, root)
        if method == "HEAD" and dashboard.is_page(path):
            method = "GET"
        template, access = self._needed(method, path)
        if access is not None:
            # For the counts and the log, should it end here.
            scope["rollbook.route"] = template
        if access == "open" and partition is None:
            return True
        if not await self._ring.are_demanded():
            return True
        if access is None:
            # Nobody learns without a key what there is not.
            self._ring.find(_sent(scope))
            return False
        scope["rollbook.admission"] = admission(
            scope, self._ring, method, template, self._root_name if partition is None else partition
        )
        return True

    def _needed(self, method: str, path: str) -> tuple[str, Access | None]:
        """Return the template of a path, and what it asks for; by the same table as the one that will answer."""
        path = dashboard.without_twin(path)
        operation = self._routes.find(method, path, {})
        if operation is None and method == "GET" and dashboard.is_page(path):
            # Of a page that there is not, a page tells whoever may see any.
            path = dashboard.LIVE
        template = _followed(method, path) if operation is None else operation.path
        return template, ACCESS.get((method, template))


def _followed(method: str, path: str) -> str:
    """Return the template of what is followed at a path; the path itself for what is no stream."""
    found = stream_paths.socket(path) if method == WEBSOCKET else None
    return path if found is None else found.template


def admission(scope: Scope, ring: KeyRing, method: str, template: str, partition: str) -> Admission:
    """Return whom a request is from that asks for what has an entry in the table, while a key is demanded.

    Raises:
        Unauthorized: no key, or none that counts.
        Forbidden: the key may not.
    """
    key = ring.find(_sent(scope))
    _check_role(key, method, template, ACCESS[method, template])
    _check_partition(key, partition, template)
    return Admission(key, ring)


def _check_role(key: Key, method: str, template: str, access: Access) -> None:
    needed = "reader" if access == "open" else access
    if not may(key.role, needed):
        raise Forbidden(
            f"the key {key.key_id} has the role {key.role}, and {method} {template} asks for {needed}",
            f"use a key with the role {needed}",
        )


def _check_partition(key: Key, partition: str, template: str) -> None:
    if key.partition is None:
        return
    if template in OF_ALL_PARTITIONS:
        raise Forbidden(f"the key {key.key_id} is one of a partition, and {template} tells of all", "use one of all")
    if key.partition != partition:
        raise Forbidden(f"the key {key.key_id} is good for the partition {key.partition!r} alone")


# -- what was sent ---------------------------------------------------------------------------------------------------


def _sent(scope: Scope) -> str:
    """Return the key in a request.

    Raises:
        Unauthorized: there is none, there are several, or it is of another scheme.
    """
    found: list[str] = []
    for name, value in scope["headers"]:
        if name == b"authorization":
            found.append(_of_authorization(value))
        elif name == b"x-api-key":
            found.append(value.decode("latin-1"))
        elif name == b"sec-websocket-protocol" and scope["type"] == "websocket":
            found += _of_protocols(value)
    if not found:
        found += _of_cookie(scope)
    if not found:
        raise Unauthorized("no key was sent")
    if len(found) > 1:
        raise Unauthorized(f"{len(found)} keys were sent; send one")
    return found[0]


def _of_cookie(scope: Scope) -> list[str]:
    """Return the key that a browser keeps, if it may be used: what changes something has to name the page it is from.

    Raises:
        Unauthorized: it has to, and does not.
    """
    text = dashboard.key_of(scope)
    if text is None:
        return []
    names = {name for name, value in scope["headers"] if value}
    if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"} and b"origin" not in names:
        raise Unauthorized("the key in a cookie is good for pages alone, and no Origin was sent; send it as a header")
    return [text]


def _is_visit(scope: Scope) -> bool:
    _, root = place_of(scope)
    path = path_within(scope, root)
    is_page = path == "/" or (dashboard.is_page(path) and not path.endswith(".json"))
    return is_page and dashboard.asks_to_log_in(scope)


def _of_authorization(value: bytes) -> str:
    scheme, _, rest = value.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return rest.strip().decode("latin-1")
        case b"basic":
            # What clients send whose URL may hold a password, and that know no other way.
            return _password(rest.strip())
        case _:
            raise Unauthorized("the Authorization is none that is understood here: `Bearer <key>`")


def _password(encoded: bytes) -> str:
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2].decode("latin-1")
    except (binascii.Error, ValueError):
        raise Unauthorized("the Authorization is not Basic, as it says") from None


def _of_protocols(value: bytes) -> list[str]:
    offered = [each.strip() for each in value.decode("latin-1").split(",")]
    return [each.removeprefix(KEY_PROTOCOL) for each in offered if each.startswith(KEY_PROTOCOL)]


# -- what is answered ------------------------------------------------------------------------------------------------


def _nothing_there(scope: Scope) -> tuple[int, bytes, Headers]:
    # As where no key is needed.
    if scope["type"] == "websocket" or scope["method"] in {"GET", "HEAD"}:
        return 404, b'{"detail":"Not Found"}', []
    return 405, b'{"detail":"Method Not Allowed"}', []


async def refuse(scope: Scope, receive: Receive, send: Send, answered: tuple[int, bytes, Headers]) -> None:
    """Answer a request, or the handshake of a WebSocket, with a refusal."""
    status, body, headers = answered
    if scope["type"] == "http":
        # What was not read stands between this answer and the next request.
        unread = any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"])
        await answer(send, status, body, [*headers, (b"connection", b"close")] if unread else headers)
        return
    logger.info("refused to open a WebSocket: %d %s", status, body.decode())
    await receive()  # "websocket.connect"
    # Before it was accepted: the handshake is answered with 403, whatever the reason.
    await send({"type": "websocket.close", "code": 1008})
