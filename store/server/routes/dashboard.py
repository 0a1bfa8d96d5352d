"""The dashboard over HTTP: the pages at `/ui/…` of each partition, their files, the login with a key, and live updates.

A page cannot set the header in which programs send a key. So the login page stores the key in a cookie. Scripts cannot
read this cookie, and pages of other sites do not send it (`SameSite=Strict`). If a request with the cookie changes
data, the request must also have an `Origin` header, which shows that a page of this server sent the request (see
`store.server.authentication`).
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote

import orjson
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from store.dashboard import rendering
from store.dashboard.page import Done, File, PageContent, Route
from store.dashboard.pages import live
from store.dashboard.request import PageRequest, Visitor
from store.dashboard.site import HAS_SEARCH, NAVIGATION, ROUTES
from store.errors import Forbidden, Invalid, StoreError, Unauthorized, Unsupported
from store.interface.store import Store
from store.models.prices import PriceTable
from store.runtime import context
from store.server.auth.admission import Admission, while_admitted
from store.server.auth.keyring import KeyRing
from store.server.call import Call, ClientLeft, headers_of
from store.server.errors import Headers, UnknownPartition, refusal
from store.server.partitions import Partitions
from store.server.pending import Parked
from store.server.process.scheduler import Scheduler
from store.server.routing import LayerRoute, RouteIndex, path_within
from store.sql.database import database_of
from store.webhooks.management import WebhookService
from store.wire.errors import status_of

logger = logging.getLogger("store.server")

ROOT: Final = "/ui"
LOGIN, LOGOUT, STATIC, LIVE = "/ui/login", "/ui/logout", "/ui/static/{version}/{name}", "/ui/live"
COOKIE: Final = "rollbook_key"
MESSAGE: Final = "rollbook_told"
_IN_URLS: Final = "%/?#[]@!$&'()*+,;=:~"
"""The characters of a URL that are not escaped: characters with a meaning in URLs, and `%`, which begins an escape."""
_THEMES: Final = ("auto", "light", "dark")
_MAX_FORM: Final = 64 * 1024
_GZIP_FROM: Final = 1024

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


_OWN: Final = (
    LayerRoute("GET", LOGIN, "open"),
    LayerRoute("POST", LOGIN, "open"),
    LayerRoute("POST", LOGOUT, "open"),
    LayerRoute("GET", STATIC, "open"),
    LayerRoute("GET", LIVE, "reader"),
)
DASHBOARD_ROUTES: Final[tuple[LayerRoute | Route, ...]] = (*_OWN, *ROUTES)
"""All routes of the dashboard, with the roles that they require."""


def is_page(path: str) -> bool:
    """Return whether a path within a partition belongs to the dashboard."""
    return path == ROOT or path.startswith("/ui/")


def without_twin(path: str) -> str:
    """Return the path of a page without the `.json` of its JSON twin."""
    if path == "/ui/overview.json":
        return "/ui/"
    return path.removesuffix(".json") if is_page(path) and not path.startswith("/ui/static/") else path


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    media_type: str = "text/html; charset=utf-8"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class DashboardLayer:
    """An ASGI layer that answers requests for pages, and passes on all other requests.

    `PartitionLayer` must be an outer layer.

    Args:
        app: the next layer.
        parked: the waiting calls, which include the streams of pages.
        partitions: the partitions to which pages link.
        ring: the keys of visitors; None if no keys are required.
        scheduler: the scheduler of the server's operations; None if the server runs no operations.
        prices: the prices from which pages compute costs.
        webhook_service: adds, tests and removes webhooks; None if the server sends no webhooks.
        is_read_only: whether pages offer no actions.
    """

    def __init__(
        self,
        app: ASGIApp,
        parked: Parked,
        partitions: Partitions,
        ring: KeyRing | None = None,
        *,
        scheduler: Scheduler | None = None,
        prices: PriceTable | None = None,
        webhook_service: WebhookService | None = None,
        is_read_only: bool = False,
    ) -> None:
        self._app = app
        self._parked = parked
        self._partitions = partitions
        self._ring = ring
        self._scheduler = scheduler
        self._prices = prices
        self._webhook_service = webhook_service
        self._is_read_only = is_read_only
        self._routes = RouteIndex(DASHBOARD_ROUTES)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request for a page, or pass on the request."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        path = path_within(scope, scope.get("root_path", ""))
        if path == "/" and _wants_html(scope) and scope["method"] == "GET":
            return _send(scope, send, _redirect(f"{scope.get('root_path', '')}/ui/"))
        if not is_page(path):
            return self._app(scope, receive, send)
        return self._page(scope, receive, send, path)

    async def _page(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        call = Call(scope, receive, {})
        try:
            answered = await self._answer(call, send, path)
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001 - no other layer can answer; `refusal` logs a bug
            status, body, headers = refusal(error, own_status=True)
            if path.endswith(".json"):
                answered = _Answer(status, body, "application/json", tuple(headers))
            elif isinstance(error, StoreError):
                advice = str(getattr(error, "hint", None) or "")
                answered = self._error_page(call, path, status, str(error), advice, error)
            else:
                answered = self._error_page(call, path, status, "Something went wrong here", "See the server's log.")
        if answered is not None:
            await _send(scope, send, answered)

    async def _answer(self, call: Call, send: Send, path: str) -> _Answer | None:
        scope, method = call.scope, "GET" if call.scope["method"] == "HEAD" else call.scope["method"]
        if path == ROOT:
            return _redirect(f"{scope.get('root_path', '')}/ui/")
        requested, path = path, without_twin(path)
        route = self._routes.find(method, path, call.ids)
        if route is None:
            return self._error_page(call, requested, 404, "There is no such page", "It may belong to another version.")
        scope["rollbook.route"] = route.path
        if isinstance(route, Route):
            return await self._view(call, route, path, as_json=requested != path)
        match (method, route.path):
            case ("GET", "/ui/static/{version}/{name}"):
                return self._static(call)
            case ("GET", "/ui/login"):
                return await self._login_page(call)
            case ("POST", "/ui/login"):
                return await self._login(call)
            case ("POST", "/ui/logout"):
                return _redirect(LOGIN, _cookie(COOKIE, "", scope, seconds=0))
            case _:
                await self._live(call, send)
                return None

    async def _view(self, call: Call, route: Route, path: str, *, as_json: bool) -> _Answer:
        params = await _form(call) if route.method == "POST" else _params(call.scope["query_string"])
        request = self._page_request(call, path, params, is_twin=as_json)
        if route.method == "POST" and self._is_read_only:
            raise Unsupported("actions", "this dashboard is read-only; use the dashboard of `rollbook serve`")
        if route.method == "POST" and request.is_read_only:
            raise Unsupported("actions", "this partition is a backup or an archive, which is only read")
        # The position is read first, so that the page also receives updates of events that are appended during this
        # request.
        position = await request.store.core.position()
        # The log records the visitor as the actor of an action.
        acting = context.actor.set(request.visitor.actor if route.method == "POST" else None)
        try:
            answered = await route.view(request)
        finally:
            context.actor.reset(acting)
        match answered:
            case Done(location, message):
                return _redirect(
                    location, *([_cookie(MESSAGE, quote(message), call.scope, seconds=60)] if message else [])
                )
            case File(name, body, media_type, headers):
                disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}".encode()
                return _Answer(200, body, media_type, ((b"content-disposition", disposition), *headers))
            case PageContent() if as_json:
                return _Answer(answered.status, rendering.json(answered), "application/json")
            case PageContent():
                return self._drawn(call, answered, request, position=position)

    def _drawn(self, call: Call, page: PageContent, request: PageRequest, **frame: Any) -> _Answer:
        message = unquote(_cookies(call.scope).get(MESSAGE, ""))
        body = rendering.html(page, request, navigation=NAVIGATION, has_search=HAS_SEARCH, message=message, **frame)
        forget = (_cookie(MESSAGE, "", call.scope, seconds=0),) if message else ()
        return _Answer(page.status, body, headers=forget)

    def _page_request(
        self, call: Call, path: str, params: Mapping[str, list[str]], *, is_twin: bool = False
    ) -> PageRequest:
        scope = call.scope
        store = database_of(call.store)
        if store is None:
            raise Unsupported("the dashboard", "the store that is served here is not a Rollbook database")
        admission: Admission | None = scope.get("rollbook.admission")
        visitor = Visitor()
        partitions = [name for name, _ in self._partitions.open_stores()]
        if admission is not None:
            visitor = Visitor(admission.key.role, f"key:{admission.key.key_id}", has_key=True)
            if admission.key.partition is not None:
                partitions = [admission.key.partition]
        theme = _cookies(scope).get("rollbook_theme", "auto")
        return PageRequest(
            store,
            scope.get("root_path", ""),
            scope["rollbook.partition"],
            path,
            call.ids,
            params,
            visitor,
            is_read_only=self._is_read_only or store.core.read_only,
            partitions=partitions,
            theme=theme if theme in _THEMES else "auto",
            is_twin=is_twin,
            extra={
                "keys_url": None if self._ring is None else self._ring.url,
                "key_partition": None if admission is None else admission.key.partition,
                "scheduler": self._scheduler,
                "prices": self._prices,
                "webhooks": self._webhook_service,
                "open_partition": partial(self._open_partition, admission),
                "limits": self._partitions.quotas.limits(scope["rollbook.partition"]),
            },
        )

    @asynccontextmanager
    async def _open_partition(self, admission: Admission | None, name: str) -> AsyncGenerator[Store]:
        """Provide a partition to a visitor.

        Raises:
            Forbidden: the key of the visitor is for another partition.
            NotFound: the partition does not exist.
        """
        key_partition = None if admission is None else admission.key.partition
        if key_partition not in {None, name}:
            raise Forbidden(f"this key is for the partition {key_partition} only")
        try:
            async with self._partitions.use(name) as store:
                yield store
        except UnknownPartition as unknown:
            raise unknown.error from None

    def _error_page(
        self, call: Call, path: str, status: int, text: str, advice: str, error: StoreError | None = None
    ) -> _Answer:
        """Return the page of an error. For an invalid parameter, it links to the requested page without it."""
        params = _params(call.scope["query_string"]) if call.scope["method"] == "GET" else {}
        field = error.field if isinstance(error, Invalid) and error.field in params else None
        values = {"error": text, "advice": advice, "status": status, "field": field}
        page = PageContent("error.html", values, text, status)
        if path.endswith(".json"):
            return _Answer(status, orjson.dumps({"detail": text, "advice": advice}), "application/json")
        try:
            request = self._page_request(call, without_twin(path), params if field else {})
        except StoreError:
            return _Answer(status, text.encode(), "text/plain; charset=utf-8")
        return self._drawn(call, page, request)

    def _static(self, call: Call) -> _Answer:
        name = call.ids["name"]
        file = rendering.static_file(name)
        if file is None:
            return _Answer(404, b"There is no such file.", "text/plain; charset=utf-8")
        call.scope["rollbook.cacheable"] = True
        # A file requested with another version is returned, but must not be cached.
        is_current = call.ids["version"] == rendering.version()
        caching = b"public, max-age=31536000, immutable" if is_current else b"no-cache"
        return _Answer(200, *file, ((b"cache-control", caching),))

    async def _live(self, call: Call, send: Send) -> None:
        params = _params(call.scope["query_string"])
        last = call.header(b"last-event-id")
        if last is not None:
            params["after"] = [last.decode("latin-1")]
        request = self._page_request(call, LIVE, params)
        after = request.whole("after", 0)
        await call.read()
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        headers.append((b"content-security-policy", _POLICY))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if call.scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return

        call.scope["rollbook.waited"] = True

        async def follow() -> None:
            async for text in live.news(request.store, after):
                await send({"type": "http.response.body", "body": text, "more_body": True})

        try:
            await self._parked.run(call.receive, while_admitted(call.scope, follow))
        except ClientLeft:
            return
        except StoreError as error:
            logger.info("the live updates of a page ended: %s", error)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _login_page(self, call: Call, error_text: str = "") -> _Answer:
        query = _params(call.scope["query_string"])
        back = _local(query.get("next", [""])[-1])
        values = {"wrong": error_text, "next": back, "asks": await self._uses_keys()}
        # The status is not 401, because 401 requests an Authorization header, which a form cannot send.
        page = PageContent("login.html", values, "Log in", 422 if error_text else 200)
        return self._drawn(call, page, self._page_request(call, LOGIN, query))

    async def _uses_keys(self) -> bool:
        if self._ring is None:
            return False
        await self._ring.refresh()
        return self._ring.is_used

    async def _login(self, call: Call) -> _Answer:
        form = await _form(call)
        text = form.get("key", [""])[-1].strip()
        back = _local(form.get("next", [""])[-1])
        if self._ring is None or not await self._uses_keys():
            return _redirect(back)
        try:
            key = self._ring.find(text)
        except Unauthorized as error:
            return await self._login_page(call, f"{error.reason[0].upper()}{error.reason[1:]}.")
        home = "/ui/" if key.partition in {None, self._partitions.root_name} else f"/p/{key.partition}/ui/"
        return _redirect(home if back == "/ui/" else back, _cookie(COOKIE, text, call.scope))


def is_page_visit(scope: Scope) -> bool:
    """Return whether a request is a browser's visit of a page. A visitor without a key is sent to the login page."""
    return scope["type"] == "http" and scope["method"] == "GET" and _wants_html(scope)


