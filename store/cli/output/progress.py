"""The progress of operations on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from store.cli.output.printing import note

if TYPE_CHECKING:
    from rich.progress import TaskID

    from store.operations import OnProgress, OperationProgress

SECONDS: Final = 5.0
"""Seconds before the first line, and between two lines of a step, if standard error is not a terminal."""


@contextmanager
def progress_shown(*, is_quiet: bool) -> Generator[OnProgress]:
    """Yield a function that shows progress on standard error: a bar on a terminal, otherwise a few lines."""
    if is_quiet:
        from store.runtime.progress import ignore

        yield ignore
    elif sys.stderr.isatty():
        with _bars() as show:
            yield show
    else:
        lines = _Lines()
        try:
            yield lines.show
        finally:
            lines.end()


@contextmanager
def _bars() -> Generator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task: TaskID | None = None
        step = ""

        def show(progress: OperationProgress) -> None:
            nonlocal task, step
            if task is None or progress.step != step:
                # The total of a task cannot become unknown, so each step is a separate task.
                if task is not None:
                    bars.remove_task(task)
                task = bars.add_task(progress.step, total=progress.total, count="")
                step = progress.step
            bars.update(task, completed=progress.done, total=progress.total, count=_count(progress))

        yield show


class _Lines:
    """Printer of a line at the beginning of each step, and then every few seconds.

    Nothing is printed in the first seconds, so that a short operation prints nothing. Then the current step is printed.
    """

    def __init__(self) -> None:
        self._step = ""
        self._first = self._next = time.monotonic() + SECONDS
        self._latest: OperationProgress | None = None
        self._timer = threading.Timer(SECONDS, self._print_latest)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Print nothing more."""
        self._timer.cancel()

    def _print_latest(self) -> None:
        if self._latest is not None:
            self.show(self._latest)

    def show(self, progress: OperationProgress) -> None:
        self._latest = progress
        now = time.monotonic()
        if now < self._first or (progress.step == self._step and now < self._next):
            return
        self._step, self._next = progress.step, now + SECONDS
        note(": ".join(filter(None, (progress.step, _count(progress)))))


def _count(progress: OperationProgress) -> str:
    """Return the part of a step that is done as text; empty if it is not known."""
    if progress.total is not None:
        return f"{progress.done:,} of {progress.total:,} {progress.unit}"
    return f"{progress.done:,} {progress.unit}" if progress.done else ""
