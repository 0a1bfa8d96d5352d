"""Console output of the job: progress on standard error during the run, the result on standard output at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console


class ShownProgress:
    """Progress on a console without markup. Each part ends with a line; a terminal shows a bar before the end."""

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
        """Show a bar."""
        self._title = title
        self._part = self._bars.add_task(title, total=total)
        self._bars.start()

    def advance(self, by: int) -> None:
        """Move the bar."""
        self._bars.advance(self._part, by)

    def end(self, outcome: str) -> None:
        """Replace the bar by a line."""
        self._bars.remove_task(self._part)
        self.say(f"{self._title}: {outcome}")

    def say(self, text: str) -> None:
        """Show a line, above the bar if there is one."""
        if not self._quiet:
            self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Restore the terminal."""
        self._bars.stop()


class Paper:
    """Standard output without markup: tables are drawn on a terminal and tab-separated elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def heading(self, text: str) -> None:
        """Print a heading after an empty line."""
        self._print("")
        self._print(text, style="bold")

    def line(self, text: str) -> None:
        """Print a sentence."""
        self._print(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows with column names."""
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
            # rich would convert tabs to spaces, so it is not used here.
            self._console.file.write(f"{text}\n")
