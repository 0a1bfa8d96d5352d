"""Functions that read runs, used by the methods about runs."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import pages, run_views
from store.db.queries import runs as run_queries
from store.db.queries.bodies import payload
from store.db.queries.run_views import Standing, View
from store.errors import Invalid, NotFound
from store.interface.runs import AsAt
from store.journal.state_view import StateView
from store.models import PhaseGraph, Snapshot
from store.planning.rows import RESULTS, ViewEvent
from store.semconv import DROPPED
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.mapping import runs as run_mapping
from store.sql.mapping.runs import RunAttempts
from store.validation import arguments

T = TypeVar("T")
ReadView = Callable[[ReadSession, View, Standing], Awaitable[T]]


async def read_view(
    core: SQLCore, rollout_id: str, view: str, as_at: AsAt | None, at: int | None, read: ReadView[T]
) -> T:
    """Read a view of a run, now or at a past moment, in one snapshot of the database.

    Args:
        core: the core of the store.
        rollout_id: the id of the run.
        view: the name of the view: `head`, `attempt:<n>`, `own:<n>` or `raw`.
        as_at: a moment of the log; None for the present.
        at: the number of an event of the run; None for the present.
        read: a function that reads from the session. It gets the parsed view and the state of the run.

    Raises:
        NotFound: the rollout or the attempt does not exist at that moment.
        Invalid: an argument is invalid.
    """
    arguments.text(rollout_id, "rollout_id")
    form, attempt = run_views.parse(arguments.text(view, "view"))

    async def read_state(state: StateView) -> T:
        session, until = state.session, state.position
        standing = await run_views.standing(session, rollout_id, until)
        if standing is None:
            raise NotFound.rollout(rollout_id)
        if attempt is not None and not await run_views.has_attempt(session, rollout_id, attempt, until):
            raise NotFound.attempt(str(attempt), rollout_id)
        return await read(session, View(form, attempt or standing.head or 0, until), standing)

    return await core.view(read_state, as_at, (rollout_id, at), sweeps=False, snapshot=True)


async def payloads_of(
    session: ReadSession, rows: Sequence[NamedRow], events: Sequence[NamedRow] | None = None
) -> tuple[dict[int, dict[str, Any]], dict[str, str]]:
    """Return the payload of rows of `run_views.events`: the bodies by log position, and the long texts by hash.

    Args:
        session: a connection to the database.
        rows: the rows.
        events: the rows of `events` with their bodies, if they were read before.
    """
    if events is None:
        payloads = await run_queries.payloads(session, [row.position for row in rows])
    else:
        positions = {row.position for row in rows}
        payloads = await run_queries.payloads_in(session, [event for event in events if event.position in positions])
    hashes = [digest for row in rows for digest in _hashes_of_texts(row)]
    texts = await run_queries.texts(session, hashes)
    for row in rows:
        if any(digest not in texts for digest in _hashes_of_texts(row)):
            payloads.setdefault(row.position, {})[DROPPED] = True
    return payloads, texts


def _hashes_of_texts(row: NamedRow) -> list[str]:
    return [digest for digest in (row.prompt_sha256, row.response_sha256) if digest is not None]


async def events_of_view(session: ReadSession, rollout_id: str, run_view: View) -> list[ViewEvent]:
    """Return the events of a view without payload."""
    return list(map(run_mapping.view_event, await run_views.events(session, rollout_id, run_view)))


async def newest_checkpoint(session: ReadSession, rollout_id: str, run_view: View, **only: str) -> Snapshot | None:
    """Return the newest checkpoint of a view with the given scope, name or id."""
    rows = await run_views.checkpoints(session, rollout_id, run_view, newest=True, **only)
    if not rows:
        return None
    row = rows[0]
    payloads = await run_queries.payloads(session, [row.position])
    return run_mapping.snapshot(rollout_id, row, payloads.get(row.position))


async def checkpoint_in_group(
    session: ReadSession, rollout_id: str, group_id: str, until: int, scope: str, name: str
) -> Snapshot | None:
    """Return the newest checkpoint of a scope and name in other runs of a group; None if there is none.

    A run counts only if its input has the same `date` as the input of the run `rollout_id`. A checkpoint counts only if
    the view of its run's head contains it.
    """
    date = _date_of(await run_queries.input_of(session, rollout_id))
    best: Snapshot | None = None
    for row in await run_queries.companions(session, group_id, scope, name):
        if row.rollout_id == rollout_id or _date_of((payload(row.codec, row.body) or {}).get("input")) != date:
            continue
        standing = await run_views.standing(session, row.rollout_id, until)
        if standing is None or standing.head is None:
            continue
        run_view = View("seen", standing.head, until)
        checkpoint = await newest_checkpoint(session, row.rollout_id, run_view, scope=scope, name=name)
        if checkpoint is not None and (best is None or checkpoint.position > best.position):
            best = checkpoint
    return best


async def family_of(session: ReadSession, rollout_id: str, standing: Standing) -> RunAttempts:
    """Return the attempts of a run, each with the attempt that it builds on."""
    rows = await run_queries.forks(session, rollout_id)
    payloads = await run_queries.payloads(session, [row.position for row in rows])
    saved = await run_views.checkpoints(session, rollout_id, View("raw", 0)) if rows else ()
    checkpoints = {row.checkpoint_id: run_mapping.checkpoint(rollout_id, row) for row in saved}
    return RunAttempts(
        head=standing.head,
        attempts=await run_queries.attempts(session, rollout_id),
        forks={row.version: run_mapping.fork(row, payloads.get(row.position), checkpoints) for row in rows},
        event_counts=await run_queries.event_counts(session, rollout_id),
    )


async def with_responses(session: ReadSession, rows: Sequence[NamedRow], common: set[int]) -> list[ViewEvent]:
    """Return events without payload. A result has the hash of its response, unless its version is in `common`."""
    events = {row.position: run_mapping.view_event(row) for row in rows}
    without_hash = [
        position
        for position, event in events.items()
        if event.kind in RESULTS and event.response_sha256 is None and event.version not in common
    ]
    for position, body in (await run_queries.payloads(session, without_hash)).items():
        events[position] = replace(events[position], response_sha256=_hash_of(body))
    return list(events.values())


async def phase_graph_of(session: ReadSession, standing: Standing) -> PhaseGraph | None:
    """Return the phase graph among the resources of a run; None if there is none.

    Raises:
        Invalid: the resources contain several phase graphs.
    """
    if standing.resources_id is None:
        return None
    row = await pages.resources_by_id(session, standing.resources_id)
    published = {} if row is None else rollout_mapping.resources_of_page(row).resources
    graphs = [resource for resource in published.values() if isinstance(resource, PhaseGraph)]
    if len(graphs) > 1:
        names = ", ".join(name for name, resource in published.items() if isinstance(resource, PhaseGraph))
        raise Invalid(
            "graph",
            f"resources {standing.resources_id} contain several phase graphs: {names}; give one of them as graph=",
        )
    return graphs[0] if graphs else None


def _date_of(input_: Any) -> Any:
    return input_.get("date") if isinstance(input_, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON


def _hash_of(body: dict[str, Any]) -> str | None:
    response = body.get("response")
    return hashlib.sha256(response.encode()).hexdigest() if isinstance(response, str) else None
