"""`rollbook import`: finished rollouts that other programs recorded, from files in other formats."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.errors import FAILED
from store.cli.options import DEFAULT_DB, AsJson, Db, parameter
from store.cli.output.copying import note_name, print_report
from store.cli.output.importing import print_result
from store.cli.output.printing import json_document
from store.cli.output.progress import progress_shown
from store.cli.store_context import check_server, run_reading, run_writing
from store.db.url import parse

if TYPE_CHECKING:
    from store.imports.batches import Records

app = typer.Typer()
import_group = typer.Typer(
    name="import",
    help="Import finished rollouts that other programs recorded. A repeated import adds only what is new.",
    rich_help_panel="Keep",
    no_args_is_help=True,
)
app.add_typer(import_group)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Import nothing; report what would be imported.")]


_OPTIONS: Final = (("db", Db, DEFAULT_DB), ("dry_run", DryRun, False), ("json", AsJson, False))


def import_command(name: str) -> Callable[[Callable[..., Any]], None]:
    """Declare `rollbook import NAME` for a function that returns the records of a source.

    The command has the parameters of the function, and the options that all imports have.
    """

    def declare(read: Callable[..., Any]) -> None:
        # The type of the records is imported with the reader, because an import takes time.
        read.__annotations__.pop("return", None)

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
                *(parameter(option, annotation, default) for option, annotation, default in _OPTIONS),
            ],
            return_annotation=None,
        )
        import_group.command(name, help=inspect.getdoc(read))(command)

    return declare


@import_group.command("log")
def log(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", file_okay=False, help="A directory that `rollbook export log` wrote.")
    ],
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """A whole log, to a new store that is equal to the exported one; the same command continues after a stop."""
    from store.operations import import_log
    from store.operations.receipts import printing

    with printing():
        with progress_shown(is_quiet=json) as show:
            report = asyncio.run(import_log(directory, db, on_progress=show))
        print_report(report, f"imported to {parse(db).shown}", as_json=json)
        note_name(db)


@import_command("traces")
def traces(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", exists=True, help="A traces.jsonl, or a folder with such files at any depth."),
    ],
) -> Records:
    """Episodes that verifiers or prime-rl wrote; each trace becomes a rollout."""
    from store.imports.traces import read_traces

    return read_traces(path)


@import_command("otlp")
def otlp(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", exists=True, help="Files or directories of files.")],
) -> Records:
    """OTLP in JSON, by line or as a whole, also with gzip: rollouts that were exported, and other traces."""
    from store.imports.otlp import read_otlp

    return read_otlp(paths)


@import_command("agentlightning")
def agentlightning(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The address of the server, such as http://localhost:4747.")
    ],
) -> Records:
    """Rollouts that have ended, with attempts, spans and resources, from a running server of Agent-lightning 0.3."""
    from store.imports.agentlightning import read_server

    asyncio.run(check_server(url))
    return read_server(url)


@import_command("atif")
def atif(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="Documents, and folders with documents *.json at any depth.")
    ],
) -> Records:
    """Documents in the Agent Trajectory Interchange Format, versions 1.0 to 1.8, of exports and of other agents."""
    from store.imports.atif import atif_rollouts

    return atif_rollouts(paths)
