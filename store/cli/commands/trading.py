"""The command `rollbook trading`."""

from __future__ import annotations

from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, Db

app = typer.Typer()


@app.command(rich_help_panel="Train")
def trading(
    *,
    db: Db = DEFAULT_DB,
    stop_at: Annotated[
        str | None,
        typer.Option(
            metavar="NODE[/SCOPE]",
            help="Kill this process at this step (node) of the run; the command without this option continues the run.",
        ),
    ] = None,
    pace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Delay each response of the model, to make the run easier to watch."
        ),
    ] = 0.0,
) -> None:
    """Run a pipeline of phases that is killed, resumed, re-run in part, and rolled back. Takes seconds, offline.

    The pipeline scans a market and debates two tickers. Meanwhile, one of its processes is killed.
    """
    from store.examples.trading.job import run

    raise typer.Exit(run(db, stop_at=stop_at, pace=pace))
