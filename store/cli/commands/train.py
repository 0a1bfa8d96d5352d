"""`rollbook train` and `rollbook runner`: training with agents and trainers from Python modules."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli import json_lines
from store.cli.errors import FAILED
from store.cli.import_string import imported, named, pipeline_named
from store.cli.option_groups import with_option_groups
from store.cli.options import DEFAULT_DB, ConfirmResumes, Db, Fallback, OrphanChoice, Orphans, StoreAlias
from store.cli.output.printing import line, note, progress_line
from store.cli.runner_options import ProcessOptions
from store.cli.store_context import run_reading
from store.errors import Invalid
from store.runtime.urls import without_passwords

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.execution.strategy import RunnerSide
    from store.training.running.agent import LitAgent
    from store.training.trainer import Trainer

app = typer.Typer()

_INTERRUPTED: Final = 130
_REFRESH_SECONDS: Final = 0.5


@app.command(rich_help_panel="Train")
def train(
    target: Annotated[str, typer.Argument(metavar="MODULE:TRAINER", help="The Trainer: package.module:NAME.")],
    *,
    agent: Annotated[
        str | None, typer.Option(metavar="MODULE:AGENT", help="The agent; needed if the module has several agents.")
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this store, not the Trainer's store. Without --db, ROLLBOOK_DB is used if the Trainer has none.",
        ),
    ] = None,
    train_file: Annotated[
        Path | None,
        typer.Option("--train", metavar="FILE", exists=True, help="Tasks for training, one JSON document per line."),
    ] = None,
    val_file: Annotated[
        Path | None,
        typer.Option("--val", metavar="FILE", exists=True, help="Tasks for validation, one JSON document per line."),
    ] = None,
    runners: Annotated[int | None, typer.Option(metavar="N", min=1, help="The number of runners.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of all random choices.")] = None,
) -> None:
    """Train an agent with your Trainer, and print the report."""
    from store.training.running.agent import LitAgent
    from store.training.trainer import Trainer

    trainer: Trainer = named("MODULE:TRAINER", target, Trainer)
    acting: LitAgent[Any] = _only_agent(target) if agent is None else named("--agent", agent, LitAgent)
    # The options of the command override the settings of the Trainer.
    if db is None and not trainer.has_own_store:
        db = os.environ.get("ROLLBOOK_DB") or None
    if db is not None:
        trainer.use_store(db)
    if runners is not None:
        trainer.strategy.n_runners = runners
    if seed is not None:
        trainer.seed = seed
    tasks = None if train_file is None else json_lines.read("--train", train_file)
    val_tasks = None if val_file is None else json_lines.read("--val", val_file)
    with _exit_codes(), contextlib.closing(trainer), _progress(trainer.store):
        report = trainer.fit(acting, tasks, val_tasks, quiet=True)
    line(str(report))


@app.command(rich_help_panel="Train")
@with_option_groups
def runner(
    target: Annotated[
        str | None, typer.Argument(metavar="MODULE:AGENT", help="The agent: package.module:NAME.")
    ] = None,
    *,
    db: Db = DEFAULT_DB,
    store: StoreAlias = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:PIPELINE",
            help="Execute runs with this Pipeline, for example desk.flow:pipeline; `trading` is the trading example.",
        ),
    ] = None,
    orphans: Orphans = OrphanChoice.RESUME,
    confirm_side_effects: ConfirmResumes = False,
    fallback: Fallback = None,
    processes: ProcessOptions,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The name of the workers, before their number; default: host and process."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65535,
            help="Serve /metrics for Prometheus on this port of 127.0.0.1; further processes use the following ports.",
        ),
    ] = None,
) -> None:
    """Execute the tasks of a store with an agent, or its runs with a pipeline, until Ctrl+C or SIGTERM.

    A line is printed for each claim and each end of an attempt.

    After SIGTERM, attempts may end within --grace seconds; Ctrl+C or a second SIGTERM ends this time.

    The other attempts are cancelled, and their rollouts return to the queue for other runners.

    The runner of a pipeline claims posted runs and requested re-runs, and resumes runs whose process died.
    """
    from store.pipelines.pipeline_runner import PipelineBundle
    from store.training.bundle import RunnerBundle
    from store.training.execution.metrics_server import MeasuredBundle
    from store.training.running.agent import LitAgent

    if (target is None) == (pipeline is None):
        raise Invalid("MODULE:AGENT", "give either an agent or --pipeline MODULE:PIPELINE")
    if fallback is not None and pipeline is None:
        raise Invalid("--fallback", "it is only for runs of a pipeline; give --pipeline, or omit --fallback")
    if pipeline is not None:
        options = {
            "orphans": orphans.value,
            "confirm_side_effects": confirm_side_effects,
            "fallback_dir": fallback,
            "name": name,
            "announce": progress_line,
        }
        side: RunnerSide = PipelineBundle(pipeline_named("--pipeline", pipeline), options)
    else:
        acting: LitAgent[Any] = named("MODULE:AGENT", target or "", LitAgent)
        side = RunnerBundle(acting, name=name, announce=progress_line)
    if metrics_port is not None:
        side = MeasuredBundle(side, metrics_port)
    url = store or db
    if fallback is not None and processes.ray is not None:
        raise Invalid("--fallback", "it is a directory of one machine, so it cannot be used with --ray")
    strategy, fleet = processes.strategy(url), processes.fleet(name)
    # A missing store, an unreachable store or a refused key is reported before any process starts.
    run_reading(url, _nothing)
    progress_line(f"runner of {target or pipeline} on {without_passwords(url)}, {processes}")
    with _exit_codes("interrupted: running attempts were cancelled, and their rollouts are in the queue again"):
        strategy.run_runners(side, url, fleet)


async def _nothing(store: Store) -> None:
    del store


@contextlib.contextmanager
def _exit_codes(
    interruption: str = "interrupted: open attempts were closed, finished work is kept",
) -> Generator[None]:
    """Convert an interruption or a failure of the training to an exit code."""
    from store.training.execution import RunnersGone
    from store.training.running.early_failure import AgentFails

    try:
        yield
    except KeyboardInterrupt:
        note(interruption)
        raise typer.Exit(_INTERRUPTED) from None
    except (AgentFails, RunnersGone) as error:
        note(f"rollbook: {error}")
        raise typer.Exit(FAILED) from error


def _only_agent(target: str) -> Any:
    from store.training.running.agent import LitAgent

    module = imported("MODULE:TRAINER", target.partition(":")[0])
    defined: dict[str, Any] = module.__dict__
    agents: dict[str, Any] = {name: item for name, item in defined.items() if isinstance(item, LitAgent)}
    if not agents:
        raise Invalid("--agent", f"{module.__name__} defines no agent; name an agent as MODULE:AGENT")
    if len(agents) > 1:
        raise Invalid("--agent", f"choose one: the agents of {module.__name__} are {', '.join(sorted(agents))}")
    return next(iter(agents.values()))


@contextlib.contextmanager
def _progress(store: Store) -> Generator[None]:
    """Show the numbers of waiting, running and ended rollouts on one line, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from threading import Event, Thread

    from rich.console import Console

    ended = Event()
    with Console(stderr=True, markup=False, emoji=False).status("training …") as status:

        def show() -> None:
            while not ended.wait(_REFRESH_SECONDS):
                with contextlib.suppress(Exception):
                    status.update(_state(store))

        display = Thread(target=show, name="progress", daemon=True)
        display.start()
        try:
            yield
        finally:
            ended.set()
            display.join(_REFRESH_SECONDS)
    note(_state(store))


def _state(store: Store) -> str:
    def count(*statuses: Any) -> int:
        return store.sync.query_rollouts(status_in=statuses, limit=0).total

    waiting, running = count("queuing", "requeuing"), count("preparing", "running")
    succeeded, failed = count("succeeded"), count("failed", "cancelled")
    return f"{succeeded:,} succeeded, {failed:,} failed, {running:,} running, {waiting:,} waiting"
