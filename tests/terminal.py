"""Commands of `rollbook` on a terminal."""

from __future__ import annotations

import io
import multiprocessing
import os
import pty
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

# The module names what the fork server imports first.
import tests.faults.processes  # noqa: F401  # pyright: ignore[reportUnusedImport]
from store.cli import main

_CONTEXT = multiprocessing.get_context("forkserver")


def on_a_terminal(command: str, directory: Path, terminal: str = "dumb") -> str:
    """What a command prints where it believes to be looked at; a dumb terminal has no styles and 80 columns."""
    program, *arguments = shlex.split(command)
    assert program == "rollbook"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": terminal}
    # A new interpreter would take a second of processor time for its imports.
    process = _CONTEXT.Process(target=_type, args=(os.ttyname(theirs), arguments, environment, str(directory)))
    process.start()
    with ThreadPoolExecutor(1) as reader:
        printed = reader.submit(_read_all, ours)
        process.join(250)
        os.close(theirs)
        text = printed.result().decode()
    os.close(ours)
    assert process.exitcode == 0, text
    return text.replace("\r\n", "\n")


def _read_all(terminal: int) -> bytes:
    """Read what is written to a terminal. When the last writer is gone, Linux answers with an error."""
    read = b""
    with suppress(OSError):
        while more := os.read(terminal, 65536):
            read += more
    return read


def _type(terminal: str, arguments: list[str], environment: dict[str, str], directory: str) -> None:
    """Run a command of `rollbook` on a terminal, in this process."""
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    for output in (sys.stdout, sys.stderr):
        os.dup2(descriptor, output.fileno())
        assert isinstance(output, io.TextIOWrapper)
        output.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = ["rollbook", *arguments]
    main()
