"""`rollbook backup` and `restore`: a store in one file, and a store made of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, NoVerify
from store.cli.output.copying import note_name, print_report
from store.cli.output.printing import line, note
from store.cli.output.progress import progress_shown
from store.db.url import parse

app = typer.Typer()


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
        note_name(db)
