"""`rollbook export`: rollouts with everything that belongs to them, as files in other formats."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.collector_options import collector_parameters, send_to_collector
from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db, parameter
from store.cli.output.printing import byte_size, json_document, line
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration
from store.cli.query_options import condition_options, conditions_in, with_conditions
from store.cli.store_context import run_reading
from store.errors import Invalid
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.exports import DatabaseReport, ExportReport
    from store.interface.store import Store

app = typer.Typer()
export = typer.Typer(
    name="export",
    help="Export rollouts with everything that belongs to them to files, for other programs.",
    rich_help_panel="Keep",
    no_args_is_help=True,
)
app.add_typer(export)

_ROWS_PER_FILE: Final = 500_000
_DOCUMENTS_PER_FOLDER: Final = 1000

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", file_okay=False, help="A new directory, or that of an export to continue.")
]
OptionalDirectory = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", file_okay=False, help="A new directory, or that of an export to continue. Not with --to."
    ),
]
Tables = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="Export only these tables, for example rollouts,spans. The default is all."),
]
Split = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FRACTION",
        help="Divide the groups of rollouts by their hashes, for example --split train=0.9 --split val=0.1.",
    ),
]
SplitBy = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Make a split of each value of group, step or mode.")
]
Redact = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD",
        help="Leave out a field: input, metadata, attributes.KEY (KEY may contain *) or TABLE.COLUMN; may be repeated.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the files of an earlier export in DIR first.")]
File = Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="A new file, not that of a store.")]
DatabaseURL = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The database: postgresql://host/database. It may be the database that contains the store."
    ),
]
Schema = Annotated[str, typer.Option(metavar="NAME", help="The name of the new schema.")]
OverwriteDatabase = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")]
RowsPerFile = Annotated[
    int, typer.Option(metavar="N", min=1, help="Begin new files when a table has this many rows in its file.")
]

DocumentsPerFolder = Annotated[
    int, typer.Option("--rows-per-file", metavar="N", min=1, help="Begin a new folder after this many documents.")
]


def _options(*, has_tables: bool, has_folders: bool = False) -> list[inspect.Parameter]:
    return [
        parameter("db", Db, DEFAULT_DB),
        *([parameter("tables", Tables)] if has_tables else []),
        *condition_options(RolloutQuery, "Export"),
        parameter("as_at", AsAt),
        parameter("split", Split),
        parameter("split_by", SplitBy),
        parameter("redact", Redact),
        parameter("rows_per_file", DocumentsPerFolder, _DOCUMENTS_PER_FOLDER)
        if has_folders
        else parameter("rows_per_file", RowsPerFile, _ROWS_PER_FILE),
        parameter("overwrite", Overwrite, default=False),
        parameter("json", AsJson, default=False),
    ]


def _command(name: str, *, has_tables: bool, has_folders: bool = False) -> Callable[[Callable[[], None]], None]:
    """Declare `rollbook export NAME`, with the docstring of the decorated function as its help."""

    def declare(described: Callable[[], None]) -> None:
        def command(directory: Path, **options: Any) -> None:
            _print(
                _export(options["db"], name, directory, _arguments(options), is_quiet=options["json"]), options["json"]
            )

        # Typer reads the options from the signature.
        vars(command)["__signature__"] = inspect.Signature(
            [
                inspect.Parameter("directory", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Directory),
                *_options(has_tables=has_tables, has_folders=has_folders),
            ]
        )
        export.command(name, help=inspect.getdoc(described))(command)

    return declare


@_command("parquet", has_tables=True)
def parquet() -> None:
    """Tables as Parquet files. The same command continues an export that was stopped."""


@_command("jsonl", has_tables=True)
def jsonl() -> None:
    """Tables as files with one JSON object per line. The same command continues an export that was stopped."""


@_command("hf", has_tables=True)
def hf() -> None:
    """Tables as a folder for `datasets.load_dataset`, with a dataset card."""


@_command("sft", has_tables=False)
def sft() -> None:
    """Conversations of the latest attempts for fine-tuning, with rewards and a loss mask."""


@_command("atif", has_tables=False, has_folders=True)
def atif() -> None:
    """Documents in the Agent Trajectory Interchange Format, one for each attempt. `rollbook import atif` reads them."""


def _database_command(
    name: str, target: Any, options_of_target: Sequence[inspect.Parameter] = ()
) -> Callable[[Callable[[], None]], None]:
    """Declare `rollbook export NAME` for a database, with the docstring of the decorated function as its help."""

    def declare(described: Callable[[], None]) -> None:
        def command(target: Any, **options: Any) -> None:
            tables: str | None = options["tables"]
            arguments = {
                "query": RolloutQuery.of(**conditions_in(options, RolloutQuery), as_at=options["as_at"]),
                "tables": None if tables is None else [table.strip() for table in tables.split(",")],
                "redact": options["redact"] or [],
                "overwrite": options["overwrite"],
                **{option.name: options[option.name] for option in options_of_target},
            }
            report = _export_database(options["db"], name, target, arguments, is_quiet=options["json"])
            _print_database(report, options["json"])

        vars(command)["__signature__"] = inspect.Signature(
            [
                inspect.Parameter("target", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=target),
                parameter("db", Db, DEFAULT_DB),
                *options_of_target,
                parameter("tables", Tables),
                *condition_options(RolloutQuery, "Export"),
                parameter("as_at", AsAt),
                parameter("redact", Redact),
                parameter("overwrite", OverwriteDatabase, default=False),
                parameter("json", AsJson, default=False),
            ]
        )
        export.command(name, help=inspect.getdoc(described))(command)

    return declare


@_database_command("sqlite", File)
def sqlite() -> None:
    """Tables and views as a SQLite file, for sqlite3, DBeaver and other SQL programs."""


@_database_command("postgres", DatabaseURL, [parameter("schema", Schema, "exported")])
def postgres() -> None:
    """Tables and views as a schema of a Postgres database, for psql, Grafana and other SQL programs."""


@export.command("bundle")
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


def _otlp(directory: Path | None = None, **options: Any) -> None:
    """Spans in the form of OpenTelemetry, as files or to a collector; --forward keeps feeding new ones."""
    if (directory is None) == (options["to"] is None):
        raise typer.BadParameter("give DIR for files, or --to for a collector")
    of_other = ("cursor", "forward", "header") if options["to"] is None else ("split", "split_by", "overwrite")
    if wrong := next((name for name in of_other if options[name]), None):
        place = "a collector" if options["to"] is None else "files"
        raise typer.BadParameter(f"is only for {place}", param_hint=f"--{wrong.replace('_', '-')}")
    if directory is None:
        send_to_collector(options)
    else:
        _print(
            _export(options["db"], "otlp", directory, _arguments(options), is_quiet=options["json"]), options["json"]
        )


vars(_otlp)["__signature__"] = inspect.Signature(
    [
        inspect.Parameter(
            "directory", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=OptionalDirectory
        ),
        *collector_parameters(),
        *_options(has_tables=False),
    ]
)
export.command("otlp", help=inspect.getdoc(_otlp))(_otlp)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an export to files, except for the progress."""
    tables: str | None = options.get("tables")
    return {
        "query": RolloutQuery.of(**conditions_in(options, RolloutQuery), as_at=options["as_at"]),
        "tables": None if tables is None else [table.strip() for table in tables.split(",")],
        "split": _fractions(options["split"] or []),
        **{key: options[key] for key in ("split_by", "overwrite", "rows_per_file")},
        "redact": options["redact"] or [],
    }


