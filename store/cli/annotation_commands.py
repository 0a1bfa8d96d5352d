"""What a user may type about what is said of rollouts: `rollbook annotate`."""

from __future__ import annotations

from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, RolloutId


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the command to a program, in one panel of its help."""
    app.command(rich_help_panel=panel)(annotate)


def annotate(
    *,
    rollout: RolloutId,
    db: Db = DEFAULT_DB,
    note: Annotated[
        str | None, typer.Option("--note", "-m", metavar="TEXT", help="What to say of it; - reads standard input.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="LABEL", help="To find it by; may be repeated.")
    ] = None,
    remove_label: Annotated[
        list[str] | None, typer.Option("--remove-label", metavar="LABEL", help="To take off; may be repeated.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Put labels on a rollout, take others off, or make a note; the log says who did, and `show` shows them."""
    if note is None and not label and not remove_label:
        raise typer.BadParameter("say something: --note TEXT, --label LABEL or --remove-label LABEL")
    from store.cli.commands import annotate as annotating

    annotating.annotate(db, rollout, note, labels=label or (), remove_labels=remove_label or (), json=json)
