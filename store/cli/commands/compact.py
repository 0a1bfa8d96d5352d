"""`rollbook compact`, which compresses payload and frees the space of deleted rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from store.cli.errors import FAILED
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import byte_size, json_document, line, note
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration

if TYPE_CHECKING:
    pass

app = typer.Typer()


@app.command(rich_help_panel="Keep")
def compact(
    *,
    db: Db = DEFAULT_DB,
    full: Annotated[
        bool, typer.Option("--full", help="Rewrite the tables of Postgres; this blocks readers and writers.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Compress events, and free the space of deleted rows; SQLite rewrites the file, and writers wait meanwhile."""
    # The package imports the drivers of databases, which the help of this command does not need.
    from store.operations import compact

    with progress_shown(is_quiet=json) as show:
        report = asyncio.run(compact(db, rewrite=full, on_progress=show))
    if json:
        json_document(report.model_dump())
    else:
        line(
            f"on disk   {byte_size(report.size_before)} before, {byte_size(report.size_after)} now, in"
            f" {duration(report.seconds)}"
        )
        if report.bodies:
            new = "dictionary" if report.dictionaries == 1 else "dictionaries"
            bodies = f"{report.bodies:,} bodies were stored in another form"
            line(f"payload   {bodies}; {report.dictionaries:,} new {new}")
        if report.events:
            line(f"events    the data of {report.events:,} events was stored in blocks")
    if not report.is_complete:
        note("a transaction still reads an old state, so some space is not free; run the same command again later")
        raise typer.Exit(FAILED)
