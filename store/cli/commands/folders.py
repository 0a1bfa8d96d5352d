"""Commands on run folders: `rollbook import-runs`, `export-run`, `mirror`.

The reports directory contains run folders.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli import lookup
from store.cli.errors import FAILED
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import is_terminal, json_document, line, note, working
from store.cli.output.tables import Column, print_table
from store.cli.store_context import run_reading, run_writing

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.run_folders import ImportReport

app = typer.Typer()

Reports = Annotated[
    Path,
    typer.Argument(metavar="DIR", file_okay=False, help="The directory for the run folders; created if missing."),
]

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


@app.command(rich_help_panel="Runs")
def import_runs(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", exists=True, file_okay=False, help="A directory with run folders, or one of them."
        ),
    ],
    *,
    db: Db = DEFAULT_DB,
    resources: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Assign these resources to the imported runs; re-runs need a phase graph among them."
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="If a folder was rewritten after its import, import it as another rollout instead of skipping it.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Import run folders; a repeated import adds only new events. The exit code is 1 if a folder is refused."""
    from store.run_folders import import_runs as import_folders

    async def work(store: Store) -> list[ImportReport]:
        on_conflict = "new_generation" if again else "skip"
        return [
            report async for report in import_folders(store, directory, on_conflict=on_conflict, resources_id=resources)
        ]

    with working("importing"):
        reports = run_writing(db, work)
    if json:
        json_document([report.model_dump() for report in reports])
    elif reports or not is_terminal():
        print_table(_REPORTS, reports)
    if not reports:
        note(f"{directory} contains no run: no folder in it has a run_meta.json")
    if not json:
        for report in reports:
            for warning in report.warnings:
                note(f"{report.path}: {warning}")
    if any(report.outcome == "refused" for report in reports):
        raise typer.Exit(FAILED)


@app.command(rich_help_panel="Runs")
def export_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or the beginning of the id.")],
    directory: Reports,
    *,
    db: Db = DEFAULT_DB,
    view: Annotated[
        str, typer.Option(metavar="VIEW", help="The state to write: head (the current one), or attempt:N.")
    ] = "head",
) -> None:
    """Write a run atomically as the folder daily/DATE/FLOW below DIR, and print the path of the folder."""
    from store.run_folders import export_run_folder

    async def work(store: Store) -> Path:
        return await export_run_folder(store, await lookup.rollout(store, run), directory, view=view)

    line(str(run_reading(db, work)))


@app.command(rich_help_panel="Runs")
def mirror(
    directory: Reports,
    *,
    db: Db = DEFAULT_DB,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the end of the log, without waiting for new events.")
    ] = False,
) -> None:
    """Write a folder for every run, and update the folders until Ctrl+C.

    If the command is started again, it continues where it stopped.
    """
    from store.run_folders import Mirror

    def report(rollout_id: str, folder: Path) -> None:
        line(f"{rollout_id}\t{folder}")
        sys.stdout.flush()

    async def work(store: Store) -> bool:
        follower = Mirror(store, directory, on_written=report)
        if not once:
            await follower.follow()
        return await follower.catch_up()

    try:
        if not run_reading(db, work):
            raise typer.Exit(FAILED)
    except KeyboardInterrupt:
        if once:
            raise
