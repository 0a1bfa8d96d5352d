"""`rollbook runs`: the newest runs, or the artifacts that runs saved for a scope."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store import semconv
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import compact, is_terminal, json_document, note
from store.cli.output.tables import Column, print_table, time_column
from store.cli.store_context import run_reading
from store.errors import Unavailable

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import Artifact, ArtifactRef, Rollout

app = typer.Typer()

_AT_ONCE: Final = 20
_LOOKED_AT: Final = 1000
"""The maximum number of rollouts that are read. A store may contain millions of rollouts that are not runs."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A run and its progress."""

    rollout: Rollout
    attempts: int
    """The number of attempts."""
    head: int | None
    """The number of the head; None without attempts."""
    done: int
    """The number of phases that are completed, where a phase counts once for each scope."""
    begun: int
    """The number of phases that have begun, including the completed phases."""

    def json(self) -> dict[str, Any]:
        progress = {"attempts": self.attempts, "head": self.head, "phases_done": self.done, "phases_begun": self.begun}
        return {"rollout": self.rollout.model_dump()} | progress


@dataclass(frozen=True, slots=True)
class _SavedArtifact:
    """An artifact of a run, with its content if the content is available."""

    ref: ArtifactRef
    content: Artifact | None


def _started(rollout: Rollout) -> float:
    from store.planning.imported_runs import times_of

    return times_of(rollout)[0]


_RUNS: Final[tuple[Column[_Run], ...]] = (
    Column("run", lambda run: run.rollout.rollout_id),
    Column("status", lambda run: run.rollout.status, is_status=True),
    Column("attempts", lambda run: str(run.attempts), right=True),
    Column("head", lambda run: "" if run.head is None else str(run.head), right=True),
    Column("phases", lambda run: f"{run.done}/{run.begun}", lambda run, _: f"{run.done} of {run.begun}", right=True),
    time_column("started", lambda run: _started(run.rollout)),
    Column("group", lambda run: str((run.rollout.metadata or {}).get(semconv.GROUP_KEY) or "")),
    Column("input", lambda run: compact(run.rollout.input), shrinks=True),
)

_FOLDERS: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("run", lambda run: run["id"]),
    Column("status", lambda run: run["status"], is_status=True),
    time_column("started", lambda run: run["created_at"]),
    Column("group", lambda run: run["flow_id"] or ""),
    Column("input", lambda run: compact(run["params"]), shrinks=True),
)

_ARTIFACTS: Final[tuple[Column[_SavedArtifact], ...]] = (
    Column("run", lambda artifact: artifact.ref.rollout_id),
    Column("attempt", lambda artifact: str(artifact.ref.attempt), right=True),
    time_column("saved", lambda artifact: artifact.ref.at),
    Column("name", lambda artifact: artifact.ref.name),
    Column("phase", lambda artifact: artifact.ref.phase or ""),
    Column("retracted", lambda artifact: "retracted" if artifact.ref.retracted else ""),
    Column(
        "content", lambda artifact: "" if artifact.content is None else compact(artifact.content.content), shrinks=True
    ),
)


@app.command(rich_help_panel="Runs")
def runs(
    *,
    db: Db = DEFAULT_DB,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of runs, list the artifacts that runs saved for the scope (such as a ticker) of this name.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --scope: show only artifacts of this name.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N rows.")] = 20,
    fallback: Annotated[
        Path | None, typer.Option(metavar="DIR", help="List the run folders below DIR if the store is unavailable.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the newest runs with their progress or, with --scope, the artifacts that runs saved for a scope."""
    if scope is not None:
        _print_scope(db, scope, name, limit, json=json)
    elif name is not None:
        raise typer.BadParameter("--name can only be used together with --scope")
    else:
        try:
            _print_runs(db, limit, json=json)
        except Unavailable as error:
            if fallback is None:
                raise
            from store.run_folders.listing import listed_runs

            note(f"the store is unavailable, so these are the run folders below {fallback}: {error}")
            rows = listed_runs(fallback)[:limit]
            if json:
                json_document(rows)
            else:
                print_table(_FOLDERS, rows)


def _print_runs(db: str, limit: int, *, json: bool) -> None:
    """Print the newest rollouts that have run events."""
    from store.models.queries import RolloutQuery

    async def read(store: Store) -> tuple[list[_Run], int, int]:
        rows: list[_Run] = []
        looked_at = 0
        while True:
            page = await store.find_rollouts(
                RolloutQuery.of(sort_by="start_time", sort_order="desc", limit=_AT_ONCE, offset=looked_at)
            )
            page_runs = await asyncio.gather(*(_run_of(store, rollout) for rollout in page))
            rows.extend(run for run in page_runs if run is not None)
            looked_at += len(page)
            if len(rows) >= limit or not page or looked_at >= min(page.total, _LOOKED_AT):
                newest = sorted(rows[:limit], key=lambda run: _started(run.rollout), reverse=True)
                return newest, looked_at, page.total

    rows, looked_at, total = run_reading(db, read)
    if json:
        json_document([run.json() for run in rows])
    elif rows or not is_terminal():
        print_table(_RUNS, rows)
    else:
        note("no rollout has run events yet")
    if len(rows) < limit and looked_at < total:
        note(f"read only the newest {looked_at:,} of {total:,} rollouts")


async def _run_of(store: Store, rollout: Rollout) -> _Run | None:
    from store.planning.progress import COMPLETED

    events = await store.runs.query_events(rollout.rollout_id, view="raw", limit=1, bodies=False)
    if not events.items:
        return None
    nodes = await store.runs.list_lineage(rollout.rollout_id)
    begun = await _phases(store, rollout, "phase.started")
    done = {phase for kind in sorted(COMPLETED) for phase in await _phases(store, rollout, kind)}
    head = next((node.sequence_id for node in nodes if node.is_head), None)
    return _Run(rollout, len(nodes), head, len(done), len(begun | done))


async def _phases(store: Store, rollout: Rollout, kind: str) -> set[tuple[str | None, str | None]]:
    page = await store.runs.query_events(rollout.rollout_id, kind=kind, limit=-1, bodies=False)
    return {(event.scope, event.phase) for event in page.items}


def _print_scope(db: str, scope: str, name: str | None, limit: int, *, json: bool) -> None:
    """Print the artifacts that all runs saved for a scope, newest first."""

    async def read(store: Store) -> list[_SavedArtifact]:
        refs = await store.runs.scope_history(scope, name=name, limit=limit)
        contents: dict[str, Artifact] = {}
        for rollout_id in dict.fromkeys(ref.rollout_id for ref in refs):
            of_run = await store.runs.query_artifacts(rollout_id, scope=scope, name=name, view="raw")
            contents |= {artifact.artifact_id: artifact for artifact in of_run}
        return [_SavedArtifact(ref, contents.get(ref.artifact_id)) for ref in refs]

    artifacts = run_reading(db, read)
    if json:
        json_document([(artifact.content or artifact.ref).model_dump() for artifact in artifacts])
    elif artifacts or not is_terminal():
        print_table(_ARTIFACTS, artifacts)
    if not artifacts:
        note(f"no run has saved an artifact for {scope!r}; give the exact name of the scope")
