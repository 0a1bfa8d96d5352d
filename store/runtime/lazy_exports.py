"""Names that a package imports from other modules when they are first used. Decision 9.

The stub of the package, `__init__.pyi`, lists the names. Type checkers, editors and this module read the stub:

    from package.module import Name as Name, function as function
    from package.errors import *

An import of `*` stands for the names in the stub of a package, or in `__all__` of another module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import FileLoader


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package."""

    def import_name(name: str) -> Any:
        if name == "__all__":
            value: Any = sorted(_origins(package), key=_order)
        elif name.startswith("__") or (origin := _origins(package).get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            value = getattr(import_module(origin), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *_origins(package), "__all__"})

    return import_name, list_names


@cache
def _origins(package: str) -> Mapping[str, str]:
    """Return the modules that define the names of a stub. The package itself is not imported."""
    # `ast` is imported here, because most programs that import a package never read its stub.
    import ast

    spec = find_spec(package)
    assert spec is not None
    if spec.submodule_search_locations is None:
        return dict.fromkeys(import_module(package).__all__, package)
    stub = cast("FileLoader", spec.loader).get_data(f"{spec.submodule_search_locations[0]}/__init__.pyi")
    origins: dict[str, str] = {}
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                origins |= _origins(node.module) if alias.name == "*" else {alias.name: node.module}
    return origins


def _order(name: str) -> tuple[bool, bool, str]:
    """Return a sort key: constants come before classes, and classes before functions."""
    return (not name.isupper(), not name[0].isupper(), name)
