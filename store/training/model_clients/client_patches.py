"""Replacement of methods of client packages. A package that is not imported yet is patched when it is imported.

Importing a client takes a second, and most processes with a tracer use one client or none. Therefore the
instrumentation itself never imports a client. See decision 42.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

Wrapped = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ClientMethods:
    """Methods of the sync and the async class of one API, and the wrapper that replaces them."""

    module: str
    classes: tuple[str, ...]
    methods: tuple[str, ...]
    wrap: Callable[[Wrapped, bool], Wrapped]
    """Function that returns the replacement of a method. Its arguments: the method, and whether the class is async."""


def patch_client(package: str, targets: Sequence[ClientMethods]) -> bool:
    """Patch the methods of a client now, or when the client is imported. Idempotent.

    Return False if the client is not installed.
    """
    if find_spec(package) is None:
        return False
    for target in targets:
        if target in _originals or target in _finder.waiting.get(target.module, ()):
            continue
        module = sys.modules.get(target.module)
        if module is None:
            _finder.wait_for(target)
        else:
            _patch(target, module)
    return True


def unpatch_client(targets: Sequence[ClientMethods]) -> None:
    """Restore the original methods of a client."""
    for target in targets:
        _finder.forget(target)
        for kind, name, original in _originals.pop(target, ()):
            setattr(kind, name, original)


_originals: Final[dict[ClientMethods, list[tuple[type[Any], str, Wrapped]]]] = {}


def _patch(target: ClientMethods, module: ModuleType) -> None:
    originals = _originals[target] = []
    for class_name in target.classes:
        # Other versions of a client may lack a class or a method.
        kind: type[Any] | None = getattr(module, class_name, None)
        for method in target.methods:
            original = vars(kind).get(method) if kind is not None else None
            if kind is not None and original is not None:
                originals.append((kind, method, original))
                setattr(kind, method, target.wrap(original, class_name.startswith("Async")))


class _Finder(MetaPathFinder):
    """Finder that patches modules when they are imported."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[ClientMethods]] = {}
        self._searched: set[str] = set()

    def wait_for(self, target: ClientMethods) -> None:
        self.waiting.setdefault(target.module, []).append(target)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self, target: ClientMethods) -> None:
        targets = self.waiting.get(target.module, [])
        if target in targets:
            targets.remove(target)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        del path, target
        if fullname not in self.waiting or fullname in self._searched:
            return None
        # The nested search skips this finder, so another finder finds the module.
        self._searched.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._searched.discard(fullname)
        if spec is not None and spec.loader is not None:

            def patch(module: ModuleType) -> None:
                for methods in self.waiting.pop(fullname, []):
                    _patch(methods, module)

            spec.loader = _PatchingLoader(spec.loader, patch)
        return spec


_finder: Final = _Finder()


class _PatchingLoader(Loader):
    """Loader that executes a module with the module's own loader, and then calls a function."""

    def __init__(self, loader: Loader, after: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, because only that loader can read the module's source and data.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after(module)
