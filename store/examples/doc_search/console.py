"""Console output of the job: a display of the progress, and a printer for the result at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console


class ShownProgress:
    """Display of the progress of a job that has several parts.

    At the end of each part, a line is printed. On a terminal, a progress bar is shown until then.

    Args:
        console: the console for the output, on which markup must be disabled.
        quiet: whether to show nothing.
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._part = TaskID(0)
        self._title = ""

    def begin(self, title: str, total: int) -> None:
        """Show a progress bar for a part that has `total` rollouts, the tasks of the job."""
        self._title = title
        self._part = self._bars.add_task(title, total=total)
        self._bars.start()

    def advance(self, by: int) -> None:
        """Advance the progress bar by a number of rollouts."""
        self._bars.advance(self._part, by)

    def end(self, outcome: str) -> None:
        """Replace the progress bar by a line with the result of the part."""
        self._bars.remove_task(self._part)
        self.say(f"{self._title}: {outcome}")

    def say(self, text: str) -> None:
        """Print a line. If a progress bar is shown, the line appears above the bar."""
        if not self._quiet:
            self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Remove the progress bar and restore the terminal."""
        self._bars.stop()


class Paper:
    """Printer for the result. Tables have aligned columns on a terminal, and are tab-separated in other output.

    Markup must be disabled on the console.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def heading(self, text: str) -> None:
        """Print an empty line and a heading."""
        self._print("")
        self._print(text, style="bold")

    def line(self, text: str) -> None:
        """Print a line of text."""
        self._print(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table with column names."""
        if not self._console.is_terminal:
            for row in (columns, *rows):
                self.line("\t".join(row))
            return
        table = Table(*columns, box=None, header_style="dim", pad_edge=False)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def _print(self, text: str, style: str | None = None) -> None:
        if self._console.is_terminal:
            self._console.print(text, style=style)
        else:
            # `Console.print` would convert tabs to spaces, so the text is written directly.
            self._console.file.write(f"{text}\n")
