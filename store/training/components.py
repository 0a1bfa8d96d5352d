"""Construction of components of a training, such as its store or its tracer, from specifications.

A specification is an instance, a class, a function, a name or a dict of settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from store.errors import Invalid

T = TypeVar("T")

_NO_SETTINGS: Mapping[str, Any] = {}


class Components(Generic[T]):
    """Builder of one kind of component.

    Args:
        name: the name of the argument in error messages.
        kind: the type of the component: a class, a runtime-checkable protocol, or the dotted path of a class or
            protocol. The path is imported when a component is checked.
        registry: dotted paths by short name.
        default_type: the class or function, or its dotted path, that creates the component if a dict has neither
            `type` nor `name`.
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
        """Return the component that a specification describes.

        - None: the result of `default`.
        - a string: the object with this short name or dotted path (`package.module.Class` or `package.module:Class`) is
          the specification.
        - a dict: the key `type` (a class, a function or a dotted path) or the key `name` (a short name) selects the
          class or function that creates the component. The other keys are its arguments.
        - an instance of the kind: the instance itself.
        - a class: a new instance.
        - another callable: its result.

        Args:
            spec: the specification.
            default: function that creates the component if there is no specification.
            fill: further arguments for a class or a dict. Arguments without a parameter of the same name are ignored.

        Raises:
            Invalid: there is no specification and no default, or the name cannot be resolved.
            TypeError: the result is not of this kind.
        """
        if spec is None:
            if default is None:
                raise Invalid(self._name, "is required; pass an instance, a class, a name or a dict")
            return default()
        component, kind = self._create(spec, fill), self._class()
        if not isinstance(component, kind):
            raise TypeError(f"{self._name} must be a {kind.__name__}, not {component!r}")
        return cast("T", component)

    def _create(self, spec: Any, fill: Mapping[str, Any]) -> Any:
        if isinstance(spec, str):
            return self._create(self._import(spec), fill)
        if isinstance(spec, Mapping):
            return self._from_settings(dict(cast("Mapping[str, Any]", spec)), fill)
        if isinstance(spec, type):
            return _instance(cast("type[Any]", spec), {}, fill)
        if isinstance(spec, self._class()):
            return spec
        if callable(spec):
            return spec()
        raise Invalid(self._name, f"{spec!r} is not a specification; pass an instance, a class, a name or a dict")

    def _from_settings(self, settings: dict[str, Any], fill: Mapping[str, Any]) -> Any:
        factory_spec = settings.pop("type", None)
        if factory_spec is None and "name" in settings:
            factory_spec = settings.pop("name")
        if factory_spec is None:
            factory_spec = self._default_type
        if factory_spec is None:
            raise Invalid(self._name, "the dict names no type; add type='package.module.Class'")
        factory = self._import(factory_spec) if isinstance(factory_spec, str) else factory_spec
        if not callable(factory):
            raise Invalid(self._name, f"{factory_spec!r} is neither a class nor a function")
        return _instance(factory, settings, fill)

    def _import(self, name: str) -> Any:
        path = self._registry.get(name, name)
        module, _, attribute = path.replace(":", ".").rpartition(".")
        if not module:
            names = ", ".join(sorted(self._registry)) or "none"
            raise Invalid(self._name, f"{name!r} is neither a short name ({names}) nor a dotted path")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise Invalid(self._name, f"{path!r} cannot be imported: {error}") from error

    def _class(self) -> type[Any]:
        if isinstance(self._kind, str):
            self._kind = cast("type[Any]", self._import(self._kind))
        return self._kind


def _instance(factory: Callable[..., Any], settings: dict[str, Any], fill: Mapping[str, Any]) -> Any:
    try:
        parameters = frozenset(inspect.signature(factory).parameters)
    except ValueError:  # some classes written in C have no signature
        parameters = frozenset[str]()
    return factory(**{name: value for name, value in fill.items() if name in parameters} | settings)
