"""One request on its way to the store: what it names, what it carries, and whether its client is still there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection
from starlette.types import Message, Scope

from store.domain.commands import Idempotency
from store.errors import Invalid, StoreError
from store.interface.store import Store
from store.models.queries import PageQuery, list_fields
from store.runtime import context
from store.server.errors import Faults, Refused
from store.wire.paths import IDEMPOTENCY_KEY

M = TypeVar("M", bound=BaseModel)
Q = TypeVar("Q", bound=PageQuery)

_KEY: Final = re.compile(rb"[0-9A-Za-z_-]{1,128}")
_KEY_HEADER: Final = IDEMPOTENCY_KEY.lower().encode()


class Call(HTTPConnection):
    """A request that was routed."""

    def __init__(self, scope: Scope, receive: Callable[[], Awaitable[Message]], ids: dict[str, str]) -> None:
        super().__init__(scope)
        self.ids = ids
        """The ids in its path."""
        self._receive = receive

    @property
    def store(self) -> Store:
        """The store of the partition that the path named."""
        return self.scope["rollbook.store"]

    @property
    def receive(self) -> Callable[[], Awaitable[Message]]:
        """The ASGI channel, to hear when the client leaves; after the body was read."""
        return self._receive

    async def read(self) -> bytes:
        """Return the whole body, and let the call be known by its idempotency key if it has one."""
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts = [body]
            while message.get("more_body"):
                message = await self._receive()
                parts.append(message.get("body", b""))
            body = b"".join(parts)
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self._know_by_key(body)
        return body

    def _know_by_key(self, body: bytes) -> None:
        # Also if it has none: a request may begin in the context of the one before it on the same connection.
        context.idempotency_key.set(self.asked(body))

    def asked(self, body: bytes) -> Idempotency | None:
        """Return what the call is known by, if it has an idempotency key.

        Raises:
            Invalid: the key is none that can be.
        """
        key = headers_of(self.scope).get(_KEY_HEADER)
        if key is None:
            return None
        if not _KEY.fullmatch(key):
            raise Invalid(IDEMPOTENCY_KEY, "must be 1 to 128 letters, digits, - and _; send 32 hex digits")
        asked = hashlib.sha256(f"{self.scope['method']} {self.scope['rollbook.path']}\n".encode())
        asked.update(body)
        return Idempotency(self._caller, key.decode(), asked.digest())

    @property
    def _caller(self) -> str:
        """Whose the idempotency keys of a request are: nobody is answered with what somebody else did."""
        admission = self.scope.get("rollbook.admission")
        return "anonymous" if admission is None else f"key {admission.key.key_id}"

    def header(self, name: bytes) -> bytes | None:
        """Return a header by its name in lower case; of one that is repeated the last."""
        return headers_of(self.scope).get(name)

    async def body(self, model: type[M]) -> M:
        """Return the body as a model.

        Raises:
            Faults: there is none, it is not declared as JSON, or has another shape.
            Invalid: it holds what no store takes, such as NaN.
        """
        return self._parsed(await self.read(), model)

    async def body_or_default(self, model: type[M]) -> M:
        """As `body`; an absent body, or null, is one without keys."""
        body = await self.read()
        if not body or body == b"null":
            return model()
        return self._parsed(body, model)

    def _parsed(self, body: bytes, model: type[M]) -> M:
        return cast("M", self.parsed(body, model.__pydantic_validator__))

    def parsed(self, body: bytes, validator: Any) -> Any:
        """Return what a validator of pydantic makes of a body; errors as `body` raises them."""
        if not body:
            raise Faults.one("missing", "Field required", "body")
        self._check_content_type()
        try:
            return validator.validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if first["type"] != "json_invalid":
                raise _fault(error, first, "body") from None
            faulty = first.get("ctx", {}).get("error", "")
        # Python's own parser takes lone surrogates and deeper nesting; the store then refuses them by name.
        try:
            return validator.validate_python(_lenient(body, faulty))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _fault(error, first, "body") from None

    def _check_content_type(self) -> None:
        header = headers_of(self.scope).get(b"content-type", b"")
        if header == b"application/json":
            return
        given = header.partition(b";")[0].strip().lower()
        if given != b"application/json" and not (given.startswith(b"application/") and given.endswith(b"+json")):
            shown = given.decode("latin-1") or "none"
            raise Faults.one(
                "model_attributes_type", f"Content-Type is {shown}; send the body as application/json", "body"
            )

    def query(self, model: type[M]) -> M:
        """Return the query parameters as a model; of a scalar that is repeated the last counts.

        Raises:
            Faults: one has the wrong shape, or one that is required is missing.
        """
        text: bytes = self.scope["query_string"]
        given: dict[str, Any] = {}
        if text:
            lists = list_fields(model)
            for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
                if name in lists:
                    given.setdefault(name, []).append(value)
                else:
                    given[name] = value
        try:
            return model.__pydantic_validator__.validate_python(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _fault(error, first, "query") from None

    def page_query(self, model: type[Q]) -> Q:
        """As `query`, with what every page asks for checked."""
        return checked(self.query(model))


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by their names in lower case."""
    headers: dict[bytes, bytes] | None = scope.get("rollbook.headers")
    if headers is None:
        headers = scope["rollbook.headers"] = dict(scope["headers"])
    return headers


class ClientLeft(Exception):
    """The client closed its connection; nobody waits for an answer."""


def checked(query: Q) -> Q:
    """Return a page's query if its paging and order are possible.

    Raises:
        Refused: in the words of Agent-lightning 0.3.
    """
    if query.limit == 0 or query.limit < -1:
        raise Refused("limit", "Limit must be greater than 0 or -1 for no limit")
    if query.offset < 0:
        raise Refused("offset", "Offset must be greater than or equal to 0")
    if query.sort_by is not None and query.sort_by not in query.sortable:
        allowed = ", ".join(query.sortable)
        raise Refused("sort_by", f"Invalid sort_by: {query.sort_by}, allowed fields are: {allowed}")
    return query


def refuse_null(body: BaseModel, *fields: str) -> None:
    """Refuse null where only leaving a key out means that nothing changes.

    Raises:
        Refused: in the words of Agent-lightning 0.3.
    """
    for field in fields:
        if field in body.model_fields_set and getattr(body, field) is None:
            raise Refused(field, f"{field} is invalid; it cannot be a null value.")


def _lenient(body: bytes, faulty: str) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise Faults.one("json_invalid", "JSON decode error: nested too deep", "body") from None
    except ValueError:
        raise Faults.one("json_invalid", f"JSON decode error: {faulty}", "body") from None


def _fault(error: ValidationError, first: Any, where: str) -> Exception:
    inner = first.get("ctx", {}).get("error")
    return inner if isinstance(inner, StoreError) else Faults.of(error, where)
