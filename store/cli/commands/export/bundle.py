"""`rollbook export bundle`: pages that a browser opens without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import byte_size, json_document, line
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration
from store.cli.query_options import with_conditions
from store.cli.store_context import run_reading
from store.errors import Invalid
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.interface.store import Store

commands = typer.Typer()


@commands.command("bundle")
@with_conditions("Export")
def bundle(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", file_okay=False, help="A new directory, which appears when it is complete.")
    ],
    *,
    query: RolloutQuery,
    db: Db = DEFAULT_DB,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier bundle.")] = False,
    json: AsJson = False,
) -> None:
    """Pages of up to 500 rollouts, which a browser opens without a server."""
    from store.dashboard.bundle.writing import BundleReport, write_bundle
    from store.sql.store import SQLStore

    async def write(store: Store) -> BundleReport:
        if not isinstance(store, SQLStore):
            raise Invalid("--db", "is a server; a bundle is made from the database itself")
        return await write_bundle(store, directory, query=query, overwrite=overwrite, on_progress=on_progress)

    with progress_shown(is_quiet=json) as on_progress:
        report = run_reading(db, write)
    if json:
        json_document(report.model_dump())
        return
    line(
        f"exported to {report.directory}: {report.rollouts:,} rollouts on {report.pages:,} pages with"
        f" {byte_size(report.size_bytes)} in {duration(report.seconds)}; open {directory / 'index.html'}"
    )
