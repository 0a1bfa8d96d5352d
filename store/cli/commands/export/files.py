"""`rollbook export parquet`, `jsonl`, `hf`, `sft` and `atif`: files in a directory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.commands.export.options import Directory, Overwrite, Redact, Tables, names_in
from store.cli.commands.export.reports import print_files
from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db, FailedAs, missing_choice, parameter
from store.cli.output.progress import progress_shown
from store.cli.query_options import condition_options, conditions_in
from store.cli.store_context import run_reading
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.exports import ExportReport

commands = typer.Typer()

_ROWS_PER_FILE: Final = 500_000
_DOCUMENTS_PER_FOLDER: Final = 1000

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
RowsPerFile = Annotated[
    int, typer.Option(metavar="N", min=1, help="Begin new files when a table has this many rows in its file.")
]
DocumentsPerFolder = Annotated[
    int, typer.Option("--rows-per-file", metavar="N", min=1, help="Begin a new folder after this many documents.")
]


def file_options(
    *, has_tables: bool, has_folders: bool = False, has_failed_as: bool = False
) -> list[inspect.Parameter]:
    """Return the options of an export to files, as parameters of a command."""
    return [
        parameter("db", Db, DEFAULT_DB),
        *([parameter("tables", Tables)] if has_tables else []),
        *condition_options(RolloutQuery, "Export"),
        parameter("as_at", AsAt),
        parameter("split", Split),
        parameter("split_by", SplitBy),
        parameter("redact", Redact),
        *([parameter("failed_as", FailedAs, "out")] if has_failed_as else []),
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
            export_files(name, directory, options)

        # Typer reads the options from the signature.
        vars(command)["__signature__"] = inspect.Signature(
            [
                inspect.Parameter("directory", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Directory),
                *file_options(has_tables=has_tables, has_folders=has_folders, has_failed_as=not has_folders),
            ]
        )
        commands.command(name, help=inspect.getdoc(described))(command)

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


def export_files(name: str, directory: Path, options: dict[str, Any]) -> None:
    """Export to files in a format, as the options of a command state, and print a report."""
    report = _export(options["db"], name, directory, _arguments(options), is_quiet=options["json"])
    print_files(report, options["json"])


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an export to files, except for the progress."""
    return {
        "query": RolloutQuery.of(**conditions_in(options, RolloutQuery), as_at=options["as_at"]),
        "tables": names_in(options.get("tables")),
        "split": _fractions(options["split"] or []),
        **{key: options[key] for key in ("split_by", "overwrite", "rows_per_file")},
        "redact": options["redact"] or [],
        "unrewarded": missing_choice(options.get("failed_as", "out")),
    }


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
