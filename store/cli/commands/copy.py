"""`rollbook copy`: copies of a whole store, or of some rollouts."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from store.cli.options import AsJson, NoVerify
from store.cli.output.copying import note_name, print_part, print_report
from store.cli.output.progress import progress_shown
from store.cli.query_options import with_conditions
from store.db.url import parse
from store.models.queries import RolloutQuery

app = typer.Typer()


@app.command(rich_help_panel="Keep")
@with_conditions("Copy")
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of the store.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of the copy, where no store may exist.")],
    *,
    query: RolloutQuery,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With conditions: copy nothing; count what would be copied.")
    ] = False,
    no_verify: NoVerify = False,
    json: AsJson = False,
) -> None:
    """Copy a store to another database, SQLite or Postgres; the same command continues a copy that was stopped.

    With conditions on rollouts, the copy is a new store with its own id, which contains these rollouts only.
    """
    from store.operations import copy_rollouts, copy_store, count_rollouts
    from store.operations.receipts import printing

    is_part = any(getattr(query, name) is not None for name in query.conditions())
    if dry_run:
        if not is_part:
            raise typer.BadParameter("needs a condition on rollouts, such as --group", param_hint="--dry-run")
        print_part(asyncio.run(count_rollouts(source, query)), as_json=json)
        return
    with printing():
        with progress_shown(is_quiet=json) as show:
            if is_part:
                copying = copy_rollouts(source, target, query, verify=not no_verify, actor="cli", on_progress=show)
            else:
                copying = copy_store(source, target, verify=not no_verify, on_progress=show)
            report = asyncio.run(copying)
        if report.part is not None and not json:
            print_part(report.part, as_json=False)
        print_report(report, f"copied to {parse(target).shown}", as_json=json)
        note_name(target)
