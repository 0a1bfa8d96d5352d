"""`rollbook scan` runs a scanner over rollouts that have ended, once or as they end."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from store.cli.errors import FAILED
from store.cli.option_groups import with_option_groups
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, note, printable
from store.cli.output.progress import progress_shown
from store.cli.output.tables import Column, print_table
from store.cli.query_options import with_conditions
from store.cli.store_context import check_server
from store.errors import Invalid
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.models.scanners import NewScanner
    from store.scanning import ScanReport

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class ScannerOptions:
    """The options that define a scanner."""

    search: Annotated[
        str | None, typer.Option(metavar="QUERY", help="A match is an attempt whose texts match this search.")
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="A match is an attempt with a text that this RE2 pattern matches."),
    ] = None
    scope: Annotated[
        str | None, typer.Option(metavar="SCOPE", help="With --regex: only texts of this scope, such as tool:bash.")
    ] = None
    function: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="A match is an attempt for which it returns True.")
    ] = None
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A match is an attempt for which a model answers yes.")
    ] = None
    model: Annotated[str | None, typer.Option(metavar="NAME", help="With --prompt: the model.")] = None
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="With --prompt: a server that speaks OpenAI's protocol.")
    ] = None
    match_label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The label of rollouts that people judged to match.")
    ] = None
    clear_label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The label of rollouts that people judged not to match.")
    ] = None

    def scanner(self, text: str) -> NewScanner:
        """Return the scanner with the name and version in a text such as `hacks@v1`.

        Raises:
            Invalid: no kind of scanner is chosen, or several, or an option is missing or belongs to another kind.
        """
        from store.models.scanners import NewScanner
        from store.scanning import function_definition
        from store.validation.scores import version_key

        values = {"search": self.search, "regex": self.regex, "function": self.function, "model": self.prompt}
        kinds = [(kind, value) for kind, value in values.items() if value is not None]
        if len(kinds) != 1:
            raise Invalid("scanner", "has no kind, or several; pass one of --search, --regex, --function and --prompt")
        ((kind, value),) = kinds
        fields = {"scope": self.scope, "model": self.model, "endpoint": self.endpoint}
        required: list[Literal["scope", "model", "endpoint"]] = []
        definition: dict[str, Any]
        match kind:
            case "search":
                definition = {"query": value}
            case "regex":
                definition = {"pattern": value, "scope": self.scope}
            case "function":
                definition = function_definition(value)
            case _:
                required = ["model", "endpoint"]
                definition = {"prompt": value} | {name: fields[name] for name in required}
        for name, content in fields.items():
            if name in required and content is None:
                raise Invalid(name, f"is missing; pass --{name} with --prompt")
            if content is not None and name not in definition:
                raise Invalid(name, f"does not apply to a scanner of the kind {kind}; leave out --{name}")
        key = version_key(text, "scanner")
        return NewScanner.model_validate(
            {"name": key.name, "version": key.version, "kind": kind, "definition": definition}
            | {"match_label": self.match_label, "clear_label": self.clear_label}
        )


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """The options of a run of a scanner. Their names are those of the parameters of `store.scanning.scan`."""

    key_variable: Annotated[
        str, typer.Option(metavar="NAME", help="With --prompt: the environment variable with the server's key.")
    ] = "OPENAI_API_KEY"
    follow: Annotated[bool, typer.Option("--follow", help="Scan rollouts as they end, until Ctrl+C or SIGTERM.")] = (
        False
    )
    processes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The number of processes; by default one per core.")
    ] = None
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, help="The calls of a model or an async function at once per process.")
    ] = 8
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="The maximum time of a call; a longer call is an error.")
    ] = 60.0
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=-1, help="Scan N rollouts at most.")] = -1
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Scan rollouts again whose last result is an error.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rollouts only.")] = False


@app.command(rich_help_panel="Work")
@with_option_groups
@with_conditions("Scan")
def scan(
    *,
    scanner: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="The scanner, for example hacks@v1.")],
    query: RolloutQuery,
    definition: ScannerOptions,
    execution: ExecutionOptions,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Run a scanner over rollouts that have ended, and record a match, no match or an error for every rollout."""
    from store.runtime import context
    from store.scanning import scan

    new_scanner = definition.scanner(scanner)

    async def work() -> ScanReport:
        await check_server(db)
        context.actor.set("cli")
        stopped = asyncio.Event()
        if execution.follow:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
            note("scanning rollouts as they end; stop with Ctrl+C")
        return await scan(db, new_scanner, query=query, stopped=stopped, on_progress=show, **asdict(execution))

    with progress_shown(is_quiet=json) as show:
        report = asyncio.run(work())
    if json:
        json_document(report.model_dump())
    else:
        print_table(_COLUMNS, [report])
        for kind, count in report.errors_by_type.items():
            note(f"{count:,} {printable(kind)}: {printable(report.error_examples[kind])}")
    if report.errors:
        note(f"{report.errors:,} rollouts have an error; --retry-errors scans them again")
    if report.conflicts:
        note(f"{report.conflicts:,} rollouts have a different result, which another process recorded meanwhile")
    if report.errors or report.conflicts:
        raise typer.Exit(FAILED)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


_COLUMNS: list[Column[ScanReport]] = [
    Column("scanner", lambda report: report.scanner),
    Column("scanned", lambda report: f"{report.scanned:,}", right=True),
    Column("matches", lambda report: "" if report.is_dry_run else f"{report.matches:,}", right=True),
    Column(
        "rate",
        lambda report: _share(
            report.matches / (report.scanned - report.errors)
            if report.scanned > report.errors and not report.is_dry_run
            else None
        ),
        right=True,
    ),
    Column("errors", lambda report: f"{report.errors:,}", right=True),
    Column("precision", lambda report: _share(report.precision), right=True),
    Column("recall", lambda report: _share(report.recall), right=True),
    Column("labelled", lambda report: f"{report.labelled:,}", right=True),
]
