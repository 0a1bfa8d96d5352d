"""Calls over HTTP: their paths, the models of their bodies, and functions that build calls from ids and bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from inspect import cleandoc
from types import UnionType
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, create_model
from pydantic import Field as ModelField

from store.models import UNSET, Unset
from store.models.calls import CallRoute, ChangingCall
from store.models.enums import Frozen
from store.wire.encoding import Decoder, decoder
from store.wire.paths import PREFIX

_ID: Final = re.compile(r"\{(\w+)\}")
_PLAIN: Final[dict[Any, Any]] = {Mapping: dict, Sequence: list}


def routed_calls() -> list[type[ChangingCall[Any]]]:
    """Return the types of the calls that have a route."""
    kinds = cast("list[type[ChangingCall[Any]]]", ChangingCall.__subclasses__())
    return [kind for kind in kinds if kind.route is not None]


def route_of(kind: type[ChangingCall[Any]]) -> CallRoute:
    """Return the route of a call. The call must have a route."""
    assert kind.route is not None, kind
    return kind.route


@cache
def path_of(kind: type[ChangingCall[Any]]) -> str:
    """Return the template of a call's path."""
    return PREFIX + route_of(kind).path


@cache
def ids_of(kind: type[ChangingCall[Any]]) -> tuple[str, ...]:
    """Return the fields of a call that are in its path, in the order of the path."""
    return tuple(_ID.findall(route_of(kind).path))


def operation_of(kind: type[ChangingCall[Any]]) -> str:
    """Return the id of a call's operation in the OpenAPI document."""
    return route_of(kind).operation or kind.method.rpartition(".")[2]


@cache
def result_of(kind: type[ChangingCall[Any]]) -> Any:
    """Return the type of a call's result."""
    return get_args(vars(kind)["__orig_bases__"][0])[0]


@cache
def decoder_of(kind: type[ChangingCall[Any]]) -> Decoder[Any]:
    """Return the function that decodes the response to a call."""
    route = route_of(kind)
    if route.key is None:
        return decoder(result_of(kind))
    decode, key = decoder(route.response), route.key
    return lambda text: getattr(decode(text), key)


@cache
def body_of(kind: type[ChangingCall[Any]]) -> Any:
    """Return the type of a call's body: a model of the fields that are not in the path, or the type of the only field.

    The model ignores unknown keys. An absent key differs from null: `call_of` uses only the keys that the body has.
    """
    route, hints = route_of(kind), get_type_hints(kind, include_extras=True)
    if route.body is not None:
        return _on_wire(hints[route.body])
    optional = "; the body is optional" if route.is_body_optional else ""
    rest = (kind.__doc__ or "").partition("\n\n")[2]
    definitions: dict[str, Any] = {
        field.name: (_on_wire(hints[field.name]), _default(field)) for field in _in_body(kind)
    }
    text = f"POST {route.path}{optional}. {cleandoc(rest)}".strip()
    return create_model(kind.__name__, __base__=Frozen, __module__=kind.__module__, __doc__=text, **definitions)


def _in_body(kind: type[ChangingCall[Any]]) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.name not in ids_of(kind)]  # pyright: ignore[reportArgumentType]


def _on_wire(annotation: Any) -> Any:
    """Return the type of a field in a body: without `Unset`, and with lists and dicts."""
    origin, types = get_origin(annotation), get_args(annotation)
    if origin in {Union, UnionType}:
        if Any in types:
            return Any
        kinds = tuple(None if kind is Unset else _on_wire(kind) for kind in types)
        return Union[kinds]  # noqa: UP007 - the types are known only at run time
    return _PLAIN[origin][types] if origin in _PLAIN else annotation


def _default(field: Field[Any]) -> Any:
    if field.default is MISSING:
        return ...
    if field.default == ():
        return ModelField(default_factory=list)
    return None if field.default is UNSET else field.default


@cache
def not_null(kind: type[ChangingCall[Any]]) -> tuple[str, ...]:
    """Return the fields of a call that may be absent, but not null."""
    hints = get_type_hints(kind)
    types = {field.name: get_args(hints[field.name]) for field in _in_body(kind)}
    return tuple(name for name, kinds in types.items() if Unset in kinds and not {type(None), Any} & set(kinds))


def call_of(kind: type[ChangingCall[Any]], ids: Mapping[str, str], body: Any) -> Any:
    """Return a call from the ids in its path and its body."""
    field = route_of(kind).body
    if field is not None:
        return kind(**ids, **{field: body})
    model = cast("BaseModel", body)
    values = vars(model)
    return kind(**ids, **{name: values[name] for name in model.model_fields_set})


def call_of_json(kind: type[ChangingCall[Any]], values: Mapping[str, Any]) -> Any:
    """Return a call from its fields as JSON values; unknown keys are ignored.

    Raises:
        pydantic.ValidationError: a value does not have the type of its field.
    """
    ids = {name: values[name] for name in ids_of(kind)}
    return call_of(kind, ids, body_of(kind).model_validate(values))


def json_of_call(call: ChangingCall[Any]) -> dict[str, Any]:
    """Return the fields of a call as JSON values, without fields that are `UNSET`."""
    return {name: _json(value) for name, value in vars(call).items() if value is not UNSET}


def _json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list):
        return [_json(item) for item in cast("list[Any]", value)]
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
