"""Import of objects that users name as `package.module:NAME`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from store.errors import Invalid

if TYPE_CHECKING:
    from store.training import Pipeline

_SHIPPED: Final = {"trading": "store.examples.trading.desk:pipeline"}
"""The pipelines of the shipped examples, by their short names."""


def imported(option: str, name: str) -> Any:
    """Return the module of this name; the current directory is importable.

    Raises:
        Invalid: the module cannot be imported; the message names the option.
    """
    # As with `python -m`, modules in the current directory are importable, here and in runner processes.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except ImportError as error:
        raise Invalid(option, f"{name!r} cannot be imported from {Path.cwd()}: {error}") from error


def named(option: str, target: str, kind: type[Any]) -> Any:
    """Return the object at `package.module:NAME`. A class of this kind is instantiated without arguments.

    Raises:
        Invalid: there is no such object, or it is of another kind.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise Invalid(option, f"{target!r} is not of the form package.module:NAME")
    found: Any = imported(option, module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(cast("type[Any]", found), kind):
        found = found()
    if not isinstance(found, kind):
        raise Invalid(option, f"{target!r} is {'missing' if found is None else f'not a {kind.__name__}'}")
    return found


def pipeline_named(option: str, target: str) -> Pipeline:
    """Return the pipeline at `package.module:NAME`; `trading` stands for the pipeline of the shipped example.

    Raises:
        Invalid: there is no such object, or it is not a pipeline.
    """
    from store.training import Pipeline

    found: Pipeline = named(option, _SHIPPED.get(target, target), Pipeline)
    return found
