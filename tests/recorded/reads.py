"""Answers of the recorded databases: some reads of each kind, as JSON."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import BaseModel

from store.integrations.langgraph import RollbookSaver
from store.interface.store import Store
from store.models import PaginatedResult
from store.sql.store import SQLStore
from tests.recorded.story import START


async def answers(store: Store) -> dict[str, Any]:
    """Return the answers of reads that every store has, by what was read."""
    rollouts = (await store.query_rollouts()).items
    runs = [rollout for rollout in rollouts if rollout.metadata and rollout.metadata.get("rollbook.group") == "desk"]
    run, resumed = (run.rollout_id for run in runs)
    spanned, retried = rollouts[0].rollout_id, rollouts[3].rollout_id
    moment = datetime.fromtimestamp(START + 4.6, UTC)
    checkpoints = await store.runs.list_checkpoints(run)
    reads: dict[str, Any] = {
        "rollouts": rollouts,
        "rollouts failed or cancelled": await store.query_rollouts(
            status_in=["failed", "cancelled"], sort_by="end_time", sort_order="desc", limit=3, offset=1
        ),
        "rollouts at a time": await store.query_rollouts(as_at=moment),
        "a rollout": await store.get_rollout_by_id(spanned),
        "a rollout at an event": await store.get_rollout_by_id(retried, at=4),
        "attempts": await store.query_attempts(retried),
        "attempts at a position": await store.query_attempts(retried, as_at=45),
        "spans": await store.query_spans(spanned),
        "spans of the latest attempt": await store.query_spans(
            spanned, "latest", name_contains="e", parent_id=f"{1:016x}", filter_logic="or", sort_by="name", limit=2
        ),
        "resources": await store.query_resources(resources_id_contains="s", sort_by="update_time", sort_order="desc"),
        "resources at a position": await store.get_resources_by_id("prompts", as_at=1),
        "latest resources": await store.get_latest_resources(),
        "workers": await store.query_workers(sort_by="worker_id", sort_order="desc"),
        "busy workers at a time": await store.query_workers(status_in=["busy"], as_at=moment),
        "history": await store.log.history(retried),
        "events of a run": await store.runs.query_events(run, scope="RIG", limit=5, after=3),
        "versions of the head": [row.version for row in (await store.runs.query_events(run, limit=-1)).items],
        "graph": await store.runs.get_graph(run),
        "checkpoint": await store.runs.get_checkpoint(run, scope="TSDD", name="researched", view="raw"),
        "checkpoint of an id": await store.runs.get_checkpoint_by_id(run, checkpoints[0].checkpoint_id),
        "checkpoints": checkpoints,
        "artifacts": await store.runs.query_artifacts(run),
        "history of a scope": await store.runs.scope_history("RIG"),
        "plan": await store.runs.plan_fork(run, phase="debate", scopes=["RIG"]),
        "lineage": await store.runs.list_lineage(run),
        "lineage of the resumed run": await store.runs.list_lineage(resumed),
        "difference": await store.runs.compare_attempts(run, 1, 2),
        "annotations": await store.annotations.query(run),
        "annotations at an event": await store.annotations.query(run, at=1),
    }
    for view in ("raw", "attempt:1", "attempt:3", "own:2"):
        page = await store.runs.query_events(run, view=view, limit=-1, bodies=False)
        reads[f"versions of {view}"] = [row.version for row in page.items]
    statistics: dict[str, Any] = {**await store.statistics()}
    reads["statistics"] = {name: value for name, value in statistics.items() if name not in {"name", "uptime"}}
    return {name: _json(answer) for name, answer in reads.items()}


async def thread_answers(store: SQLStore) -> dict[str, Any]:
    """Return the answers of reads of threads, which a SQL store alone has."""
    ids = [rollout.rollout_id for rollout in await store.query_rollouts()]
    (run,) = [rollout_id for rollout_id in ids if await store.threads.list_threads(rollout_id)]
    reads: dict[str, Any] = {"threads": await store.threads.list_threads(run)}
    for thread_id in (f"{run}:RIG", "copied", "chat", "deleted"):
        name = thread_id.replace(run, "run")
        reads[f"places of {name}"] = await store.threads.list_places(thread_id)
        reads[f"latest of {name}"] = await store.threads.get_checkpoint(thread_id)
    reads["all threads"] = [
        (checkpoint.thread_id, checkpoint.ns, checkpoint.checkpoint_id)
        async for checkpoint in store.threads.iterate_checkpoints(limit=9)
    ]
    # Values as LangGraph's own serializer reads them.
    graph = await RollbookSaver(store).aget_tuple({"configurable": {"thread_id": "chat"}})
    assert graph is not None
    reads["latest of chat in LangGraph"] = [graph.config, graph.checkpoint, graph.metadata, graph.parent_config]
    return {name: _json(answer) for name, answer in reads.items()}


def _json(answer: Any) -> Any:
    match answer:
        case BaseModel():
            return answer.model_dump(mode="json")
        case PaginatedResult():
            page = cast("PaginatedResult[Any]", answer)
            return {"items": _json(page.items), "limit": page.limit, "offset": page.offset, "total": page.total}
        case bytes():
            return answer.decode()
        case dict():
            return {name: _json(value) for name, value in cast("dict[str, Any]", answer).items()}
        case list() | tuple():
            return [_json(item) for item in cast("list[Any]", answer)]
        case _ if is_dataclass(answer) and not isinstance(answer, type):
            return _json(asdict(answer))
        case _:
            return answer
