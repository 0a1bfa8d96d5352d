"""`rollbook copy`, `backup` and `restore`: copies of a whole store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.copying import print_report
from store.cli.output.printing import line, note
from store.cli.output.progress import progress_shown
from store.db.url import parse

app = typer.Typer()

NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Do not verify the copy. Verification is about a third of the total time.")
]


@app.command(rich_help_panel="Keep")
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of the store.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of the copy, where no store may exist.")],
    no_verify: NoVerify = False,
    json: AsJson = False,
) -> None:
    """Copy a store to another database, SQLite or Postgres; the same command continues a copy that was stopped."""
    from store.operations import copy_store
    from store.operations.receipts import printing

    with printing():
        with progress_shown(is_quiet=json) as show:
            report = asyncio.run(copy_store(source, target, verify=not no_verify, on_progress=show))
        print_report(report, f"copied to {parse(target).shown}", as_json=json)
        _note_name(target)


@app.command(rich_help_panel="Keep")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    db: Db = DEFAULT_DB,
    no_verify: NoVerify = False,
    json: AsJson = False,
) -> None:
    """Back up a store into one file, while it is in use; the same command continues a backup that was stopped."""
    from store.operations import backup_store
    from store.operations.receipts import printing

    with printing():
        with progress_shown(is_quiet=json) as show:
            report = asyncio.run(backup_store(db, file, verify=not no_verify, on_progress=show))
        print_report(report, f"backed up to {file}", as_json=json)
        if not json and report.seal is not None:
            line(f"seal        {report.seal.model_dump_json()}")
            note(f"to restore it: rollbook restore {file} --db URL")


@app.command(rich_help_panel="Keep")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `rollbook backup` wrote.")],
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Check a backup against its seal, and restore it to a new store; the same command continues after a stop."""
    from store.operations import restore_store
    from store.operations.receipts import printing

    with printing():
        with progress_shown(is_quiet=json) as show:
            report = asyncio.run(restore_store(file, db, on_progress=show))
        print_report(report, f"restored to {parse(db).shown}", as_json=json)
        _note_name(db)


def _note_name(url: str) -> None:
    """Print a note if a new file has a name that a partition of another store would have."""
    from store.db.schema.partition_files import place_like

    parsed = parse(url)
    if parsed.path is None or parsed.path != parsed.main:
        return
    if (partition_file := place_like(parsed.path)) is not None:
        note(
            f"{parsed.path.name} has the name of a partition {partition_file.partition} of {partition_file.main.name},"
            " but is a store of its own; another name avoids mistakes"
        )
