"""`rollbook rerun`: the plan of a partial re-run, its start, and its execution with a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import orjson
import typer

from store.cli import lookup
from store.cli.errors import FAILED, OK
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
from store.interface.store import Store
from store.models import AttemptStatus, ForkPlan, ForkResult, PhaseGraph
from store.models import runs as run_models
from store.planning.plan import of_plan

if TYPE_CHECKING:
    from store.training import Pipeline

app = typer.Typer()

_CURES: Final[dict[type[Conflict], str]] = {
    AttemptActive: "wait until the attempt ends, or give --supersede to end it",
    CheckpointMissing: "start from an earlier phase, or give --on-missing full to run the whole scope",
    GraphChanged: "re-run from an earlier phase, or give --allow-graph-change if its state is still valid",
    HeadMoved: "another client changed the run meanwhile; check the plan again with --plan",
    SideEffectsUnconfirmed: "give --confirm-side-effects to repeat them, or --no-cascade to keep the other scopes",
}
"""Advice for the command line; the store's own messages give advice for Python."""


@dataclass(frozen=True, slots=True)
class _Selection:
    """The part of the run to repeat: the arguments of `runs.plan_fork`."""

    node: str | None
    phase: str | None
    scopes: Sequence[str]
    base: str
    on_missing: run_models.OnMissing
    cascade: bool


@dataclass(frozen=True, slots=True)
class _Options:
    """Further arguments of `runs.fork`."""

    state_patch: dict[str, Any] | None
    reason: str | None
    confirm_side_effects: bool
    supersede: bool
    allow_graph_change: bool


class OnMissing(Enum):
    """The behaviour if a scope has no checkpoint to start from."""

    ERROR = "error"
    FULL = "full"


