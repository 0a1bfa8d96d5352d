"""What `rollbook verify`, `rebuild` and `seal` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from store.cli.errors import NOT_INTACT
from store.cli.output.printing import json_document, line, note, working
from store.cli.output.tables import DIFFERENCES, print_table
from store.cli.output.times import duration
from store.cli.store_context import run_reading, run_writing
from store.models import Difference

# Damage to the log itself: no rebuild mends it.
_OF_THE_LOG = frozenset({"chain", "bodies", "blobs", "seal", "guards"})


def verify(db: str, seal: Path | None, *, json: bool) -> None:
    """Print whether the database is what its log says, and where it is not.

    Raises:
        typer.Exit: it is not; the code is 3.
    """
    with working("verifying"):
        report = run_reading(db, lambda store: store.verify(seal))
    if json:
        json_document(report.model_dump())
    else:
        _print_differences(report.differences)
        line(
            f"{'intact' if report.ok else 'NOT INTACT'}: {report.events:,} events in {report.commits:,} commits, "
            f"{sum(report.rows.values()):,} rows of {report.streams:,} streams compared"
            + (", and the seal" if report.seal_checked else "")
            + f", in {duration(report.seconds)}"
        )
        line(f"chain head  {report.chain_head}")
        line(f"state hash  {report.state_hash}")
    if not report.ok:
        note(_advice(report.differences, report.difference_count))
        raise typer.Exit(NOT_INTACT)


def rebuild(db: str, *, json: bool) -> None:
    """Print what was folded and which rows had to be mended."""
    with working("rebuilding"):
        report = run_writing(db, lambda store: store.rebuild())
    if json:
        json_document(report.model_dump())
        return
    _print_differences(report.differences)
    written = sum(report.written.values())
    mended = ", ".join(f"{count:,} of {table}" for table, count in report.written.items() if count)
    line(
        f"{report.events:,} events of {report.streams:,} streams folded in {duration(report.seconds)}: "
        + (f"{written:,} rows were mended ({mended})" if written else "every row was right")
    )
    line(f"state hash  {report.state_hash}")


def seal(db: str, file: Path, *, json: bool) -> None:
    """Write the seal and print what it holds."""
    sealed = run_reading(db, lambda store: store.seal(file))
    if json:
        json_document(sealed.model_dump())
        return
    line(f"sealed up to position {sealed.position}, commit {sealed.commit_id}, in {file}")
    line(f"chain head  {sealed.chain_head}")
    note(f"keep it where this database is not; later: rollbook verify --seal {file}")


def _print_differences(differences: Sequence[Difference]) -> None:
    if differences:
        print_table(DIFFERENCES, differences)
        line()


def _advice(differences: Sequence[Difference], count: int) -> str:
    found = f"{count:,} difference{'' if count == 1 else 's'}"
    if count > len(differences):
        found += f", the first {len(differences)} of them above"
    if any(difference.check in _OF_THE_LOG for difference in differences):
        return f"{found}; the log itself is damaged: restore a backup of the database"
    return f"{found}; the log is whole: `rollbook rebuild` mends the tables"
