"""`rollbook rerun`: repeat a part of a run as a new attempt.

The command prints the plan of the re-run. Then it requests the re-run from the runners of the pipeline, or executes the
re-run in this process. The re-run of a phase may cascade: dependent phases of other scopes then run again, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from store.cli import lookup
from store.cli.errors import FAILED, OK
from store.cli.import_string import pipeline_named
from store.cli.option_groups import with_option_groups
from store.cli.options import DEFAULT_DB, AsJson, Db, Reason, RunId
from store.cli.output.printing import json_document, line, note, printable
from store.cli.store_context import run_reading, run_writing
from store.errors import (
    AttemptActive,
    CheckpointMissing,
    Conflict,
    GraphChanged,
    HeadMoved,
    Invalid,
    SideEffectsUnconfirmed,
)

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import AttemptedRollout, ForkPlan, ForkResult
    from store.models import runs as run_models
    from store.training import Pipeline

app = typer.Typer()

_CURES: Final[dict[type[Conflict], str]] = {
    AttemptActive: "wait until the attempt ends, or give --supersede to end it",
    CheckpointMissing: "re-run from an earlier phase, or give --on-missing full to run the whole scope",
    GraphChanged: "re-run from an earlier phase, or give --allow-graph-change if the saved state is still valid",
    HeadMoved: "another client changed the run meanwhile; check the plan again with --plan",
    SideEffectsUnconfirmed: "give --confirm-side-effects to repeat them, or --no-cascade to keep the other scopes",
}
"""Advice for users of the command line. The advice in the messages of the store is for users of the Python API."""


class OnMissing(Enum):
    """What to do if a scope has no checkpoint to start from: refuse the re-run, or re-run the whole scope."""

    ERROR = "error"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """The part of the run to repeat, and how to repeat it."""

    node: Annotated[str | None, typer.Option(metavar="NAME", help="Re-run from the phase of this node.")] = None
    phase: Annotated[str | None, typer.Option(metavar="NAME", help="Re-run from this phase.")] = None
    scope: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Re-run this scope; may be repeated.")] = None
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan without starting the re-run.")] = False
    base: Annotated[str, typer.Option(metavar="head|N", help="The attempt to build on: the head, or attempt N.")] = (
        "head"
    )
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=JSON", help="Set this key in the state that the re-run starts from; may be repeated."
        ),
    ] = None
    runs_it: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="MODULE:PIPELINE",
            help="Execute the re-run in this process, with this Pipeline; `trading` is the Pipeline of the example.",
        ),
    ] = None
    reason: Reason = None
    confirm_side_effects: Annotated[
        bool, typer.Option("--confirm-side-effects", help="Repeat phases with unsafe side effects.")
    ] = False
    cascade: Annotated[
        bool, typer.Option("--cascade/--no-cascade", help="Whether to re-run dependent phases of other scopes.")
    ] = True
    on_missing: Annotated[
        OnMissing, typer.Option(help="If a scope has no checkpoint: refuse the re-run, or re-run the whole scope.")
    ] = OnMissing.ERROR
    supersede: Annotated[bool, typer.Option("--supersede", help="End an attempt that is still active.")] = False
    allow_graph_change: Annotated[
        bool, typer.Option("--allow-graph-change", help="Accept checkpoints that belong to a different phase graph.")
    ] = False

    def selection(self) -> dict[str, Any]:
        """Return the arguments of `runs.plan_fork`."""
        is_number = self.base.isascii() and self.base.isdigit()
        return {
            "node": self.node,
            "phase": self.phase,
            "scopes": self.scope or [],
            "base": f"attempt:{self.base}" if is_number else self.base,
            "on_missing": self.on_missing.value,
            "cascade": self.cascade,
        }

    def changes(self) -> dict[str, Any]:
        """Return further arguments of `runs.fork`.

        Raises:
            Invalid: an option `--set` is not of the form KEY=JSON.
        """
        return {
            "state_patch": _patch_of(self.settings or []),
            "reason": self.reason,
            "confirm_side_effects": self.confirm_side_effects,
            "supersede": self.supersede,
            "allow_graph_change": self.allow_graph_change,
        }


@app.command(rich_help_panel="Runs")
@with_option_groups
def rerun(run: RunId, *, options: RerunOptions, db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """Re-run a part of a run: print the plan, and ask a runner of the run's pipeline to start the re-run."""
    selection, changes = options.selection(), options.changes()
    if options.plan:
        _print_planned(db, run, selection, json=json)
    else:
        raise typer.Exit(_start(db, run, selection, changes, options.runs_it, json=json))


def _patch_of(settings: Sequence[str]) -> dict[str, Any] | None:
    """Return the changes of the state that the options `--set` give, or None without such options.

    Raises:
        Invalid: an option is not of the form KEY=JSON.
    """
    patch: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not key or not equals:
            raise Invalid("--set", f"{setting!r} is not of the form KEY=JSON")
        try:
            patch[key] = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise Invalid("--set", f"{text!r} is not JSON; a text needs its quotes: --set '{key}=\"…\"'") from error
    return patch or None


