"""Printer of the results of imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from store.cli.output.printing import line, note, printable
from store.cli.output.times import duration

if TYPE_CHECKING:
    from store.imports import ImportResult

_LISTED: Final = 20


def print_result(result: ImportResult) -> None:
    """Print the counts of an import, and the parts that were skipped with the reasons."""
    verb = "would import" if result.is_dry_run else "imported"
    continued = f"{result.continued:,} that an earlier import had begun, " if result.continued else ""
    extended = f"{result.extended:,} extended, " if result.extended else ""
    resources = f"{result.resources:,} resources, " if result.resources else ""
    line(
        f"{verb} {result.imported:,} rollouts, {continued}{resources}{result.spans:,} spans; {extended}"
        f"{result.unchanged:,} unchanged, {result.skipped:,} skipped; {duration(result.seconds)}"
    )
    for skip in result.skips[:_LISTED]:
        note(f"skipped {printable(skip.place)}: {printable(skip.reason)}")
    if result.skipped > _LISTED:
        note(f"and {result.skipped - _LISTED:,} more; --json lists up to 1,000")
