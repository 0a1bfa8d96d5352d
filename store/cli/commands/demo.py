"""Commands that fill or upgrade a store: `rollbook demo`, `migrate`, `guess-number`, `trading`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line

app = typer.Typer()


@app.command(rich_help_panel="Make")
def demo(
    *,
    db: Db = DEFAULT_DB,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the queries chosen and the rankings tried.")] = 0,
    runners: Annotated[int, typer.Option(metavar="N", min=2, help="How many processes work; one is killed.")] = 4,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Ask and learn without end, until Ctrl+C; nothing is killed.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tune a search engine over Python's own documentation, killing a runner on the way. Two minutes, no network.

    Stopped or killed before its end, it goes on where it was.
    """
    from store.examples import doc_search

    if continuous:
        raise typer.Exit(doc_search.learn_live(db, seed=seed, quiet=quiet))
    raise typer.Exit(doc_search.main(db, seed=seed, runners=runners, quiet=quiet))


@app.command(rich_help_panel="Make")
def migrate(
    db: Db = DEFAULT_DB,
    app_role: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let this Postgres role use the store, but not change its log.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Make an empty store, or bring an older one, with all its partitions, up to this version."""
    from store.db.schema import migrate as bring_to_head

    done = asyncio.run(bring_to_head(db, app_role=app_role))
    if json:
        json_document(
            [
                {
                    "partition": each.partition,
                    "before": each.before,
                    "after": each.after,
                    "copy": None if each.copy is None else str(each.copy),
                }
                for each in done
            ]
        )
        return
    for each in done:
        if each.before is None:
            line(f"{each.partition}: created at revision {each.after}")
        elif not each.is_changed:
            line(f"{each.partition}: was at revision {each.after} already")
        else:
            kept = f", the file from before is kept as {each.copy}" if each.copy else ""
            line(f"{each.partition}: upgraded from revision {each.before} to {each.after}{kept}")


@app.command(rich_help_panel="Train")
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


@app.command(rich_help_panel="Train")
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
