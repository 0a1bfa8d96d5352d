"""The command line in the process of a test."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

_typer: Any = import_module("typer.main")
# Typer reads the parameters of all functions of a module for each command. That takes 4 ms, and tests run thousands.
_typer.get_params_from_function = cache(_typer.get_params_from_function)


@contextmanager
def logging_restored() -> Generator[None]:
    """Restore the logging settings after a command. A server's handler would still write to the command's output."""
    root, logger = logging.getLogger(), logging.getLogger("store")
    handlers, levels = root.handlers[:], (root.level, logger.level)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        logger.setLevel(levels[1])
