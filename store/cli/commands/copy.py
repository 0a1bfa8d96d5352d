"""`rollbook copy`, `backup` and `restore`: copies of a whole store."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.copying import note_name, print_part, print_report
from store.cli.output.printing import line, note
from store.cli.output.progress import progress_shown
from store.cli.query_options import condition_options, conditions_in
from store.db.url import parse
from store.models.queries import RolloutQuery

app = typer.Typer()

NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Do not verify the copy. Verification is about a third of the total time.")
]


def _with_conditions(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of `rollbook ls rollouts` in place of its parameter `query`.

    The query is None if no condition is given.
    """
    signature = inspect.signature(command, eval_str=True)
    conditions = condition_options(RolloutQuery, "Copy")
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "query"]

    @wraps(command)
    def expanded(**options: Any) -> None:
        fields = conditions_in(options, RolloutQuery)
        for parameter in conditions:
            del options[parameter.name]
        has_conditions = any(fields[name] is not None for name in RolloutQuery.conditions())
        command(query=RolloutQuery.of(**fields) if has_conditions else None, **options)

    # Typer reads the options from the signature.
    vars(expanded)["__signature__"] = signature.replace(parameters=[*parameters, *conditions])
    return expanded


@app.command(rich_help_panel="Keep")
@_with_conditions
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of the store.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of the copy, where no store may exist.")],
    *,
    query: RolloutQuery | None,
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

    if dry_run:
        if query is None:
            raise typer.BadParameter("needs a condition on rollouts, such as --group", param_hint="--dry-run")
        print_part(asyncio.run(count_rollouts(source, query)), as_json=json)
        return
    with printing():
        with progress_shown(is_quiet=json) as show:
            if query is None:
                copying = copy_store(source, target, verify=not no_verify, on_progress=show)
            else:
                copying = copy_rollouts(source, target, query, verify=not no_verify, actor="cli", on_progress=show)
            report = asyncio.run(copying)
        if report.part is not None and not json:
            print_part(report.part, as_json=False)
        print_report(report, f"copied to {parse(target).shown}", as_json=json)
        note_name(target)


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
