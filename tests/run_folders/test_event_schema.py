"""An exported folder has every field of its schema, only known kinds in its main file, and describes the head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from store import open_store
from store.interface.store import Store
from store.models import RunEvent
from store.run_folders import export_run_folder, import_run_folder
from store.training import Pipeline, Step
from tests.run_folders.folder_samples import DAY, all_events, content_of, tree, with_defaults
from tests.runs.trading import TA
from tests.runs.trading_runs import auto_run, begin, complete_rerun, ended, rerun

ALWAYS = {"type", "node_id", "identifier", "agent", "timestamp", "message", "service", "metrics", "rerun_seq", "id"}
KINDS = {"thought", "tool", "tool_result", "result", "log", "system"}


def written(folder: Path, name: str = "run_events.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


async def test_every_event_has_all_fields_of_the_schema(store: Store, tmp_path: Path) -> None:
    run = await begin(store)
    bare = [RunEvent(kind=kind, node_id=None if kind == "log" else "tool_news", scope="RIG") for kind in sorted(KINDS)]
    failed = RunEvent(kind="tool_result", node_id="tool_news", scope="RIG", error="Error: no")
    await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, [*bare, failed])
    events = written(await export_run_folder(store, run.rollout_id, tmp_path))
    assert all(set(event) >= ALWAYS for event in events)
    by_kind = {event["type"]: event for event in events[:-1]}
    assert by_kind.keys() == KINDS
    assert by_kind["thought"]["parent_node_id"] == "start"
    assert (by_kind["log"]["node_id"], by_kind["log"]["agent"]) == ("__system__", "SYSTEM")
    assert (by_kind["tool"]["status"], by_kind["tool"]["message"]) == ("running", "▶ Tool: news")
    assert (by_kind["tool_result"]["status"], by_kind["tool_result"]["agent"]) == ("success", "TOOL_NEWS")
    assert (events[-1]["status"], events[-1]["message"]) == ("error", "✗ Tool result: news | Error: no")


async def test_a_node_of_a_pipeline_sets_every_field(store: Store) -> None:
    run = await begin(store)
    pipeline = Pipeline(TA)

    async def work(step: Step) -> None:
        async with step.node(
            "Market Analyst", prompt="What of it?", model="m-1", node_exec="e1", agent="ANALYST"
        ) as call:
            async with step.node("tool_prices", under="Market Analyst", prompt="RIG", service="yahoo") as tool:
                tool.response, tool.status = "fallback to the cache", "graceful_skip"
            call.response, call.message, call.extra = "x" * 400, "said", {"seed": 7}
            call.metrics["tokens_in"] = 3

    for name in TA.by_name:
        pipeline.phase(name)(work)
    await pipeline.run(store, run, {"ticker": ["RIG"], "portfolio": []})
    events = [row for row in await all_events(store, run.rollout_id) if row.scope == "RIG" and row.node_id]
    thought, tool, skipped, result = events[:4]
    assert (thought.message, thought.metrics, thought.agent) == (
        "Prompting m-1… | What of it?",
        {"model": "m-1"},
        "ANALYST",
    )
    assert (tool.status, tool.service, tool.message) == ("running", "yahoo", "▶ Tool: prices | RIG")
    assert (skipped.status, skipped.service, skipped.prompt) == ("graceful_skip", "yahoo", "RIG")
    assert skipped.message == "⚠ Tool result: prices | fallback to the cache"
    assert (result.message, result.prompt, result.node_exec, result.extra) == ("said", "What of it?", "e1", {"seed": 7})
    assert (result.metrics or {}).keys() == {"model", "tokens_in", "latency_ms"}


async def test_events_of_other_kinds_are_in_the_extension_and_come_back_in_their_places(
    store: Store, tmp_path: Path
) -> None:
    run = await auto_run(store)
    again = await complete_rerun(store, run, "debate_and_trader", "RIG")
    custom = RunEvent.model_validate({"kind": "own word", "message": "m", "more": [1]})
    await store.runs.append_events(again.rollout_id, again.attempt.attempt_id, [custom])
    out = await export_run_folder(store, run.rollout_id, tmp_path / "one")
    assert {line["type"] for line in written(out)} <= KINDS
    extension = written(out, "run_extension.jsonl")
    assert {line["type"] for line in extension} == {"phase.started", "phase.completed", "own word"}
    assert extension[0]["rollbook.after"] == 0
    assert extension[-1]["rollbook.after"] == len(written(out))
    async with await open_store("memory://") as other:
        (report,) = await import_run_folder(other, out)
        copied = report.rollout_id or ""
        before = [content_of(with_defaults(row)) for row in await all_events(store, run.rollout_id)]
        assert [content_of(row) for row in await all_events(other, copied)] == before
        assert tree(await export_run_folder(other, copied, tmp_path / "two")) == tree(out)
        # The folder grows in both files, and a later import appends only the new lines.
        more = [RunEvent(kind="log", message="late"), custom]
        await store.runs.append_events(again.rollout_id, again.attempt.attempt_id, more)
        (grown,) = await import_run_folder(other, await export_run_folder(store, run.rollout_id, tmp_path / "one"))
        assert (grown.outcome, grown.events) == ("grown", 2)
        assert [row.kind for row in (await all_events(other, copied))[-2:]] == ["log", "own word"]


async def test_after_an_undo_the_folder_describes_the_head(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store, date=DAY)
    out = await export_run_folder(store, run.rollout_id, tmp_path)
    before = tree(out)
    again = (await rerun(store, run, phase="risk", scopes=["RIG"])).rollout
    await ended(store, again, "failed")
    await export_run_folder(store, run.rollout_id, tmp_path)
    meta = json.loads((out / "run_meta.json").read_text())
    assert (meta["rerun_seq"], meta["status"]) == (1, "failed")
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id)
    await export_run_folder(store, run.rollout_id, tmp_path)
    undone = json.loads((out / "run_meta.json").read_text())
    assert (undone["rerun_seq"], undone["status"], undone["error"]) == (0, "completed", None)
    assert undone["completed_at"] == json.loads(before["run_meta.json"])["completed_at"]
    assert {name: data for name, data in tree(out).items() if name != "run_meta.json"} == {
        name: data for name, data in before.items() if name != "run_meta.json"
    }
    digest = [line for line in (out.parent / "daily_digest.md").read_text().splitlines() if line.startswith("-")]
    assert len(digest) == 3
    assert digest[-1] == digest[0] != digest[1]