@export.command("log")
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


def _fractions(splits: list[str]) -> dict[str, float]:
    fractions: dict[str, float] = {}
    for split in splits:
        name, _, fraction = split.partition("=")
        try:
            fractions[name] = float(fraction)
        except ValueError:
            raise typer.BadParameter(
                f"{split!r} is not NAME=FRACTION, such as train=0.9", param_hint="--split"
            ) from None
    return fractions


def _export(db: str, name: str, directory: Path, arguments: dict[str, Any], *, is_quiet: bool) -> ExportReport:
    from store.exports import export_store

    with progress_shown(is_quiet=is_quiet) as on_progress:
        return run_reading(db, lambda store: export_store(store, name, directory, on_progress=on_progress, **arguments))


def _export_database(db: str, name: str, target: Any, arguments: dict[str, Any], *, is_quiet: bool) -> DatabaseReport:
    from store.exports import export_postgres, export_sqlite

    export_to: Any = export_sqlite if name == "sqlite" else export_postgres
    with progress_shown(is_quiet=is_quiet) as on_progress:
        return run_reading(db, lambda store: export_to(store, target, on_progress=on_progress, **arguments))


def _print_database(report: DatabaseReport, as_json: bool) -> None:
    if as_json:
        json_document(report.model_dump())
        return
    line(
        f"exported to {report.database}: {report.rollouts:,} rollouts at position {report.position}"
        f" in {duration(report.seconds)}"
    )
    _print_rows(report.rows)


def _print(report: ExportReport, as_json: bool) -> None:
    if as_json:
        json_document(report.model_dump())
        return
    earlier = f", {report.rollouts_before:,} of them by an earlier run" if report.rollouts_before else ""
    line(
        f"exported to {report.directory}: {report.rollouts:,} rollouts at position {report.position}{earlier};"
        f" {report.files:,} files with {byte_size(report.size_bytes)} in {duration(report.seconds)}"
    )
    _print_rows(report.rows)


def _print_rows(rows: dict[str, int]) -> None:
    for table, count in rows.items():
        line(f"{table:<13} {count:>11,} rows")
