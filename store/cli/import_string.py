"""From `package.module:NAME`, as a user types it, to the thing itself."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from store.errors import Invalid


def imported(option: str, name: str) -> Any:
    """Return the module of this name, which may lie where the user stands.

    Raises:
        Invalid: it cannot be imported; the text names the option.
    """
    # As `python -m` does: what lies where the user stands can be imported, here and in processes of runners.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except ImportError as error:
        raise Invalid(option, f"{name!r} cannot be imported from {Path.cwd()}: {error}") from error


def named(option: str, target: str, kind: type[Any]) -> Any:
    """Return what `package.module:NAME` names; of a class of this kind, one that was made without arguments.

    Raises:
        Invalid: it leads nowhere, or to something of another kind.
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
        raise Invalid(option, f"{target!r} is {'missing' if found is None else f'no {kind.__name__}'}")
    return found