@app.command(rich_help_panel="Runs")
def rerun(
    given: RunId,
    *,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Re-run from the phase of this node.")] = None,
    phase: Annotated[str | None, typer.Option(metavar="NAME", help="Re-run from this phase.")] = None,
    scope: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Re-run this scope; may be repeated.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan without starting it.")] = False,
    base: Annotated[str, typer.Option(metavar="head|N", help="Build on the head, or on attempt N.")] = "head",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=JSON", help="Set this key in the state it starts from; may be repeated."),
    ] = None,
    runs_it: Annotated[
        str | None,
        typer.Option("--with", metavar="MODULE:PIPELINE", help="Also execute it, in this process, with this Pipeline."),
    ] = None,
    reason: Reason = None,
    confirm_side_effects: Annotated[
        bool, typer.Option("--confirm-side-effects", help="Repeat phases with unsafe side effects.")
    ] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade/--no-cascade", help="Whether to re-run dependent phases of other scopes.")
    ] = True,
    on_missing: Annotated[
        OnMissing, typer.Option(help="If a scope has no checkpoint: refuse, or run the whole scope.")
    ] = OnMissing.ERROR,
    supersede: Annotated[bool, typer.Option("--supersede", help="End an attempt that is still active.")] = False,
    allow_graph_change: Annotated[
        bool, typer.Option("--allow-graph-change", help="Start from checkpoints of another phase graph.")
    ] = False,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Re-run a part of a run: print the plan and start the attempt."""
    selection = _Selection(
        node=node,
        phase=phase,
        scopes=scope or [],
        base=_view_of(base),
        on_missing=on_missing.value,
        cascade=cascade,
    )
    options = _Options(
        state_patch=_patch_of(settings or []),
        reason=reason,
        confirm_side_effects=confirm_side_effects,
        supersede=supersede,
        allow_graph_change=allow_graph_change,
    )
    if plan:
        _print_planned(db, given, selection, json=json)
    else:
        raise typer.Exit(_start(db, given, selection, options, runs_it, json=json))


def _view_of(base: str) -> str:
    """Return the view that `--base` names: `head` or `attempt:3`, which may be written as `3`."""
    return f"attempt:{base}" if base.isascii() and base.isdigit() else base


def _patch_of(settings: Sequence[str]) -> dict[str, Any] | None:
    """Return the changes of the state from `--set`, or None if there are none.

    Raises:
        Invalid: a value is not of the form key=JSON.
    """
    patch: dict[str, Any] = {}
    for each in settings:
        key, equals, text = each.partition("=")
        if not key or not equals:
            raise Invalid("--set", f"{each!r} is not of the form KEY=JSON")
        try:
            patch[key] = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise Invalid("--set", f"{text!r} is not JSON; a text needs its quotes: --set '{key}=\"…\"'") from error
    return patch or None


def _print_planned(db: str, given: str, selection: _Selection, *, json: bool) -> None:
    """Print the plan of a re-run."""

    async def read(store: Store) -> ForkPlan:
        return await store.runs.plan_fork(await lookup.rollout(store, given), **asdict(selection))

    try:
        found = run_reading(db, read)
    except Conflict as error:
        raise _curable(error) from error
    if json:
        json_document(found.model_dump())
        return
    _print_plan(found)
    note("this is only the plan; run the command without --plan to start it")


def _start(db: str, given: str, selection: _Selection, options: _Options, runs_it: str | None, *, json: bool) -> int:
    """Start a re-run, execute it if a pipeline is given, and return the exit code."""
    pipeline = None if runs_it is None else _pipeline(runs_it)

    async def work(store: Store) -> tuple[ForkResult, str | None]:
        run_id = await lookup.rollout(store, given)
        planned = await store.runs.plan_fork(run_id, **asdict(selection))
        if not json:
            _print_plan(planned)
            if options.state_patch:
                line(f"{'sets':<10}  {printable(', '.join(options.state_patch))}")
        scopes = {} if pipeline is None else await _scopes(store, planned, pipeline.graph)
        started = await store.runs.fork(
            run_id,
            **asdict(selection),
            expected_head=planned.head,
            state_patch=options.state_patch,
            reason=options.reason,
            confirm_side_effects=options.confirm_side_effects,
            allow_graph_change=options.allow_graph_change,
            on_active="supersede" if options.supersede else "reject",
        )
        if not json:
            _print_started(started, is_run=pipeline is not None)
        return started, None if pipeline is None else await _run(store, started, pipeline, scopes)

    try:
        started, status = run_writing(db, work)
    except Conflict as error:
        raise _curable(error) from error
    if json:
        json_document(started.model_dump() | {"status": status})
    elif status is not None:
        line(f"attempt {started.attempt.sequence_id} {status}")
    return FAILED if status == "failed" else OK


def _curable(error: Conflict) -> Conflict:
    return Conflict(error.reason, _CURES.get(type(error), error.cure))


def _print_plan(found: ForkPlan) -> None:
    for name, text in of_plan(found):
        line(f"{name:<10}  {printable(text)}")


def _print_started(started: ForkResult, *, is_run: bool) -> None:
    number = started.attempt.sequence_id
    line(f"attempt {number} has started: {started.attempt.attempt_id}")
    if not is_run:
        note("the program of this pipeline continues it with Pipeline.run; --with MODULE:PIPELINE executes it here")


# -- execution -------------------------------------------------------------------------------------------------------


def _pipeline(target: str) -> Pipeline:
    from store.cli.import_string import named
    from store.training import Pipeline

    found: Pipeline = named("--with", target, Pipeline)
    return found


async def _run(store: Store, started: ForkResult, pipeline: Pipeline, scopes: Mapping[str, Sequence[str]]) -> str:
    """Execute the attempt, report its final status, and return that."""
    status: AttemptStatus = "failed"
    try:
        await pipeline.run(store, started.rollout, scopes)
        status = "succeeded"
    except Exception as error:  # noqa: BLE001 - the user's functions may raise anything
        for each in _causes(error):
            note(f"rollbook: {type(each).__name__}: {each}")
    finally:
        await store.update_attempt(started.rollout.rollout_id, started.attempt.attempt_id, status=status)
    return status


def _causes(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    group = cast("ExceptionGroup[Exception]", error)
    return [cause for each in group.exceptions for cause in _causes(each)]


async def _scopes(store: Store, planned: ForkPlan, graph: PhaseGraph) -> dict[str, list[str]]:
    """Return the scopes of each kind in the base attempt, in the order of their first events.

    If the base has no scope of a kind yet, the scopes of the whole run are used.

    Raises:
        Invalid: the run has no scope of some kind.
    """
    found: dict[str, list[str]] = {}
    for view in (f"attempt:{planned.base}", "raw"):
        seen = await _scopes_in(store, planned.rollout_id, view, graph)
        found |= {kind: scopes for kind, scopes in seen.items() if kind not in found}
    for phase in graph.phases:
        if phase.scope_kind not in found and graph.scope_kinds[phase.scope_kind].fixed is None:
            raise Invalid("--with", f"the run has no {phase.scope_kind} yet, so its phases cannot be re-run")
    return found


async def _scopes_in(store: Store, run_id: str, view: str, graph: PhaseGraph) -> dict[str, list[str]]:
    page = await store.runs.query_events(run_id, view=view, limit=-1, bodies=False)
    found: dict[str, dict[str, None]] = {}
    for event in page.items:
        phases = graph.phases_of(event.node_id) if event.node_id is not None else []
        phase = phases[0] if len(phases) == 1 else graph.by_name.get(event.phase or "")
        if phase is not None and event.scope is not None:
            found.setdefault(phase.scope_kind, {})[event.scope] = None
    return {kind: list(scopes) for kind, scopes in found.items()}
