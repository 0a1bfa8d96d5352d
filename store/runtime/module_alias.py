"""A second name for a package: `alias.module` is the same module object as `package.module`. Decision 58."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import cast


def provide_alias(alias: str, package: str) -> None:
    """Make `alias` a second name of a package and of all its modules. A module is imported when it is first used.

    The package `alias` calls this function in its `__init__`, and passes its own name as `alias`.
    """
    sys.meta_path.insert(0, _AliasFinder(alias, package))
    sys.modules[alias] = import_module(package)


class _AliasFinder(MetaPathFinder):
    """Finder of the modules below an alias."""

    def __init__(self, alias: str, package: str) -> None:
        self._prefix = f"{alias}."
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if not fullname.startswith(self._prefix):
            return None
        real = find_spec(f"{self._package}.{fullname.removeprefix(self._prefix)}")
        if real is None:
            return None
        spec = ModuleSpec(fullname, _AliasLoader(real), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec


class _AliasLoader(InspectLoader):
    """Loader that imports a module under its real name and returns it."""

    def __init__(self, real: ModuleSpec) -> None:
        self._real = real
        self._own_spec: ModuleSpec | None = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = import_module(self._real.name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has replaced the module's spec with the alias's spec, so the original spec is restored.
        module.__spec__ = self._own_spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module, which `python -m` runs."""
        del fullname
        return cast("InspectLoader", self._real.loader).get_code(self._real.name)

    def get_source(self, fullname: str) -> str | None:
        del fullname
        return cast("InspectLoader", self._real.loader).get_source(self._real.name)
