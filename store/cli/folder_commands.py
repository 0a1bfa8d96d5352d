"""What a user may type about run folders: `rollbook import-runs`, `export-run`, `mirror`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db

Reports = Annotated[
    Path, typer.Argument(metavar="DIR", file_okay=False, help="The reports directory; made where there is none.")
]


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to a program, in one panel of its help."""
    app.command("import-runs", rich_help_panel=panel)(import_runs)
    app.command("export-run", rich_help_panel=panel)(export_run)
    app.command("mirror", rich_help_panel=panel)(mirror)


def import_runs(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The reports directory, or one run's folder."),
    ],
    *,
    db: Db = DEFAULT_DB,
    resources: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Give the runs these resources, with the phase graph their re-runs need."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Import a folder that was rewritten since as another rollout, rather than not."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Import run folders: each once, and of one that has grown only what is new. Exits with 1 if one is refused."""
    from store.cli.commands import folders

    folders.import_all(db, directory, resources, again=again, json=json)


def export_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its beginning.")],
    directory: Reports,
    *,
    db: Db = DEFAULT_DB,
    view: Annotated[str, typer.Option(metavar="VIEW", help="head, or attempt:N for an earlier state.")] = "head",
) -> None:
    """Write a run as a folder, daily/DATE/FLOW, and print where; cut off, it leaves the old folder or the new one."""
    from store.cli.commands import folders

    folders.export(db, run, directory, view)


def mirror(
    directory: Reports,
    *,
    db: Db = DEFAULT_DB,
    once: Annotated[bool, typer.Option("--once", help="Catch up with the log, and stop.")] = False,
) -> None:
    """Keep a folder of every run current while the store is in use, until Ctrl+C; goes on where it was stopped."""
    from store.cli.commands import folders

    folders.mirror(db, directory, once=once)
