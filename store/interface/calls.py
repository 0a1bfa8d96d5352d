"""Functions for calls that are values."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from store.models.calls import ChangingCall

T = TypeVar("T")


def perform(target: Any, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
    """Make a call by the method of `target`: a store, or its `runs` or `annotations`.

    A subclass may have overridden this method, possibly with fewer parameters. So only arguments that differ from their
    defaults are passed.
    """
    method, defaults = _method_of(type(call))
    return getattr(target, method)(**{name: value for name, value in vars(call).items() if value is not defaults[name]})


def group_of(store: Any, call: ChangingCall[Any]) -> Any:
    """Return the object with the method of a call: a store, or its `runs` or `annotations`."""
    group = call.method.rpartition(".")[0]
    return getattr(store, group) if group else store


@cache
def _method_of(kind: type[ChangingCall[Any]]) -> tuple[str, dict[str, Any]]:
    defaults = {field.name: field.default for field in fields(kind)}  # pyright: ignore[reportArgumentType]
    return kind.method.rpartition(".")[2], defaults
