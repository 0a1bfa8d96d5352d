"""`rollbook annotate`, and functions that print labels and notes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli import lookup
from store.cli.options import DEFAULT_DB, AsJson, Db, RolloutId
from store.cli.output.printing import heading, is_terminal, json_document, line, printable
from store.cli.output.times import ago, local, utc
from store.cli.store_context import run_writing
from store.errors import Invalid

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import AnnotateResult, Annotations

_FROM_INPUT: Final = "-"

app = typer.Typer()


@app.command(rich_help_panel="Look")
def annotate(
    *,
    rollout: RolloutId,
    db: Db = DEFAULT_DB,
    note: Annotated[
        str | None,
        typer.Option(
            "--note", "-m", metavar="TEXT", help="Add this note; with -, the text is read from standard input."
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="LABEL", help="Add this label; may be repeated.")
    ] = None,
    remove_label: Annotated[
        list[str] | None, typer.Option("--remove-label", metavar="LABEL", help="Remove this label; may be repeated.")
    ] = None,
    span: Annotated[str | None, typer.Option("--span", metavar="ID", help="The span to which the note refers.")] = None,
    json: AsJson = False,
) -> None:
    """Add labels and notes to a rollout, or remove labels; `rollbook show` lists both. The log records every change."""
    from store.runtime import context

    if note is None and not label and not remove_label:
        raise typer.BadParameter("give --note TEXT, --label LABEL or --remove-label LABEL")
    if span is not None and note is None:
        raise typer.BadParameter("--span needs --note TEXT; labels belong to the rollout")
    text = _note(note)

    async def write(store: Store) -> tuple[str, AnnotateResult]:
        rollout_id = await lookup.rollout(store, rollout)
        token = context.actor.set("cli")
        try:
            return rollout_id, await store.annotations.annotate(
                rollout_id, text, add_labels=label or (), remove_labels=remove_label or (), span_id=span
            )
        finally:
            context.actor.reset(token)

    rollout_id, result = run_writing(db, write)
    if json:
        json_document({"rollout_id": rollout_id, **result.model_dump()})
        return
    outcome = f"recorded as event {result.number}" if result.number is not None else "nothing changed"
    line(f"{rollout_id}: {outcome}")
    line(f"  labels  {labels_text(result.labels)}")


def _note(option: str | None) -> str | None:
    if option != _FROM_INPUT:
        return option
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError:
        raise Invalid("--note", "standard input is not UTF-8") from None


def labels_text(labels: Sequence[str]) -> str:
    """Return labels on one line."""
    return printable(", ".join(labels)) or "none"


def print_notes(annotations: Annotations) -> None:
    """Print the notes of a rollout, if it has any."""
    if not annotations.notes:
        return
    heading("Notes")
    for note in annotations.notes:
        by = f" by {printable(note.actor)}" if note.actor else ""
        when = f"{local(note.at)} ({ago(note.at, time.time())})" if is_terminal() else utc(note.at)
        on = f", on span {printable(note.span_id)}" if note.span_id else ""
        line(f"  event {note.number}, {when}{by}{on}", style="dim")
        for text in ["(the text was deleted)"] if note.text is None else note.text.splitlines():
            line(f"    {printable(text)}")
