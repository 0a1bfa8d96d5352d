"""What a user may type to train: `rollbook train`, `runner` and `proxy`. What they do lies in modules of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, Db


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to a program, in one panel of its help."""
    for command in (train, runner, proxy):
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
    from store.cli.commands import train as training

    training.train(target, agent=agent, db=db, train_file=train_file, val_file=val_file, runners=runners, seed=seed)


def runner(
    target: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="Where the agent is: package.module:NAME.")],
    *,
    store: Annotated[str, typer.Option(metavar="URL", help="Of the server, or the database, that has the tasks.")],
    count: Annotated[int, typer.Option("--runners", "-n", metavar="N", min=1, help="How many processes.")] = 1,
) -> None:
    """Run an agent on the tasks of a store until Ctrl+C or SIGTERM."""
    from store.cli.commands import train as training

    training.runner(target, store=store, count=count)


def proxy(
    *,
    backend: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=URL[,MODEL…]", help="A model server, with its /v1, and its models; may be repeated."
        ),
    ],
    db: Db = DEFAULT_DB,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Record in this store, or server, whatever --db says.")
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes any that is free.")] = 4748,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Ask the backends for token ids, as vLLM gives them.")
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ROLLBOOK_PROXY_KEY", metavar="KEY", help="What clients must send as their key."),
    ] = None,
    backend_key: Annotated[
        str | None,
        typer.Option(envvar="ROLLBOOK_BACKEND_KEY", metavar="KEY", help="Sent to the backends, not the client's."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Answer other machines without a key.")] = False,
) -> None:
    """Pass agents' calls on to their models, each recorded for its attempt, until Ctrl+C or SIGTERM."""
    from store.cli.commands import proxy as proxying

    proxying.proxy(
        proxying.Settings(
            store=store or db,
            backends=backend,
            host=host,
            port=port,
            token_ids=token_ids,
            insecure=insecure,
            api_key=api_key,
            backend_key=backend_key,
        )
    )
