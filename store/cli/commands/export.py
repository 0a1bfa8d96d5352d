"""`rollbook export`: rollouts with everything that belongs to them, as files in other formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db
from store.cli.output.printing import byte_size, json_document, line
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration
from store.cli.query_options import condition_options, conditions_in, parameter
from store.cli.store_context import run_reading
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.exports import ExportReport

app = typer.Typer()
export = typer.Typer(
    name="export",
    help="Export rollouts with everything that belongs to them to files, for other programs.",
    rich_help_panel="Keep",
    no_args_is_help=True,
)
app.add_typer(export)

_ROWS_PER_FILE: Final = 500_000

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", file_okay=False, help="A new directory, or that of an export to continue.")
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
RowsPerFile = Annotated[
    int, typer.Option(metavar="N", min=1, help="Begin new files when a table has this many rows in its file.")
]


def _command(name: str, *, has_tables: bool) -> Callable[[Callable[[], None]], None]:
    """Declare `rollbook export NAME`, with the docstring of the decorated function as its help."""

    def declare(described: Callable[[], None]) -> None:
        def command(directory: Path, **options: Any) -> None:
            tables: str | None = options.get("tables")
            query = RolloutQuery.of(**conditions_in(options, RolloutQuery), as_at=options["as_at"])
            arguments = {
                "query": query,
                "tables": None if tables is None else [table.strip() for table in tables.split(",")],
                "split": _fractions(options["split"] or []),
                **{key: options[key] for key in ("split_by", "overwrite", "rows_per_file")},
                "redact": options["redact"] or [],
            }
            _print(_export(options["db"], name, directory, arguments, is_quiet=options["json"]), options["json"])

        # Typer reads the options from the signature.
        vars(command)["__signature__"] = inspect.Signature(
            [
                inspect.Parameter("directory", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Directory),
                parameter("db", Db, DEFAULT_DB),
                *([parameter("tables", Tables)] if has_tables else []),
                *condition_options(RolloutQuery, "Export"),
                parameter("as_at", AsAt),
                parameter("split", Split),
                parameter("split_by", SplitBy),
                parameter("redact", Redact),
                parameter("rows_per_file", RowsPerFile, _ROWS_PER_FILE),
                parameter("overwrite", Overwrite, default=False),
                parameter("json", AsJson, default=False),
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


def _print(report: ExportReport, as_json: bool) -> None:
    if as_json:
        json_document(report.model_dump())
        return
    earlier = f", {report.rollouts_before:,} of them by an earlier run" if report.rollouts_before else ""
    line(
        f"exported to {report.directory}: {report.rollouts:,} rollouts at position {report.position}{earlier};"
        f" {report.files:,} files with {byte_size(report.size_bytes)} in {duration(report.seconds)}"
    )
    for table, rows in report.rows.items():
        line(f"{table:<13} {rows:>11,} rows")
