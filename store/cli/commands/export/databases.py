"""`rollbook export sqlite` and `postgres`: tables and views in a database."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from store.cli.commands.export.options import Redact, Tables, names_in
from store.cli.commands.export.reports import print_database
from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db, FailedAs, missing_choice, parameter
from store.cli.output.progress import progress_shown
from store.cli.query_options import condition_options, conditions_in
from store.cli.store_context import run_reading
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.exports import DatabaseReport

commands = typer.Typer()

File = Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="A new file, not that of a store.")]
DatabaseURL = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The database: postgresql://host/database. It may be the database that contains the store."
    ),
]
Schema = Annotated[str, typer.Option(metavar="NAME", help="The name of the new schema.")]
OverwriteDatabase = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")]


def _database_command(
    name: str, target: Any, options_of_target: Sequence[inspect.Parameter] = ()
) -> Callable[[Callable[[], None]], None]:
    """Declare `rollbook export NAME` for a database, with the docstring of the decorated function as its help."""

    def declare(described: Callable[[], None]) -> None:
        def command(target: Any, **options: Any) -> None:
            arguments = {
                "query": RolloutQuery.of(**conditions_in(options, RolloutQuery), as_at=options["as_at"]),
                "tables": names_in(options["tables"]),
                "redact": options["redact"] or [],
                "unrewarded": missing_choice(options["failed_as"]),
                "overwrite": options["overwrite"],
                **{option.name: options[option.name] for option in options_of_target},
            }
            report = _export_database(options["db"], name, target, arguments, is_quiet=options["json"])
            print_database(report, options["json"])

        vars(command)["__signature__"] = inspect.Signature(
            [
                inspect.Parameter("target", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=target),
                parameter("db", Db, DEFAULT_DB),
                *options_of_target,
                parameter("tables", Tables),
                *condition_options(RolloutQuery, "Export"),
                parameter("as_at", AsAt),
                parameter("redact", Redact),
                parameter("failed_as", FailedAs, "out"),
                parameter("overwrite", OverwriteDatabase, default=False),
                parameter("json", AsJson, default=False),
            ]
        )
        commands.command(name, help=inspect.getdoc(described))(command)

    return declare


@_database_command("sqlite", File)
def sqlite() -> None:
    """Tables and views as a SQLite file, for sqlite3, DBeaver and other SQL programs."""


@_database_command("postgres", DatabaseURL, [parameter("schema", Schema, "exported")])
def postgres() -> None:
    """Tables and views as a schema of a Postgres database, for psql, Grafana and other SQL programs."""


def _export_database(db: str, name: str, target: Any, arguments: dict[str, Any], *, is_quiet: bool) -> DatabaseReport:
    from store.exports import export_postgres, export_sqlite

    export_to: Any = export_sqlite if name == "sqlite" else export_postgres
    with progress_shown(is_quiet=is_quiet) as on_progress:
        return run_reading(db, lambda store: export_to(store, target, on_progress=on_progress, **arguments))
