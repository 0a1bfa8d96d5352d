"""Output of the commands of `rollbook export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.cli.output.printing import byte_size, json_document, line
from store.cli.output.times import duration

if TYPE_CHECKING:
    from store.exports import DatabaseReport, ExportReport


def print_files(report: ExportReport, as_json: bool) -> None:
    """Print the report of an export to files."""
    if as_json:
        json_document(report.model_dump())
        return
    earlier = f", {report.rollouts_before:,} of them by an earlier run" if report.rollouts_before else ""
    line(
        f"exported to {report.directory}: {report.rollouts:,} rollouts at position {report.position}{earlier};"
        f" {report.files:,} files with {byte_size(report.size_bytes)} in {duration(report.seconds)}"
    )
    _print_rows(report.rows)


def print_database(report: DatabaseReport, as_json: bool) -> None:
    """Print the report of an export to a database."""
    if as_json:
        json_document(report.model_dump())
        return
    line(
        f"exported to {report.database}: {report.rollouts:,} rollouts at position {report.position}"
        f" in {duration(report.seconds)}"
    )
    _print_rows(report.rows)


def _print_rows(rows: dict[str, int]) -> None:
    for table, count in rows.items():
        line(f"{table:<13} {count:>11,} rows")
