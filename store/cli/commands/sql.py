"""`rollbook sql`: a statement in SQL over the tables and views that exports have."""

from __future__ import annotations

import csv
import inspect
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db, parameter
from store.cli.output.printing import compact, json_document, note
from store.cli.output.progress import progress_shown
from store.cli.output.tables import Column, print_table
from store.cli.query_options import condition_options, conditions_in
from store.cli.store_context import run_reading
from store.errors import Invalid
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.exports import SQLResult

app = typer.Typer()

_ROWS: Final = 1000
_SECONDS: Final = 60.0


class RowFormat(Enum):
    """The form in which rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


Statement = Annotated[
    str,
    typer.Argument(
        metavar="STATEMENT", help="The statement, a file that contains it, or - for standard input.", show_default=False
    ),
]
FormatOption = Annotated[
    RowFormat,
    typer.Option("--format", help="A table, CSV with a line of titles, or a JSON list with an object per row."),
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=-1, help="Print at most N rows; -1 prints all.")]
Timeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0.001, help="Stop after this time, which includes the read of the store."),
]


def _with_conditions(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose signature, from which Typer reads the options, has those of the conditions on rollouts."""
    vars(command)["__signature__"] = inspect.Signature(
        [
            inspect.Parameter("statement", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Statement),
            parameter("db", Db, DEFAULT_DB),
            parameter("form", FormatOption, RowFormat.TABLE),
            parameter("json", AsJson, default=False),
            parameter("limit", Limit, _ROWS),
            parameter("timeout", Timeout, _SECONDS),
            *condition_options(RolloutQuery, "Read"),
            parameter("as_at", AsAt),
        ]
    )
    return command


@app.command(rich_help_panel="Look")
@_with_conditions
def sql(statement: str, **options: Any) -> None:
    """Run a statement in SQL that only reads, over rollouts, spans, messages, model calls and others.

    The tables and views are those of docs/sql.md, for the rollouts that the other options choose.
    """
    text = _text(statement)
    query = RolloutQuery.of(**conditions_in(options, RolloutQuery), as_at=options["as_at"])
    result = _run(options["db"], text, query, options["limit"], options["timeout"])
    _print(result, RowFormat.JSON if options["json"] else options["form"])
    if result.is_truncated:
        note(f"Only the first {len(result.rows):,} rows are printed; --limit -1 prints all.")


def _text(statement: str) -> str:
    """Return the statement that an argument gives."""
    if statement == "-":
        return sys.stdin.read()
    # A statement of one word does not exist, so this is the name of a file.
    if len(statement.split()) != 1:
        return statement
    try:
        return Path(statement).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Invalid("statement", f"the file {statement} is not UTF-8") from None
    except OSError as error:
        raise Invalid(
            "statement", f"{statement!r} is no statement, and the file cannot be read: {error.strerror}"
        ) from None


def _run(db: str, statement: str, query: RolloutQuery, limit: int, seconds: float) -> SQLResult:
    from store.exports import query_sql

    with progress_shown(is_quiet=False) as on_progress:
        return run_reading(
            db, lambda store: query_sql(store, statement, query, limit=limit, seconds=seconds, on_progress=on_progress)
        )


def _print(result: SQLResult, form: RowFormat) -> None:
    match form:
        case RowFormat.CSV:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(result.columns)
            writer.writerows([[_plain(value) for value in row] for row in result.rows])
        case RowFormat.JSON:
            if len(set(result.columns)) < len(result.columns):
                raise Invalid(
                    "statement", f"several columns have one name; name them with AS: {', '.join(result.columns)}"
                )
            json_document([dict(zip(result.columns, map(_plain, row), strict=True)) for row in result.rows])
        case RowFormat.TABLE:
            columns: list[Column[tuple[Any, ...]]] = [
                Column(title, _cell(place), right=_is_numeric(result, place), shrinks=True)
                for place, title in enumerate(result.columns)
            ]
            print_table(columns, result.rows)


def _plain(value: Any) -> Any:
    """Return a value for CSV and JSON; bytes as hex digits."""
    return value.hex() if isinstance(value, bytes) else value


def _cell(place: int) -> Callable[[tuple[Any, ...]], str]:
    def text(row: tuple[Any, ...]) -> str:
        value = _plain(row[place])
        match value:
            case None:
                return ""
            case float():
                return f"{value:.10g}"
            case str():
                return value
            case _:
                return compact(value)

    return text


def _is_numeric(result: SQLResult, place: int) -> bool:
    return any(isinstance(row[place], int | float) for row in result.rows)
