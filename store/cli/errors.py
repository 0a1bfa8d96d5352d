"""Errors of commands. A command that fails prints one message on standard error and ends with one of these exit codes.

0 ok · 1 error · 2 usage · 3 integrity: the database does not match its log · 4 unavailable · 5 not found ·
130 interrupted · 141 the reader of the output has closed the pipe
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from store.cli.interrupts import INTERRUPTED, MESSAGE
from store.errors import Closed, Corrupt, Invalid, NotFound, PastUnavailable, StoreError, Unavailable

OK, FAILED, USAGE, NOT_INTACT, UNAVAILABLE, NOT_FOUND, PIPE_CLOSED = 0, 1, 2, 3, 4, 5, 141

_CODES: tuple[tuple[type[StoreError], int], ...] = (
    (PastUnavailable, FAILED),
    (Invalid, USAGE),
    (Corrupt, NOT_INTACT),
    (Unavailable, UNAVAILABLE),
    (Closed, UNAVAILABLE),
    (NotFound, NOT_FOUND),
)


class Ambiguous(StoreError):
    """The given beginning of an id matches several ids."""

    def __init__(self, kind: str, prefix: str, candidates: list[str], *, are_all: bool) -> None:
        more = "" if are_all else "\n  …"
        listed = "".join(f"\n  {candidate}" for candidate in candidates)
        super().__init__(f"{prefix!r} is the beginning of several {kind} ids; add more characters:{listed}{more}")


class Commands(TyperGroup):
    """A group of commands that converts the errors of its commands to messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and convert errors of the store, of files and of a closed pipe to exit codes."""
        try:
            result = super().invoke(ctx)
            # At interpreter exit, the error of a closed pipe cannot be caught, so the output is flushed here.
            sys.stdout.flush()
        except StoreError as error:
            raise typer.Exit(_report(error, exit_code(error))) from error
        except BrokenPipeError as error:
            _discard_output()
            raise typer.Exit(PIPE_CLOSED) from error
        except UnicodeEncodeError as error:
            # Names of files and arguments for other programs have the encoding of the locale.
            text = error.object[error.start : error.end].encode("unicode_escape").decode()
            fault = ValueError(
                f"{text} cannot be written in the encoding {error.encoding} of this locale; set PYTHONUTF8=1"
            )
            raise typer.Exit(_report(fault, FAILED)) from error
        except OSError as error:
            code = _report(error, FAILED)
            # Standard output may not accept the output, for example because its disk is full.
            try:
                sys.stdout.flush()
            except OSError:
                _discard_output()
            raise typer.Exit(code) from error
        except KeyboardInterrupt as error:
            print(MESSAGE, file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from error
        return result


def exit_code(error: StoreError) -> int:
    """Return the exit code for an error of the store."""
    if isinstance(error, Ambiguous):
        return USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def _report(error: Exception, code: int) -> int:
    if os.environ.get("ROLLBOOK_DEBUG"):
        import traceback

        traceback.print_exception(error)
    else:
        print(f"rollbook: {error}", file=sys.stderr)
    return code


def _discard_output() -> None:
    # At interpreter exit, flushing the remaining buffer would fail again, so the output goes to the null device.
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)
