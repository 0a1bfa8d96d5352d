"""What a user may type to train: `rollbook train` and `rollbook runner`. What they do lies in `training`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to a program, in one panel of its help."""
    for command in (train, runner):
        app.command(rich_help_panel=panel)(command)


def train(
    target: Annotated[str, typer.Argument(metavar="MODULE:TRAINER", help="Where the Trainer is: package.module:NAME.")],
    *,
    agent: Annotated[
        str | None, typer.Option(metavar="MODULE:AGENT", help="The agent; needed if the module has several.")
    ] = None,
    db: Annotated[str | None, typer.Option(metavar="URL", help="Keep everything there, not where it says.")] = None,
    train_file: Annotated[
        Path | None, typer.Option("--train", metavar="FILE", exists=True, help="Tasks to train on, one JSON a line.")
    ] = None,
    val_file: Annotated[
        Path | None, typer.Option("--val", metavar="FILE", exists=True, help="Tasks to judge by, one JSON a line.")
    ] = None,
    runners: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many runners.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of what is left to chance.")] = None,
) -> None:
    """Train an agent with a Trainer of yours, and print what came of it."""
    from store.cli import training

    training.train(target, agent=agent, db=db, train_file=train_file, val_file=val_file, runners=runners, seed=seed)


def runner(
    target: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="Where the agent is: package.module:NAME.")],
    *,
    store: Annotated[str, typer.Option(metavar="URL", help="Of the server, or the database, that has the tasks.")],
    count: Annotated[int, typer.Option("--runners", "-n", metavar="N", min=1, help="How many processes.")] = 1,
) -> None:
    """Run an agent on the tasks of a store until Ctrl+C or SIGTERM."""
    from store.cli import training

    training.runner(target, store=store, count=count)
