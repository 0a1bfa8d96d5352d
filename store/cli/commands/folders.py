"""What `rollbook import-runs`, `export-run` and `mirror` print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import typer

from store.cli import lookup
from store.cli.errors import FAILED
from store.cli.output.printing import is_terminal, json_document, line, note, working
from store.cli.output.tables import Column, print_table
from store.cli.store_context import run_reading, run_writing
from store.interface.store import Store
from store.run_folders import ImportReport, Mirror, export_run_folder, import_runs

_REPORTS: Final[tuple[Column[ImportReport], ...]] = (
    Column("run", lambda report: report.run_id or ""),
    Column("rollout", lambda report: report.rollout_id or ""),
    Column("outcome", lambda report: report.outcome),
    Column("events", lambda report: str(report.events), right=True),
    Column("checkpoints", lambda report: str(report.checkpoints), right=True),
    Column("artifacts", lambda report: str(report.artifacts), right=True),
    Column("reason", lambda report: report.reason or "", shrinks=True),
    Column("folder", lambda report: report.path, shrinks=True),
)


def import_all(db: str, directory: Path, resources_id: str | None, *, again: bool, json: bool) -> None:
    """Import, and print what became of each run.

    Raises:
        typer.Exit: one was refused; the code is 1.
    """

    async def work(store: Store) -> list[ImportReport]:
        on_conflict = "new_generation" if again else "skip"
        return [
            report async for report in import_runs(store, directory, on_conflict=on_conflict, resources_id=resources_id)
        ]

    with working("importing"):
        reports = run_writing(db, work)
    if json:
        json_document([report.model_dump() for report in reports])
    elif reports or not is_terminal():
        print_table(_REPORTS, reports)
    if not reports:
        note(f"{directory} holds no run: no folder in it has a run_meta.json")
    if not json:
        for report in reports:
            for warned in report.warnings:
                note(f"{report.path}: {warned}")
    if any(report.outcome == "refused" for report in reports):
        raise typer.Exit(FAILED)


def export(db: str, given: str, directory: Path, view: str) -> None:
    """Write a run's folder, and print where it is."""

    async def work(store: Store) -> Path:
        return await export_run_folder(store, await lookup.rollout(store, given), directory, view=view)

    line(str(run_reading(db, work)))


def mirror(db: str, directory: Path, *, once: bool) -> None:
    """Keep the folders current; each that was written is told.

    Raises:
        typer.Exit: something could not be written, with `once`; the code is 1.
    """

    def tell(rollout_id: str, folder: Path) -> None:
        line(f"{rollout_id}\t{folder}")
        sys.stdout.flush()

    async def work(store: Store) -> bool:
        follower = Mirror(store, directory, on_written=tell)
        if not once:
            await follower.follow()
        return await follower.catch_up()

    try:
        if not run_reading(db, work):
            raise typer.Exit(FAILED)
    except KeyboardInterrupt:
        if once:
            raise
