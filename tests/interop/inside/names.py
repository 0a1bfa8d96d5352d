"""The documentation lists every name that Agent-lightning exports."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
import importlib
import logging
import pkgutil

import agentlightning

from tests.documented_names import listed
from tests.interop.inside.claims import arguments, claims_of, hold, stay_on_this_machine


async def every_exported_name_is_listed(_: None) -> None:
    exported = _exported()
    assert {"OtelTracer", "Dataset", "KeyValue", "flatten_attributes"} <= exported
    assert sorted(exported - listed()) == []


def _exported() -> set[str]:
    """Return the names in `__all__` of every module that can be imported without its extras."""
    names: set[str] = set()
    for module in pkgutil.walk_packages(agentlightning.__path__, "agentlightning.", onerror=lambda _: None):
        # Algorithms and command lines, and packages that they need, are used from Agent-lightning itself.
        if {"verl", "apo", "cli", "instrumentation"} & set(module.name.split(".")):
            continue
        try:
            names.update(getattr(importlib.import_module(module.name), "__all__", ()))
        except ImportError:
            continue
    return names


async def _main() -> None:
    options = arguments()
    logging.disable(logging.CRITICAL)
    await hold(claims_of(__name__), None, options)


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(_main())
