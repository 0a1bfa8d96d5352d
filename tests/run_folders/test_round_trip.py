"""An imported folder is exported byte for byte, and an exported run is imported unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import open_store
from store.interface.store import Store
from store.models import RunEvent
from store.run_folders import export_run_folder, import_run_folder, import_runs
from tests.conftest import POSTGRES, SQLITE
from tests.run_folders.folder_samples import (
    ADR_NAMES,
    EVENTS,
    FLOW,
    RUN,
    Written,
    all_events,
    content_of,
    left,
    lines,
    tree,
    with_defaults,
)
from tests.runs.trading_runs import auto_run, complete_rerun
from tests.torture import rounds

CUSTOM_EVENT = RunEvent.model_validate({"kind": "own word", "message": "m", "more": [1], "prompt": "p" * 3000})


async def import_one(store: Store, folder: Path) -> str:
    (report,) = await import_run_folder(store, folder)
    assert (report.outcome, report.warnings) == ("imported", [])
    assert report.rollout_id is not None
    return report.rollout_id


async def test_each_layout_comes_out_byte_by_byte(store: Store, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for layout in ("flow", "legacy", "flat"):
        with subtests.test(layout=layout):
            root = tmp_path / layout
            folder = Written(run_id=f"{RUN}-{layout}", layout=layout).write(root / "in")
            out = await export_run_folder(store, await import_one(store, folder), root / "out")
            assert out == Written().folder(root / "out")
            assert tree(out) == tree(folder)


WAYS_TO_WRITE_LINES: dict[str, bytes | None] = {
    "spaces after commas": lines(EVENTS, tight=False),
    "escaped": lines(EVENTS, ascii_only=True),
    "last line not ended": lines(EVENTS)[:-1],
    "empty lines": b"\n\n" + lines(EVENTS).replace(b"\n", b"\r\n\n") + b"\n",
    "own spaces": b'{ "type" :1,"type":2, "node_id": null }\n{"metrics":{"x":1.50}}\n',
    "not storable": b'{"type":"log","message":"\\u0000 \\ud800","n":99999999999999999999}\n',
    "phases": b'{"type":"phase.started"}\n{"type":"phase.completed","phase":"p","reason":"r"}\n',
    "our words": b'{"kind":"a","scope":"b","rollbook.line":"c","identifier":"rollbook:import"}\n',
    "long names": b'{"type":"' + b"x" * 600 + b'","metrics":[1]}\n{}\n',
    "nothing": b"",
    "no file": None,
}


async def test_every_way_to_write_lines_comes_out_as_it_was(
    store: Store, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, (name, events) in enumerate(WAYS_TO_WRITE_LINES.items()):
        with subtests.test(name):
            root = tmp_path / str(number)
            folder = Written(run_id=f"{RUN}-{number}", events=events, files={}).write(root / "in")
            rollout_id = await import_one(store, folder)
            assert tree(await export_run_folder(store, rollout_id, root / "out")) == tree(folder)
            assert len(await all_events(store, rollout_id)) == len(
                [line for line in (events or b"").split(b"\n") if line.strip()]
            )


async def test_head_view_equals_the_lines_of_the_file(store: Store, tmp_path: Path) -> None:
    rollout_id = await import_one(store, Written().write(tmp_path))
    rows = await all_events(store, rollout_id)
    assert len(rows) == len(EVENTS)
    for row, line in zip(rows, EVENTS, strict=True):
        assert (row.kind, row.node_id, row.scope) == (line["type"], line["node_id"], line.get("identifier"))
        texts = ("message", "prompt", "response", "error", "status", "service", "agent", "parent_node_id")
        assert [getattr(row, name) for name in texts] == [line.get(name) for name in texts]
        assert (row.metrics or {}) == line["metrics"]
        assert (row.extra or {})["id"] == line["id"]


async def test_interleaved_reruns_stay_in_the_order_of_the_file(store: Store, tmp_path: Path) -> None:
    numbers = [0, 1, 0, 3, 1, 3, 0]
    told_ = [{"type": "result", "node_id": f"n{place}", "rerun_seq": rerun} for place, rerun in enumerate(numbers)]
    folder = Written(events=lines(told_), rerun_seq=4).write(tmp_path / "in")
    rollout_id = await import_one(store, folder)
    assert [row.node_id for row in await all_events(store, rollout_id)] == [f"n{place}" for place in range(7)]
    lineage = await store.runs.list_lineage(rollout_id)
    assert [node.rerun_seq for node in lineage] == [0, 1, 2, 3, 4]
    assert tree(await export_run_folder(store, rollout_id, tmp_path / "out")) == tree(folder)


@pytest.mark.parametrize("store_url", [SQLITE, POSTGRES], indirect=True)
async def test_a_run_with_a_rerun_comes_back_as_it_was(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store)
    again = await complete_rerun(store, run, "debate_and_trader", "RIG")
    where = (again.rollout_id, again.attempt.attempt_id)
    await store.runs.append_events(*where, [CUSTOM_EVENT])
    await store.runs.save_artifact(*where, scope="RIG", name="a/b: c", content="text", phase="risk")
    await store.runs.save_artifact(
        *where, scope="MARKET", name="x_checkpoint", content={"n": 1.5}, media_type="own/type"
    )
    await store.runs.save_artifact(
        *where, scope="book", name="pm_decision", content="# yes", media_type="text/markdown"
    )
    await store.runs.save_checkpoint(*where, scope="RIG", name="odd", external={"kind": "elsewhere"})
    out = await export_run_folder(store, run.rollout_id, tmp_path / "one")
    async with await open_store("memory://") as other:
        copied = await import_one(other, out)
        before, after = [await all_events(target, run) for target, run in ((store, run.rollout_id), (other, copied))]
        assert [content_of(row) for row in after] == [content_of(with_defaults(row)) for row in before]
        assert sorted(map(repr, await left(other, copied))) == sorted(map(repr, await left(store, run.rollout_id)))
        assert [node.rerun_seq for node in await other.runs.list_lineage(copied)] == [0, 1]
        assert tree(await export_run_folder(other, copied, tmp_path / "two")) == tree(out)


async def test_artifacts_hidden_by_a_rerun_are_removed_from_the_folder(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store)
    where = (run.rollout_id, run.attempt.attempt_id)
    await store.runs.save_artifact(*where, scope="RIG", name="plan", content="old", phase="risk")
    out = await export_run_folder(store, run.rollout_id, tmp_path)
    (out / "notes.txt").write_text("somebody's own")
    assert len(list(out.glob("RIG/report/*_plan.txt"))) == 1
    await complete_rerun(store, run, "risk", "RIG")
    await export_run_folder(store, run.rollout_id, tmp_path)
    assert list(out.glob("RIG/report/*_plan.txt")) == []
    assert (out / "notes.txt").read_text() == "somebody's own"
    meta = json.loads((out / "run_meta.json").read_text())
    assert (meta["rerun_seq"], meta["status"], meta["history_complete"], meta["error"]) == (1, "completed", True, None)


async def test_a_rerun_in_the_store_of_an_imported_run_goes_out_and_keeps_the_old_lines(
    store: Store, tmp_path: Path
) -> None:
    folder = Written().write(tmp_path)
    rollout_id = await import_one(store, folder)
    started = await store.start_attempt(rollout_id)
    await store.runs.append_events(
        rollout_id, started.attempt.attempt_id, [RunEvent(kind="result", node_id="Trader", scope="RIG")]
    )
    await store.update_attempt(rollout_id, "latest", status="failed")
    view = await all_events(store, rollout_id)
    await export_run_folder(store, rollout_id, tmp_path)
    assert len((folder / "run_events.jsonl").read_bytes().splitlines()) == len(view)
    meta = json.loads((folder / "run_meta.json").read_text())
    assert (meta["id"], meta["flow_id"], meta["status"]) == (RUN, FLOW, "failed")
    (report,) = [report async for report in import_runs(store, tmp_path)]
    assert (report.outcome, report.reason) == (
        "skipped",
        "its run has gone on in the store; export it to bring the folder up to date",
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["type", "node_id", "identifier", "parent_node_id", "agent", "message", "prompt", "response", "metrics", "id"]
) | st.sampled_from(
    ["status", "service", "error", "timestamp", "phase", "reason", "cascade", "kind", "scope", "rollbook.line"]
)
LINE = st.dictionaries(KEYS | st.text(max_size=4), JSON, max_size=6) | st.fixed_dictionaries(
    {"type": st.sampled_from(["thought", "result", "phase.started"]), "node_id": st.text(max_size=3)},
    optional={"rerun_seq": st.integers(0, 3), "metrics": st.dictionaries(st.text(max_size=3), JSON, max_size=2)},
)
SCOPES = st.sampled_from(["market", "portfolio", "RIG", "^GSPC", "EURUSD=X", "%6Darket"])
STEMS = st.sampled_from(["report", "main_pm_decision", "analysts_checkpoint", "x_checkpoint", "run_log"])
NAMES = st.tuples(
    SCOPES,
    st.sampled_from(["/", "/report/", "/report/20260320T010203004Z_", "/report/20260320T010203Z_"]),
    STEMS,
    st.sampled_from([".json", ".md", ".jsonl", ".txt", ".bin", ""]),
).map("".join)


def with_bytes(files: dict[str, Any]) -> dict[str, Any]:
    """Let what is no JSON file hold bytes, and leave out what cannot be: a file that others lie in."""
    return {
        name: content if name.endswith(".json") or isinstance(content, bytes) else json.dumps(content)
        for name, content in files.items()
        if not (name.endswith(".json") and isinstance(content, bytes))
        if not any(other.startswith(f"{name}/") for other in files)
    }


def both_ways(rows: list[dict[str, Any]]) -> bytes:
    """Return lines, some with spaces and some without."""
    return lines(rows[::2], ascii_only=True) + lines(rows[1::2], tight=False, ascii_only=True)


FOLDERS = st.builds(
    Written,
    events=st.lists(LINE, max_size=30).map(both_ways),
    files=st.dictionaries(NAMES, JSON | st.binary(max_size=9), max_size=5).map(with_bytes),
    rerun_seq=st.integers(0, 2),
    layout=st.sampled_from(["flow", "legacy", "flat"]),
)


@pytest.mark.torture
@pytest.mark.slow
@settings(max_examples=rounds(150, few=15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(folder=FOLDERS)
async def test_any_undamaged_folder_comes_out_byte_by_byte(store: Store, tmp_path: Path, folder: Any) -> None:
    folder.run_id = f"run-{(await store.query_rollouts(limit=0)).total}"
    place = tmp_path / folder.run_id
    written = folder.write(place / "in")
    (report,) = await import_run_folder(store, written)
    assert report.rollout_id is not None
    out = await export_run_folder(store, report.rollout_id, place / "out")
    assert tree(out) == tree(written)


def test_the_names_of_both_generations_are_among_those_tried() -> None:
    assert not set(ADR_NAMES) & set(Written().files)