def _print_planned(db: str, run: str, selection: dict[str, Any], *, json: bool) -> None:
    """Print the plan of a re-run."""

    async def read(store: Store) -> ForkPlan:
        return await store.runs.plan_fork(await lookup.rollout(store, run), **selection)

    try:
        planned = run_reading(db, read)
    except Conflict as error:
        raise _curable(error) from error
    if json:
        json_document(planned.model_dump())
        return
    _print_plan(planned)
    note("this is only the plan; run the command without --plan to start the re-run")


def _start(
    db: str, run: str, selection: dict[str, Any], changes: dict[str, Any], runs_it: str | None, *, json: bool
) -> int:
    """Request a re-run, or execute the re-run if a pipeline is given, and return the exit code.

    `runs_it` is the value of `--with`.
    """
    pipeline = None if runs_it is None else pipeline_named("--with", runs_it)

    async def work(store: Store) -> int:
        run_id = await lookup.rollout(store, run)
        planned = await store.runs.plan_fork(run_id, **selection)
        if not json:
            _print_plan(planned)
            if changes["state_patch"]:
                line(f"{'sets':<10}  {printable(', '.join(changes['state_patch']))}")
        if pipeline is None:
            await _request(store, planned, selection, changes, json=json)
            return OK
        return await _execute(store, planned, selection, changes, pipeline, json=json)

    try:
        return run_writing(db, work)
    except Conflict as error:
        raise _curable(error) from error


def _curable(error: Conflict) -> Conflict:
    return Conflict(error.reason, _CURES.get(type(error), error.cure))


def _print_plan(plan: ForkPlan) -> None:
    from store.planning.plan import of_plan

    for name, text in of_plan(plan):
        line(f"{name:<10}  {printable(text)}")


async def _request(
    store: Store, planned: ForkPlan, selection: dict[str, Any], changes: dict[str, Any], *, json: bool
) -> None:
    """Request the re-run from the runners of the pipeline."""
    from store.interface.rerun_requests import request_rerun

    answer = await request_rerun(store, planned.rollout_id, **selection, **changes, expected_head=planned.head)
    if json:
        json_document(answer.model_dump() | {"message": answer.message})
    elif answer.attempt is not None:
        line(f"attempt {answer.attempt} has started, by a runner of the pipeline")
    else:
        line(f"requested: {answer.request_id}")
    if answer.message is not None:
        note(answer.message)
        note("--with MODULE:PIPELINE executes the re-run here")


async def _execute(
    store: Store,
    planned: ForkPlan,
    selection: dict[str, Any],
    changes: dict[str, Any],
    pipeline: Pipeline,
    *,
    json: bool,
) -> int:
    """Execute the re-run in this process, and return the exit code."""
    from store.pipelines.pipeline_runner import PipelineRunner

    await _check_scopes(store, planned, pipeline)
    forked: list[ForkResult] = []

    async def start(worker_id: str) -> AttemptedRollout:
        arguments = dict(changes)
        on_active: run_models.OnActive = "supersede" if arguments.pop("supersede") else "reject"
        forked.append(
            await store.runs.fork(
                planned.rollout_id,
                **selection,
                **arguments,
                on_active=on_active,
                expected_head=planned.head,
                worker_id=worker_id,
            )
        )
        if not json:
            line(f"attempt {forked[0].attempt.sequence_id} has started: {forked[0].attempt.attempt_id}")
        return forked[0].rollout

    # Errors of the pipeline are printed below, so the logger must not print them with a traceback.
    logging.getLogger("store.training.attempt").setLevel(logging.CRITICAL)
    outcome = await PipelineRunner(pipeline).execute(store, start)
    for error in _causes(outcome.error):
        note(f"rollbook: {type(error).__name__}: {error}")
    if json:
        json_document(forked[0].model_dump() | {"status": outcome.status})
    else:
        line(f"attempt {forked[0].attempt.sequence_id} {outcome.status}")
    return OK if outcome.status == "succeeded" else FAILED


def _causes(error: Any) -> list[BaseException]:
    """Return the exceptions of all phases that failed, or only `error` if it has another cause.

    The list is empty if `error` is None.
    """
    if error is None:
        return []
    # If several phases fail, the runner raises the first of their exceptions. Its cause is the group of all exceptions.
    cause: Any = error.__cause__
    return _leaves(cause) if _is_group(cause) else [error]


def _leaves(error: Any) -> list[BaseException]:
    if not _is_group(error):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _is_group(error: Any) -> bool:
    return isinstance(error, ExceptionGroup)


async def _check_scopes(store: Store, planned: ForkPlan, pipeline: Pipeline) -> None:
    rollout = await store.get_rollout_by_id(planned.rollout_id)
    assert rollout is not None  # its re-run was planned
    try:
        await pipeline.scopes_of(store, rollout, f"attempt:{planned.base}", planned)
    except Invalid as error:
        raise Invalid("--with", error.reason) from None
