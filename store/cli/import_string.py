"""Import of the objects that users of the command line name as `package.module:NAME`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from store.errors import Invalid

if TYPE_CHECKING:
    from store.training import Pipeline


def imported(option: str, name: str) -> Any:
    """Import and return the module `name`, which may also be in the current directory.

    Raises:
        Invalid: the module cannot be imported. The message names `option`, the command-line option that was given.
    """
    # As with `python -m`, modules in the current directory can be imported, also by the runner processes that this
    # process starts.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except ImportError as error:
        raise Invalid(option, f"{name!r} cannot be imported from {Path.cwd()}: {error}") from error


def named(option: str, target: str, kind: type[Any]) -> Any:
    """Return the object that `target` names as `package.module:NAME`. The object must be an instance of `kind`.

    If `target` names the class `kind` or a subclass, return a new instance, made without arguments.

    Raises:
        Invalid: `target` has another form, there is no such object, or the object is not an instance of `kind`.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise Invalid(option, f"{target!r} is not of the form package.module:NAME")
    target_object: Any = imported(option, module)
    for part in attribute.split("."):
        target_object = getattr(target_object, part, None)
    if isinstance(target_object, type) and issubclass(cast("type[Any]", target_object), kind):
        target_object = target_object()
    if not isinstance(target_object, kind):
        raise Invalid(option, f"{target!r} is {'missing' if target_object is None else f'not a {kind.__name__}'}")
    return target_object


def pipeline_named(option: str, target: str) -> Pipeline:
    """Return the pipeline that `target` names as `package.module:NAME`.

    The short name `trading` stands for the pipeline of the trading example in this package.

    Raises:
        Invalid: `target` has another form, there is no such object, or the object is not a pipeline.
    """
    from store.cli.example_parts import PIPELINES
    from store.training import Pipeline

    pipeline: Pipeline = named(option, PIPELINES.get(target, target), Pipeline)
    return pipeline
