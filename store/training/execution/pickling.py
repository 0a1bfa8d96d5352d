"""Pickling of agents, algorithms and their settings, which are sent to new processes."""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from typing import Any

from store.errors import Invalid


def reduced(obj: Any) -> Any:
    """Return how to pickle an object: a weak reference as None, and a decorated function as its qualified name.

    The result is that of `reducer_override` of a pickler.
    """
    if isinstance(obj, weakref.ref):
        # The referenced trainer or runner does not exist in the new process, which sets its own.
        return type(None), ()
    name: Any = getattr(obj, "__qualname__", None)
    if isinstance(obj, type) or not hasattr(obj, "__wrapped__") or not isinstance(name, str):
        return NotImplemented
    # The name is used only if the module contains this object under this name.
    value: Any = sys.modules.get(getattr(obj, "__module__", ""))
    for part in name.split("."):
        value = getattr(value, part, None)
    return name if value is obj else NotImplemented


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any, /) -> Any:
        return reduced(obj)


def pack(name: str, value: Any, pickler: type[pickle.Pickler] = _Pickler) -> bytes:
    """Return a pickled value for another process.

    Args:
        name: the name of the value in error messages.
        value: the value.
        pickler: the class of the pickler, which calls `reduced`.

    Raises:
        Invalid: a part of the value exists only in this process; the message names this part.
    """
    buffer = io.BytesIO()
    try:
        pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Invalid(
            name,
            f"cannot be sent to another process: {error}; define it at the top of a module, without open resources, "
            "or run everything in one process with strategy='shm'",
        ) from error
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """Return the value that `pack` pickled."""
    return pickle.loads(packed)  # noqa: S301 - from the process that started this one
