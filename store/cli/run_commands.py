"""What a user may type about runs: `rollbook runs`, `rerun`, `lineage`, `compare`, `undo`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db

RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id, which is that of its rollout; or the beginning.")
]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the log.")]


class OnMissing(Enum):
    """What to do where a scope has no checkpoint to start from."""

    ERROR = "error"
    FULL = "full"


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to a program, in one panel of its help."""
    for command in (runs, rerun, lineage, compare, undo):
        app.command(rich_help_panel=panel)(command)


def runs(
    *,
    db: Db = DEFAULT_DB,
    scope: Annotated[
        str | None, typer.Option(metavar="NAME", help="What runs made for this scope instead, as the log spells it.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of that, only what is called so.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most N.")] = 20,
    json: AsJson = False,
) -> None:
    """The newest runs, and how far each has come; or with --scope, what they decided about something."""
    from store.cli.commands import runs as run_listing

    if scope is not None:
        run_listing.of_scope(db, scope, name, limit, json=json)
    elif name is not None:
        raise typer.BadParameter("--name goes with --scope")
    else:
        run_listing.runs(db, limit, json=json)


def rerun(
    given: RunId,
    *,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="From the phase of this node on.")] = None,
    phase: Annotated[str | None, typer.Option(metavar="NAME", help="From this phase on.")] = None,
    scope: Annotated[list[str] | None, typer.Option(metavar="NAME", help="For this scope; may be repeated.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, and do nothing.")] = False,
    base: Annotated[str, typer.Option(metavar="head|N", help="Build on the head, or on attempt N.")] = "head",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=JSON", help="Set this in the state it starts from; may be repeated."),
    ] = None,
    runs_it: Annotated[
        str | None,
        typer.Option("--with", metavar="MODULE:PIPELINE", help="Also run it, here and now, with this Pipeline."),
    ] = None,
    reason: Reason = None,
    confirm_side_effects: Annotated[
        bool, typer.Option("--confirm-side-effects", help="Repeat phases with unsafe side effects.")
    ] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade/--no-cascade", help="Whether phases of other scopes that depend on it follow.")
    ] = True,
    on_missing: Annotated[
        OnMissing, typer.Option(help="Where a scope has no checkpoint: refuse, or run all of it.")
    ] = OnMissing.ERROR,
    supersede: Annotated[bool, typer.Option("--supersede", help="End an attempt that is still at work.")] = False,
    allow_graph_change: Annotated[
        bool, typer.Option("--allow-graph-change", help="Start from checkpoints of another phase graph.")
    ] = False,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Run a part of a run again: prints the plan, and starts the attempt."""
    from store.cli.commands import rerun as rerunning

    asked = rerunning.Asked(
        node=node,
        phase=phase,
        scopes=scope or [],
        base=rerunning.view_of(base),
        on_missing=on_missing.value,
        cascade=cascade,
    )
    how = rerunning.How(
        state_patch=rerunning.patch_of(settings or []),
        reason=reason,
        confirm_side_effects=confirm_side_effects,
        supersede=supersede,
        allow_graph_change=allow_graph_change,
    )
    if plan:
        rerunning.plan(db, given, asked, json=json)
    else:
        raise typer.Exit(rerunning.rerun(db, given, asked, how, runs_it, json=json))


def lineage(given: RunId, *, db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """The attempts of a run: what each builds on, what it ran again, which one is the head."""
    from store.cli.commands import lineage as run_attempts

    run_attempts.lineage(db, given, json=json)


def compare(
    given: RunId,
    a: Annotated[int, typer.Argument(metavar="A", min=1, help="The number of an attempt.")],
    b: Annotated[int, typer.Argument(metavar="B", min=1, help="The number of another one.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="On a terminal, show what is the same, too.")] = False,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """What changed from the view of attempt A to that of attempt B, node by node."""
    from store.cli.commands import lineage as run_attempts

    run_attempts.compare(db, given, a, b, everything=everything, json=json)


def undo(
    given: RunId,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ATTEMPT", help="Back to this attempt, by its number or id; else what the re-run built on."
        ),
    ] = None,
    reason: Reason = None,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Take a re-run back, or forth again: another attempt's view becomes that of the run. Nothing is deleted."""
    from store.cli.commands import lineage as run_attempts

    run_attempts.undo(db, given, to, reason, json=json)
