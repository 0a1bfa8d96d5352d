"""One request to the store: the ids in its path, its body and query, and its client's connection."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection
from starlette.types import Message, Scope

from store.domain.commands import Idempotency
from store.errors import Invalid, StoreError
from store.interface.store import Store
from store.models.enums import build_models
from store.models.queries import PageQuery, list_fields
from store.runtime import context
from store.server.errors import MalformedRequest, Refused
from store.wire.paths import IDEMPOTENCY_KEY

M = TypeVar("M", bound=BaseModel)

# Routes keep validators, and no request should wait until a validator is built.
build_models()
Q = TypeVar("Q", bound=PageQuery)

_KEY: Final = re.compile(rb"[0-9A-Za-z_-]{1,128}")
_KEY_HEADER: Final = IDEMPOTENCY_KEY.lower().encode()


class Call(HTTPConnection):
    """A request with a route."""

    def __init__(self, scope: Scope, receive: Callable[[], Awaitable[Message]], ids: dict[str, str]) -> None:
        super().__init__(scope)
        self.ids = ids
        """The ids in the path of the request."""
        self._receive = receive

    @property
    def store(self) -> Store:
        """The store of the partition in the path."""
        return self.scope["rollbook.store"]

    @property
    def receive(self) -> Callable[[], Awaitable[Message]]:
        """The ASGI channel, which reports a disconnect after the body was read."""
        return self._receive

    async def read(self) -> bytes:
        """Return the whole body. Set the idempotency key of the call from the header, or to None."""
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
        # The value is set even if there is no key, because a request may begin in the context of the previous request
        # on its connection.
        context.idempotency_key.set(self.idempotency(body))
        return body

    def idempotency(self, body: bytes) -> Idempotency | None:
        """Return the idempotency of the call, if it has a key.

        Raises:
            Invalid: the key is malformed.
        """
        key = headers_of(self.scope).get(_KEY_HEADER)
        if key is None:
            return None
        if not _KEY.fullmatch(key):
            raise Invalid(IDEMPOTENCY_KEY, "must be 1 to 128 letters, digits, - and _; send 32 hex digits")
        request_hash = hashlib.sha256(f"{self.scope['method']} {self.scope['rollbook.path']}\n".encode())
        request_hash.update(body)
        # The key belongs to its client, so that no client receives the response to another client's request.
        admission = self.scope.get("rollbook.admission")
        client = "anonymous" if admission is None else f"key {admission.key.key_id}"
        return Idempotency(client, key.decode(), request_hash.digest())

    def header(self, name: bytes) -> bytes | None:
        """Return the value of a header; `name` is in lower case.

        If the header is repeated, return the last value.
        """
        return headers_of(self.scope).get(name)

    def parsed(self, body: bytes, validator: Any) -> Any:
        """Return a body, converted by a validator of pydantic.

        Raises:
            MalformedRequest: the body is missing, is not declared as JSON, or does not match the model.
            Invalid: the body contains a value that no store accepts, such as NaN.
        """
        if not body:
            raise MalformedRequest.one("missing", "Field required", "body")
        self._check_content_type()
        try:
            return validator.validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if first["type"] != "json_invalid":
                raise _fault(error, first, "body") from None
            faulty = first.get("ctx", {}).get("error", "")
        # Python's parser accepts lone surrogates and deeper nesting. The store then refuses such values with the right
        # error.
        try:
            return validator.validate_python(_lenient(body, faulty))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _fault(error, first, "body") from None

    def _check_content_type(self) -> None:
        header = headers_of(self.scope).get(b"content-type", b"")
        if header == b"application/json":
            return
        media_type = header.partition(b";")[0].strip().lower()
        if media_type != b"application/json" and not (
            media_type.startswith(b"application/") and media_type.endswith(b"+json")
        ):
            name = media_type.decode("latin-1") or "none"
            raise MalformedRequest.one(
                "model_attributes_type", f"Content-Type is {name}; send the body as application/json", "body"
            )

    def query(self, model: type[M]) -> M:
        """Return the query parameters as a model; the last value of a repeated scalar counts.

        Raises:
            MalformedRequest: a parameter does not match the model, or a required one is missing.
        """
        text: bytes = self.scope["query_string"]
        values: dict[str, Any] = {}
        if text:
            lists = list_fields(model)
            for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
                if name in lists:
                    values.setdefault(name, []).append(value)
                else:
                    values[name] = value
        try:
            return model.__pydantic_validator__.validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _fault(error, first, "query") from None


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by their names in lower case."""
    headers: dict[bytes, bytes] | None = scope.get("rollbook.headers")
    if headers is None:
        headers = scope["rollbook.headers"] = dict(scope["headers"])
    return headers


class ClientLeft(Exception):
    """The client closed its connection and does not wait for a response."""


def checked(query: Q) -> Q:
    """Return a page's query if its paging and order are valid.

    Raises:
        Refused: the paging or the order is invalid. The text is the same as in Agent-lightning 0.3.
    """
    if query.limit == 0 or query.limit < -1:
        raise Refused("limit", "Limit must be greater than 0 or -1 for no limit")
    if query.offset < 0:
        raise Refused("offset", "Offset must be greater than or equal to 0")
    if query.sort_by is not None and query.sort_by not in query.sortable and query.sort_by not in query.additions:
        allowed = ", ".join(query.sortable)
        raise Refused("sort_by", f"Invalid sort_by: {query.sort_by}, allowed fields are: {allowed}")
    return query


def refuse_null(body: BaseModel, *fields: str) -> None:
    """Refuse null in these fields. A client leaves a field out to keep its value.

    Raises:
        Refused: a field is null. The text is the same as in Agent-lightning 0.3.
    """
    for field in fields:
        if field in body.model_fields_set and getattr(body, field) is None:
            raise Refused(field, f"{field} is invalid; it cannot be a null value.")


def _lenient(body: bytes, faulty: str) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise MalformedRequest.one("json_invalid", "JSON decode error: nested too deep", "body") from None
    except ValueError:
        raise MalformedRequest.one("json_invalid", f"JSON decode error: {faulty}", "body") from None


def _fault(error: ValidationError, first: Any, where: str) -> Exception:
    inner = first.get("ctx", {}).get("error")
    return inner if isinstance(inner, StoreError) else MalformedRequest.of(error, where)