async def show_login(scope: Scope, send: Send) -> None:
    """Redirect a visitor to the login page, which leads back to the requested page."""
    await _send(scope, send, _redirect(f"{LOGIN}?next={quote(_target(scope), safe='')}"))


def _target(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    # The path stays percent-encoded, because an id may contain a slash.
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    return path + (f"?{query}" if query else "")


async def show_refusal(scope: Scope, send: Send, error: StoreError) -> None:
    """Show that the visitor's key is not sufficient or cannot be checked, with a link to log in with another key."""
    status = status_of(error)
    body = rendering.bare("refused.html", status=status, error=str(error), back=_target(scope))
    await _send(scope, send, _Answer(status, body))


def _local(path: str) -> str:
    """Return the path to open after the login. It is always a path of this server."""
    is_ours = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_ours else "/ui/"


def key_of(scope: Scope) -> str | None:
    """Return the key in a browser's cookie, if any."""
    return _cookies(scope).get(COOKIE) or None


def _cookies(scope: Scope) -> dict[str, str]:
    cookies: dict[str, str] | None = scope.get("rollbook.cookies")
    if cookies is None:
        sent = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
        # `cookie_parser` splits cookies as browsers do. Cookies of other programs on this host may contain JSON, which
        # must not hide Rollbook's cookies.
        cookies = scope["rollbook.cookies"] = cookie_parser("; ".join(sent))
    return cookies


def _cookie(name: str, value: str, scope: Scope, *, seconds: int | None = None) -> tuple[bytes, bytes]:
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Strict"]
    if scope.get("scheme") == "https":
        parts.append("Secure")
    if seconds is not None:
        parts.append(f"Max-Age={seconds}")
    return b"set-cookie", "; ".join(parts).encode("ascii")


def _params(query: bytes) -> dict[str, list[str]]:
    return parse_qs(query.decode("latin-1"), keep_blank_values=True)


async def _form(call: Call) -> dict[str, list[str]]:
    body = await call.read()
    if len(body) > _MAX_FORM:
        raise Unsupported("this form", f"it has {len(body)} bytes, and the limit is {_MAX_FORM}")
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


def _wants_html(scope: Scope) -> bool:
    return b"text/html" in headers_of(scope).get(b"accept", b"")


def _redirect(location: str, *headers: tuple[bytes, bytes]) -> _Answer:
    return _Answer(303, b"", headers=((b"location", quote(location, safe=_IN_URLS).encode()), *headers))


async def _send(scope: Scope, send: Send, answered: _Answer) -> None:
    body = answered.body
    headers: Headers = [(b"content-type", answered.media_type.encode()), *answered.headers]
    headers.append((b"vary", b"Accept-Encoding, Cookie"))
    if all(name != b"content-security-policy" for name, _ in headers):
        headers.append((b"content-security-policy", _POLICY))
    if len(body) >= _GZIP_FROM and b"gzip" in headers_of(scope).get(b"accept-encoding", b""):
        headers.append((b"content-encoding", b"gzip"))
        is_kept = bool(scope.get("rollbook.cacheable"))
        body = _packed(body) if is_kept else await asyncio.to_thread(gzip.compress, body, 4)
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": answered.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


@lru_cache(64)
def _packed(body: bytes) -> bytes:
    """Return a static file in compressed form. The result is cached."""
    return gzip.compress(body, 9, mtime=0)
