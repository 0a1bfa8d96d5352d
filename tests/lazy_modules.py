"""Modules that are imported when they are used: each process imports the files of all tests, and runs only some."""

from __future__ import annotations

from typing import Any

import pytest


class _LazyModule:
    """A module that the first use of one of its names imports."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            # pytest looks at every object of a module for marks and fixtures.
            raise AttributeError(name)
        return getattr(pytest.importorskip(self._name), name)


def lazy(name: str) -> Any:
    """Return a module that is imported when a test uses it. If it is not installed, the test is skipped."""
    return _LazyModule(name)
