"""What a user may type to see whole jobs: `rollbook guess-number` and `rollbook trading`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, Db


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to a program, in one panel of its help."""
    app.command("guess-number", rich_help_panel=panel)(guess_number)
    app.command(rich_help_panel=panel)(trading)


def guess_number(
    *,
    db: Db = DEFAULT_DB,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller game, numbers to 7, learned in 30 seconds.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the weights and of every choice.")] = 0,
    name: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Of the run; one that was killed or stopped goes on.")
    ] = None,
    runners: Annotated[int, typer.Option(metavar="N", min=0, help="How many processes play; 0 plays in this one.")] = 2,
    chart: Annotated[
        Path, typer.Option(metavar="FILE", dir_okay=False, help="Where to draw how it went, as SVG.")
    ] = Path("guess-number.svg"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train a small network from random weights by reinforcement, offline, in minutes. Needs PyTorch."""
    from store.examples.guess_number.course import QUICK, WHOLE
    from store.examples.guess_number.job import run

    course = replace(QUICK if quick else WHOLE, seed=seed)
    raise typer.Exit(run(db, course, name=name, runners=runners, chart=chart, quiet=quiet))


def trading(
    *,
    db: Db = DEFAULT_DB,
    stop_at: Annotated[
        str | None,
        typer.Option(
            metavar="NODE[/SCOPE]", help="Kill this process there; the same command without it goes on with the run."
        ),
    ] = None,
    pace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="What each answer of the model takes, for onlookers.")
    ] = 0.0,
) -> None:
    """Run a pipeline of phases that is killed, goes on, runs a part of itself again, and undoes that. Seconds, offline.

    A market is scanned and two tickers are debated. One of the processes dies in the middle.
    """
    from store.examples.trading.job import run

    raise typer.Exit(run(db, stop_at=stop_at, pace=pace))
