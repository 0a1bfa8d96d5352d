"""`rollbook redact`: removal of the payload of single events of a rollout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli import lookup
from store.cli.errors import FAILED
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import compact, json_document, line, note, printable
from store.cli.store_context import run_reading

if TYPE_CHECKING:
    from store.operations import RedactionReport

app = typer.Typer()

_PRINTED: Final = 10
_NO_REASON: Final = "-"
"""A placeholder for the reason, if the payload is only listed."""


@app.command(rich_help_panel="Keep")
def redact(
    *,
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The id of a rollout, or the beginning of the id.")],
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The reason, at most 200 characters; the log keeps it for ever."),
    ] = None,
    db: Db = DEFAULT_DB,
    span: Annotated[str | None, typer.Option(metavar="SPAN_ID", help="Remove the payload of this span.")] = None,
    input_: Annotated[
        bool, typer.Option("--input", help="Remove the input, and metadata that was recorded with it.")
    ] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Remove the metadata, and an input that was recorded with it.")
    ] = False,
    event: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Remove the payload of this event of `rollbook history`.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Remove the payload of all events of the rollout.")] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Rewrite the file or the tables in any case; this blocks writers.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the payload for ever; without it, it is only listed.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List the payload of events of a rollout; with --yes, remove it for ever, from the database files too.

    The log stays verifiable.
    """
    # The package imports the drivers of databases, which the help of this command does not need.
    from store.operations import Redaction, redact

    if yes and reason is None:
        raise typer.BadParameter("--yes needs --reason")
    choice = {"span_id": span, "input": input_, "metadata": metadata, "event": event, "everything": all_}
    redaction = Redaction.of(reason=_NO_REASON if reason is None else reason, **choice)
    rollout_id = run_reading(db, lambda store: lookup.rollout(store, rollout))
    report = asyncio.run(redact(db, rollout_id, redaction, apply=yes, rewrite=rewrite, actor="cli"))
    if json:
        json_document(report.model_dump())
    else:
        _print(report)
    if not report.is_clean:
        note(
            "a transaction still reads an old state, so files may contain the payload; run the same command again later"
        )
        raise typer.Exit(FAILED)


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"


def _print(report: RedactionReport) -> None:
    payload = f"{_count(report.bodies, 'body', 'bodies')}, {_count(report.blobs, 'blob', 'blobs')}"
    line(f"{report.rollout_id}: {'removed' if report.is_applied else 'would remove'} {payload}")
    line(f"the log {'still contains' if report.is_applied else 'keeps'}:")
    for event in report.events[:_PRINTED]:
        line(f"  event {event.number} {event.type}  {printable(compact(event.data))}")
    if len(report.events) > _PRINTED:
        line(f"  … and {len(report.events) - _PRINTED:,} more events; --json shows them")
    if not report.is_applied:
        note("nothing was removed; --yes with --reason removes the payload of these events")
    if report.kept_blobs:
        note(f"{report.kept_blobs:,} long texts stay, because other events have the same text")
