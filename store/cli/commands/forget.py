"""`rollbook forget`: search for a text in all payload, and removal of the payload that contains it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli.errors import FAILED
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line, note, printable
from store.cli.output.progress import progress_shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.operations import ForgetReport, Match

app = typer.Typer()

_PRINTED: Final = 20


@app.command(rich_help_panel="Keep")
def forget(
    *,
    match: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="The text to search for, 3 to 1,000 characters. It also matches parts of keys and numbers.",
        ),
    ],
    db: Db = DEFAULT_DB,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", help="Do not distinguish upper and lower case.")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The reason, at most 200 characters; the log keeps it for ever."),
    ] = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Rewrite the file or the tables in any case; this blocks writers.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the payload for ever; without it, the matches are only listed.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List the payload of all rollouts that contains a text; with --yes, remove it as `redact` does."""
    # The package imports the drivers of databases, which the help of this command does not need.
    from store.operations import Search, forget

    if yes and reason is None:
        raise typer.BadParameter("--yes needs --reason")
    if not yes and (reason is not None or rewrite):
        raise typer.BadParameter("--reason and --rewrite need --yes; the payload cannot be restored")
    search = Search.of(text=match, ignore_case=ignore_case)
    with progress_shown(is_quiet=json) as show:
        report = asyncio.run(forget(db, search, reason=reason, rewrite=rewrite, actor="cli", on_progress=show))
    if json:
        json_document(report.model_dump())
    else:
        _print(report)
    if not report.is_clean:
        note(
            "a transaction still reads an old state, so files may contain the payload; run the same command again later"
        )
        raise typer.Exit(FAILED)


def _print(report: ForgetReport) -> None:
    if not report.is_applied:
        _list(report.matches)
    line(f"rollouts  {report.rollouts:>10,}")
    line(f"events    {len(report.matches):>10,}")
    if report.is_applied:
        line(f"bodies    {report.bodies:>10,}  removed")
        line(f"blobs     {report.blobs:>10,}  removed")
    elif report.matches:
        note("nothing was removed; --yes with --reason removes the payload of these events")
    if report.kept:
        note(f"{len(report.kept):,} places keep the text, because they are not payload of a rollout:")
        _list(report.kept)


def _list(matches: Sequence[Match]) -> None:
    for match in matches[:_PRINTED]:
        line(f"{match.stream} event {match.number} {match.type} {printable(match.field)}: {printable(match.excerpt)}")
    if len(matches) > _PRINTED:
        line(f"… and {len(matches) - _PRINTED:,} more; --json shows them")
