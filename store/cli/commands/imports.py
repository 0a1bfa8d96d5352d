"""`rollbook import`: finished rollouts that other programs recorded, from files in other formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.errors import FAILED
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line, note, printable
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration
from store.cli.query_options import parameter
from store.cli.store_context import run_reading, run_writing
from store.imports import ForeignRollout, Skipped

if TYPE_CHECKING:
    from store.imports import ImportResult

app = typer.Typer()
import_group = typer.Typer(
    name="import",
    help="Import finished rollouts that other programs recorded. A repeated import adds only what is new.",
    rich_help_panel="Keep",
    no_args_is_help=True,
)
app.add_typer(import_group)

_LISTED: Final = 20

DryRun = Annotated[bool, typer.Option("--dry-run", help="Import nothing; report what would be imported.")]


def import_command(name: str) -> Callable[[Callable[..., Any]], None]:
    """Declare `rollbook import NAME` for a function that returns the records of a source.

    The command has the parameters of the function, and the options that all imports have.
    """

    def declare(read: Callable[..., Any]) -> None:
        @wraps(read)
        def command(*, db: str, dry_run: bool, json: bool, **arguments: Any) -> None:
            from store.imports import import_rollouts

            records = read(**arguments)
            run = run_reading if dry_run else run_writing
            with progress_shown(is_quiet=json) as show:
                result = run(
                    db,
                    lambda store: import_rollouts(store, records, source=name, is_dry_run=dry_run, on_progress=show),
                )
            if json:
                json_document(result.model_dump())
            else:
                print_result(result)
            if result.skipped:
                raise typer.Exit(FAILED)

        signature = inspect.signature(read, eval_str=True)
        # Typer reads the options from the signature.
        vars(command)["__signature__"] = signature.replace(
            parameters=[
                *signature.parameters.values(),
                parameter("db", Db, DEFAULT_DB),
                parameter("dry_run", DryRun, default=False),
                parameter("json", AsJson, default=False),
            ],
            return_annotation=None,
        )
        import_group.command(name, help=inspect.getdoc(read))(command)

    return declare


def print_result(result: ImportResult) -> None:
    """Print the counts of an import, and the parts that were skipped with the reasons."""
    verb = "would import" if result.is_dry_run else "imported"
    continued = f"{result.continued:,} that an earlier import had begun, " if result.continued else ""
    extended = f"{result.extended:,} extended, " if result.extended else ""
    line(
        f"{verb} {result.imported:,} rollouts, {continued}{result.spans:,} spans; {extended}"
        f"{result.unchanged:,} unchanged, {result.skipped:,} skipped; {duration(result.seconds)}"
    )
    for skip in result.skips[:_LISTED]:
        note(f"skipped {printable(skip.place)}: {printable(skip.reason)}")
    if result.skipped > _LISTED:
        note(f"and {result.skipped - _LISTED:,} more; --json lists up to 1,000")


@import_command("traces")
def traces(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", exists=True, help="A traces.jsonl, or a folder with such files at any depth."),
    ],
) -> Iterable[ForeignRollout | Skipped]:
    """Episodes that verifiers or prime-rl wrote; each trace becomes a rollout."""
    from store.imports.traces import read_traces

    return read_traces(path)
