"""`rollbook follow` imports traces while other programs write them."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.importing import print_result
from store.cli.output.printing import line, note
from store.cli.store_context import run_writing

if TYPE_CHECKING:
    from store.imports import ImportResult
    from store.interface.store import Store

app = typer.Typer()


@app.command(rich_help_panel="Keep")
def follow(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The output folder of verifiers or prime-rl."),
    ],
    *,
    db: Db = DEFAULT_DB,
    poll: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.05, help="Look for new lines and files this often.")
    ] = 1.0,
    json: AsJson = False,
) -> None:
    """Import every traces.jsonl below DIR while it grows, until Ctrl+C or SIGTERM. Each trace is imported once.

    If the command is started again, it continues where it stopped.
    """
    from store.imports import TraceFollower

    def show(result: ImportResult) -> None:
        if json:
            line(result.model_dump_json())
        else:
            print_result(result)
        sys.stdout.flush()

    async def work(store: Store) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        note(f"following {directory}; stop with Ctrl+C")
        await TraceFollower(store, directory, on_import=show).follow(stopped, poll_seconds=poll)

    run_writing(db, work)
