"""Commands that fill or upgrade a store: `rollbook demo`, `migrate`, `guess-number`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line
from store.cli.output.times import local
from store.narration.events import Narrator

app = typer.Typer()


@app.command(rich_help_panel="Make")
def demo(
    *,
    db: Db = DEFAULT_DB,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random choices.")] = 0,
    runners: Annotated[
        int, typer.Option(metavar="N", min=2, help="The number of runner processes; one of them is killed.")
    ] = 4,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Train until Ctrl+C, without killing a runner.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Start a new run if the last one has finished.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tune a search engine over Python's own documentation, and kill a runner meanwhile. Takes 1 to 3 minutes, offline.

    A demo that was stopped or killed continues where it stopped. After a finished demo, the report is printed again.
    """
    from store.examples import doc_search

    if continuous:
        raise typer.Exit(doc_search.learn_live(db, seed=seed, quiet=quiet))
    describe = Narrator(local).describe
    raise typer.Exit(doc_search.main(db, seed=seed, runners=runners, new=new, quiet=quiet, describe=describe))


@app.command(rich_help_panel="Make")
def migrate(
    db: Db = DEFAULT_DB,
    app_role: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Allow this Postgres role to use the store, but not to change recorded events."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Create an empty store, or upgrade an older store with all its partitions to this version."""
    from store.db.schema import migrate as bring_to_head

    done = asyncio.run(bring_to_head(db, app_role=app_role))
    if json:
        json_document(
            [
                {
                    "partition": migration.partition,
                    "before": migration.before,
                    "after": migration.after,
                    "copy": None if migration.copy is None else str(migration.copy),
                }
                for migration in done
            ]
        )
        return
    for migration in done:
        if migration.before is None:
            line(f"{migration.partition}: created at revision {migration.after}")
        elif not migration.is_changed:
            line(f"{migration.partition}: already at revision {migration.after}")
        else:
            backup = f"; a copy of the old file is kept as {migration.copy}" if migration.copy else ""
            line(f"{migration.partition}: upgraded from revision {migration.before} to {migration.after}{backup}")


@app.command(rich_help_panel="Train")
def guess_number(
    *,
    db: Db = DEFAULT_DB,
    quick: Annotated[
        bool, typer.Option("--quick", help="Play a smaller game, with numbers up to 7. Takes 30 seconds.")
    ] = False,
    transformer: Annotated[
        bool,
        typer.Option("--transformer", help="Train a language model of Hugging Face on the smaller game, in minutes."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Train this model of Hugging Face instead: a directory, or a name on the hub."
        ),
    ] = None,
    checkpoints: Annotated[
        Path, typer.Option(metavar="DIR", file_okay=False, help="With --model: the directory for the trained versions.")
    ] = Path("checkpoints"),
    vllm: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --model: a vLLM server for the versions; see docs/training.md."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the weights and of every random choice.")] = 0,
    name: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="The name of a new run, or of a stopped or killed run to continue."),
    ] = None,
    runners: Annotated[
        int, typer.Option(metavar="N", min=0, help="The number of processes that play; 0 plays in this process.")
    ] = 2,
    chart: Annotated[
        Path, typer.Option(metavar="FILE", dir_okay=False, help="The SVG file for a chart of the training.")
    ] = Path("guess-number.svg"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train a small network from random weights by reinforcement learning, offline, in minutes. Needs PyTorch."""
    from store.examples.guess_number.course import QUICK, TRANSFORMER, WHOLE, pretrained
    from store.examples.guess_number.job import run

    chosen = WHOLE
    if model is not None:
        chosen = pretrained(model, checkpoints, vllm)
    elif vllm is not None:
        raise typer.BadParameter("needs --model with the model that vLLM was started with", param_hint="--vllm")
    elif transformer or quick:
        chosen = TRANSFORMER if transformer else QUICK
    course = replace(chosen, seed=seed)
    raise typer.Exit(run(db, course, name=name, runners=runners, chart=chart, quiet=quiet))
