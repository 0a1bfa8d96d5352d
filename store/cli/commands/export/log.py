"""`rollbook export log`: the whole log, for `rollbook import log`."""

from __future__ import annotations

import asyncio

import typer

from store.cli.commands.export.options import Directory, Overwrite
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import byte_size, json_document, line
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration

commands = typer.Typer()


@commands.command("log")
def log(
    directory: Directory,
    db: Db = DEFAULT_DB,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """The whole log, with the exact text of every event; `rollbook import log` makes an equal store from it.

    The same command continues an export that was stopped. The files do not contain API keys.
    """
    from store.operations import export_log

    with progress_shown(is_quiet=json) as show:
        report = asyncio.run(export_log(db, directory, overwrite=overwrite, on_progress=show))
    if json:
        json_document(report.model_dump())
        return
    earlier = f", {report.events_before:,} of them by an earlier run" if report.events_before else ""
    line(
        f"exported to {directory}: {report.events:,} events up to position {report.position}, commit"
        f" {report.commit_id}{earlier}; {report.files:,} files with {byte_size(report.size_bytes)} in"
        f" {duration(report.seconds)}"
    )
    line(f"store id    {report.store_id}")
    line(f"chain head  {report.chain_head}")
