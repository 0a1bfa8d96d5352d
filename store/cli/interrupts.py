"""Ctrl+C: a command ends with one line and the exit code 130, without a traceback."""

from __future__ import annotations

import os
import signal
from typing import Final

INTERRUPTED: Final = 130
MESSAGE: Final = "rollbook: interrupted"


def end_process() -> None:
    """Let SIGINT end the process at once, while it starts and while it ends.

    Python's own handler raises KeyboardInterrupt anywhere in an import or in the exit of the interpreter, where the
    exception is printed with its traceback. If the caller has set another handler or ignores SIGINT, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_exception() -> None:
    """Let SIGINT raise KeyboardInterrupt again, as commands and asyncio expect."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: object) -> None:
    os.write(2, f"{MESSAGE}\n".encode())
    os._exit(INTERRUPTED)
