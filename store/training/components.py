"""From a specification to a component: an instance, a class, a function, a name, or a dict of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from store.errors import Invalid

T = TypeVar("T")

_NO_SETTINGS: Mapping[str, Any] = {}


class Components(Generic[T]):
    """One kind of component, and the ways in which one of it may be named.

    Args:
        name: of the argument, for messages.
        kind: what a component must be: a class, a protocol that can be checked, or the dotted path of one, which is
            imported when there is something to check.
        registry: short names, and the dotted path of what each stands for.
        default_type: the class of a dict that names none.
    """

    def __init__(
        self,
        name: str,
        kind: type[Any] | str,
        *,
        registry: Mapping[str, str] | None = None,
        default_type: Callable[..., T] | str | None = None,
    ) -> None:
        self._name = name
        self._kind = kind
        self._registry = dict(registry or {})
        self._default_type = default_type

    def build(
        self,
        spec: Any,
        *,
        default: Callable[[], T | None] | None = None,
        fill: Mapping[str, Any] = _NO_SETTINGS,
    ) -> T | None:
        """Return the component that is meant.

        - None: what `default` returns.
        - a string: a short name, or a dotted path (`package.module.Class` or `package.module:Class`).
        - a dict: `type`, a class or dotted path, or `name`, a short name; the other keys are its arguments.
        - a class: an instance of it; any other callable: what it returns.
        - anything else: itself.

        Args:
            spec: one of these.
            default: makes the component if there is no specification.
            fill: arguments of a class that are not given, as far as it has parameters of these names.

        Raises:
            Invalid: there is no specification and no default, or the name leads nowhere.
            TypeError: what came of it is not of this kind.
        """
        if spec is None:
            if default is None:
                raise Invalid(self._name, "is needed; give an instance, a class, a name or a dict")
            return default()
        return self._checked(self._made(spec, fill))

    def _made(self, spec: Any, fill: Mapping[str, Any]) -> Any:
        if isinstance(spec, str):
            return self._made(self._found(spec), fill)
        if isinstance(spec, Mapping):
            return self._from_settings(dict(cast("Mapping[str, Any]", spec)), fill)
        if isinstance(spec, type):
            return _instance(cast("type[Any]", spec), {}, fill)
        if isinstance(spec, self._class()):
            return spec
        if callable(spec):
            return spec()
        raise Invalid(self._name, f"{spec!r} is no specification; give an instance, a class, a name or a dict")

    def _from_settings(self, settings: dict[str, Any], fill: Mapping[str, Any]) -> Any:
        named = settings.pop("type", None)
        if named is None and "name" in settings:
            named = settings.pop("name")
        if named is None:
            named = self._default_type
        if named is None:
            raise Invalid(self._name, "the dict names no type; add type='package.module.Class'")
        made_by = self._found(named) if isinstance(named, str) else named
        if not callable(made_by):
            raise Invalid(self._name, f"{named!r} is no class and no function")
        return _instance(made_by, settings, fill)

    def _found(self, name: str) -> Any:
        path = self._registry.get(name, name)
        module, _, attribute = path.replace(":", ".").rpartition(".")
        if not module:
            known = ", ".join(sorted(self._registry)) or "none"
            raise Invalid(self._name, f"{name!r} is no short name (those are: {known}) and no dotted path")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise Invalid(self._name, f"{path!r} cannot be imported: {error}") from error

    def _checked(self, made: Any) -> T:
        kind = self._class()
        if not isinstance(made, kind):
            raise TypeError(f"{self._name} is to be a {kind.__name__}, and {made!r} is none")
        return cast("T", made)

    def _class(self) -> type[Any]:
        if isinstance(self._kind, str):
            self._kind = cast("type[Any]", self._found(self._kind))
        return self._kind


def _instance(made_by: Callable[..., Any], settings: dict[str, Any], fill: Mapping[str, Any]) -> Any:
    try:
        known = frozenset(inspect.signature(made_by).parameters)
    except ValueError:  # some classes written in C do not say
        known = frozenset[str]()
    return made_by(**{name: value for name, value in fill.items() if name in known} | settings)
