"""A folder is imported once, with all its readable content, and no path in it leads outside.

Acceptance scenarios 9, 10 and 52 to 56.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from store.errors import Invalid
from store.interface.runs import StoreRuns
from store.interface.store import Store
from store.models import RunEvent
from store.run_folders import ImportReport, export_run_folder, import_run_folder, import_runs
from tests.conftest import POSTGRES, SQLITE
from tests.run_folders.folder_samples import (
    ADR_NAMES,
    DAY,
    EVENTS,
    FLOW,
    OTHER,
    RUN,
    Written,
    all_events,
    event,
    left,
    lines,
    tree,
)
from tests.runs.trading import TA
from tests.runs.trading_runs import auto_run

GOLDEN = Path(__file__).parent / "golden"


async def imported(store: Store, root: Path, **how: Any) -> list[ImportReport]:
    return [report async for report in import_runs(store, root, **how)]


def outcomes(reports: list[ImportReport]) -> list[tuple[str | None, str]]:
    return [(report.run_id, report.outcome) for report in reports]


async def test_folders_of_all_layouts_and_names_are_found(store: Store, tmp_path: Path) -> None:
    Written().write(tmp_path)
    Written(run_id=OTHER, flow_id="", layout="legacy", files=ADR_NAMES).write(tmp_path)
    Written(run_id="flat-one", layout="flat", files=ADR_NAMES).write(tmp_path)
    (tmp_path / "daily" / DAY / "daily_digest.md").write_text("of the day")
    reports = await imported(store, tmp_path)
    assert outcomes(reports) == [(RUN, "imported"), (OTHER, "imported"), ("flat-one", "imported")]
    assert [report.checkpoints for report in reports] == [4, 1, 1]
    assert [report.artifacts for report in reports] == [8, 2, 2]
    assert [report.warnings for report in reports] == [[], [], []]
    groups = {(rollout.metadata or {})["rollbook.group"] for rollout in await store.query_rollouts()}
    assert groups == {FLOW, OTHER[:8]}


async def test_golden_folders_are_read_as_ever_and_come_out_as_they_are(store: Store, tmp_path: Path) -> None:
    for report in await imported(store, GOLDEN):
        assert (report.outcome, report.warnings) == ("imported", [])
        assert report.rollout_id is not None
        out = await export_run_folder(store, report.rollout_id, tmp_path)
        assert tree(out) == tree(Path(report.path))
    verified = await store.log.verify()
    assert verified.ok


@pytest.mark.parametrize(
    "more,flow",
    [
        ({"flow_id": ""}, RUN[:8]),
        ({"flow_id": None, "short_rid": None, "params": {"flow_id": "from-params"}}, "from-params"),
        ({"flow_id": None, "short_rid": None}, "the-folder"),
    ],
)
async def test_a_flow_goes_by_the_first_of_its_names(
    store: Store, tmp_path: Path, more: dict[str, Any], flow: str
) -> None:
    (report,) = await imported(store, Written(flow_id="the-folder", files={}, more=more).write(tmp_path))
    rollout = await store.get_rollout_by_id(report.rollout_id or "")
    assert rollout is not None
    assert (rollout.metadata or {})["rollbook.group"] == flow


async def test_imported_run_has_the_metadata_of_its_folder(store: Store, tmp_path: Path) -> None:
    (report,) = await imported(store, Written(status="failed", more={"error": "no key"}).write(tmp_path))
    assert report.rollout_id is not None
    rollout = await store.get_rollout_by_id(report.rollout_id)
    assert rollout is not None
    assert (rollout.status, rollout.input) == ("failed", {"date": DAY, "tickers": ["RIG"]})
    assert rollout.metadata == {
        "rollbook.group": FLOW,
        "rollbook.key": f"run:{RUN}",
        "run_id": RUN,
        "type": "auto",
        "user_id": "anonymous",
        "date": DAY,
        "created_at": 1774000000.25,
        "completed_at": 1774000100.5,
        "imported_attempts": 1,
    }
    ended = [entry for entry in await store.log.history(report.rollout_id) if entry.type == "attempt.status_changed"]
    assert ended[-1].data["error"]["message"] == "no key"


async def test_checkpoints_and_artifacts_are_found_by_scope_and_name_the_newest_last(
    store: Store, tmp_path: Path
) -> None:
    (report,) = await imported(store, Written().write(tmp_path))
    assert report.rollout_id is not None
    checkpoint = await store.runs.get_checkpoint(report.rollout_id, scope="RIG", name="analysts_checkpoint")
    assert checkpoint is not None
    assert (checkpoint.state, checkpoint.after_phase, checkpoint.graph) == (
        {"market_report": "down", "messages": ["m"]},
        "analysts",
        None,
    )
    assert await store.runs.get_checkpoint(report.rollout_id, scope="EURUSD=X", name="trader_checkpoint") is not None
    artifacts = await store.runs.query_artifacts(report.rollout_id)
    by_name = {
        (artifact.scope, artifact.name): artifact.content for artifact in artifacts if artifact.scope != "rollbook"
    }
    assert by_name["main_portfolio", "pm_decision"] == {"buy": ["RIG"]}
    assert by_name["other_main_portfolio", "pm_decision"] == {"buy": []}
    assert by_name["MARKET", "macro_scan_summary"] == {"summary": "calm — for now", "score": 0.5}
    assert by_name["MARKET", "geopolitical_report"] == "# Geopolitics\n\nNothing — yet.\r\n"
    assert by_name["run", "run_log.jsonl"].startswith('{"kind": "llm"')


async def test_an_imported_run_can_be_run_again_from_its_checkpoints(store: Store, tmp_path: Path) -> None:
    resources = await store.add_resources({"phases": TA})
    (report,) = await imported(store, Written().write(tmp_path), resources_id=resources.resources_id)
    assert report.rollout_id is not None
    forked = await store.runs.fork(report.rollout_id, phase="risk", scopes=["rig"], confirm_side_effects=True)
    (checkpoint,) = forked.fork.checkpoints
    assert (checkpoint.name, checkpoint.scope) == ("trader_checkpoint", "RIG")
    assert forked.attempt.sequence_id == 2
    view = [row.node_id for row in await all_events(store, report.rollout_id)]
    assert view == ["__system__", "macro_synthesis", "macro_synthesis", "tool_news", "tool_news", "Trader"]
    await store.update_attempt(report.rollout_id, forked.attempt.attempt_id, status="failed")
    # From the phase of the trader on, its newer checkpoint does not count.
    plan = await store.runs.plan_fork(report.rollout_id, phase="debate_and_trader", scopes=["RIG"])
    assert [state.name for state in plan.checkpoints] == ["analysts_checkpoint"]
    assert plan.hidden == 1


@pytest.mark.parametrize("status", ["running", "queued"])
async def test_a_run_that_its_folder_calls_unended_has_failed_and_the_folder_stays(
    store: Store, tmp_path: Path, status: str
) -> None:
    folder = Written(status=status).write(tmp_path)
    before = tree(folder)
    (report,) = await imported(store, tmp_path)
    assert report.rollout_id is not None
    (attempt,) = (await store.query_attempts(report.rollout_id)).items
    assert attempt.status == "failed"
    assert tree(folder) == before
    out = await export_run_folder(store, report.rollout_id, tmp_path / "out")
    meta = json.loads((out / "run_meta.json").read_text())
    assert (meta["status"], meta["error"]) == ("failed", "Run did not complete (server restarted)")
    assert tree(out)["run_events.jsonl"] == before["run_events.jsonl"]


async def test_damaged_lines_are_reported_by_number_and_the_others_imported(store: Store, tmp_path: Path) -> None:
    complete = lines(EVENTS).splitlines(keepends=True)
    torn = complete[0] + b'{"type": "thou\n' + complete[1] + b"\n[1]\n" + b"\xff\n" + complete[2] + complete[3][:20]
    (report,) = await imported(store, Written(events=torn, files={}).write(tmp_path))
    assert report.rollout_id is not None
    assert (report.outcome, report.events) == ("imported", 3)
    assert [(warning.file, warning.line) for warning in report.warnings] == [
        ("run_events.jsonl", n) for n in (2, 5, 6, 8)
    ]
    problems = [warning.problem.partition(":")[0] for warning in report.warnings]
    assert problems == ["is no JSON", "is no JSON object", "is no JSON", "is cut off"]
    assert [row.kind for row in await all_events(store, report.rollout_id)] == ["log", "thought", "result"]


async def test_a_torn_checkpoint_is_left_out_and_the_older_one_counts(store: Store, tmp_path: Path) -> None:
    newest = "RIG/report/20260320T020403005Z_analysts_checkpoint.json"
    files = {**Written().files, newest: b'{"market_report": "tor'}
    (report,) = await imported(store, Written(files=files).write(tmp_path))
    assert report.rollout_id is not None
    assert [warning.file for warning in report.warnings] == [newest]
    checkpoint = await store.runs.get_checkpoint(report.rollout_id, scope="RIG", name="analysts_checkpoint")
    assert checkpoint is not None
    assert checkpoint.state == {"market_report": "down", "messages": ["m"]}


async def test_importing_twice_changes_nothing(store: Store, tmp_path: Path) -> None:
    Written(events=lines(EVENTS)[:-3]).write(tmp_path)
    (first,) = await imported(store, tmp_path)
    assert first.rollout_id is not None
    before = await store.log.history(first.rollout_id)
    (again,) = await imported(store, tmp_path)
    assert (again.outcome, again.rollout_id, again.warnings) == ("unchanged", first.rollout_id, first.warnings)
    assert await store.log.history(first.rollout_id) == before


@pytest.mark.parametrize("store_url", [SQLITE, POSTGRES], indirect=True)
async def test_second_import_of_a_grown_folder_adds_only_new_events(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "in"
    complete = lines([*EVENTS, event("result", "Trader", "RIG", rerun_seq=1), event("log", None, None, rerun_seq=1)])
    cut = complete.index(b'"parent_node_id":"start","agent":"TOOL_NEWS"')
    Written(events=complete[:cut], status="running", files={}).write(root)
    (first,) = await imported(store, root)
    assert (first.events, [warning.problem[:10] for warning in first.warnings]) == (3, ["is cut off"])
    folder = Written(events=complete, rerun_seq=1).write(root)
    (grown,) = await imported(store, root)
    assert (grown.outcome, grown.rollout_id, grown.events) == ("grown", first.rollout_id, 5)
    assert (grown.checkpoints, grown.artifacts, grown.warnings, grown.history_complete) == (4, 8, [], False)
    assert grown.rollout_id is not None
    assert len(await all_events(store, grown.rollout_id)) == 8
    assert [node.status for node in await store.runs.list_lineage(grown.rollout_id)] == ["failed", "succeeded"]
    assert tree(await export_run_folder(store, grown.rollout_id, tmp_path / "out")) == tree(folder)
    assert outcomes(await imported(store, root)) == [(RUN, "unchanged")]


async def test_a_file_that_was_written_anew_comes_in_as_its_newest_version(store: Store, tmp_path: Path) -> None:
    Written(files=ADR_NAMES).write(tmp_path)
    await imported(store, tmp_path)
    folder = Written(files=ADR_NAMES | {"RIG/report/analysts_checkpoint.json": {"news_report": "peace"}}).write(
        tmp_path
    )
    (grown,) = await imported(store, tmp_path)
    assert (grown.outcome, grown.events, grown.checkpoints, grown.artifacts) == ("grown", 0, 1, 0)
    assert grown.rollout_id is not None
    assert tree(await export_run_folder(store, grown.rollout_id, tmp_path / "out")) == tree(folder)


async def test_a_folder_that_was_rewritten_is_left_alone_unless_it_may_be_another_generation(
    store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "in"
    Written().write(root)
    (first,) = await imported(store, root)
    folder = Written(events=lines(EVENTS[1:])).write(root)
    (skipped,) = await imported(store, root)
    assert (skipped.outcome, skipped.reason) == (
        "skipped",
        "its run_events.jsonl no longer begins with what was imported",
    )
    (second,) = await imported(store, root, on_conflict="new_generation")
    assert (second.outcome, second.events) == ("imported", len(EVENTS) - 1)
    assert second.rollout_id != first.rollout_id
    assert second.rollout_id is not None
    assert tree(await export_run_folder(store, second.rollout_id, tmp_path / "out")) == tree(folder)
    assert outcomes(await imported(store, root)) == [(RUN, "unchanged")]


class Dying:
    """A store whose caller dies when it makes one write too many."""

    def __init__(self, store: Store | StoreRuns, writes: Iterator[int]) -> None:
        self._store = store
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if name == "runs":
            return Dying(value, self._writes)
        is_write = name in {"append_events", "save_artifact", "save_checkpoint", "fork", "update_attempt"}
        if is_write and next(self._writes, None) is None:
            raise KeyboardInterrupt
        return value


@pytest.mark.slow
async def test_an_import_of_a_folder_that_has_grown_goes_on_too(store: Store, tmp_path: Path) -> None:
    many = [event("log", f"n{number}", "RIG", rerun_seq=number // 300) for number in range(900)]
    Written(events=lines(many[:100]), files={}).write(tmp_path)
    await imported(store, tmp_path)
    folder = Written(events=lines(many), rerun_seq=2).write(tmp_path)
    for writes in range(8):
        with pytest.raises(KeyboardInterrupt):
            await imported(cast("Store", Dying(store, iter(range(writes)))), tmp_path)
    (report,) = await imported(store, tmp_path)
    assert report.outcome == "grown"
    assert report.rollout_id is not None
    assert [row.node_id for row in await all_events(store, report.rollout_id)] == [
        f"n{number}" for number in range(900)
    ]
    assert [node.rerun_seq for node in await store.runs.list_lineage(report.rollout_id)] == [0, 1, 2]
    assert tree(await export_run_folder(store, report.rollout_id, tmp_path / "out")) == tree(folder)


async def test_an_import_that_was_cut_off_is_not_mixed_with_a_folder_rewritten_since(
    store: Store, tmp_path: Path
) -> None:
    Written(files={}).write(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        await imported(cast("Store", Dying(store, iter(range(1)))), tmp_path)
    Written(files={}, events=lines([{"type": "log"}, *EVENTS])).write(tmp_path)
    assert outcomes(await imported(store, tmp_path)) == [(RUN, "skipped")]
    (report,) = await imported(store, tmp_path, on_conflict="new_generation")
    assert (report.outcome, report.events) == ("imported", len(EVENTS) + 1)


@pytest.mark.slow
async def test_an_import_that_was_cut_off_goes_on(store: Store, tmp_path: Path) -> None:
    many = [event("log", f"n{number}", "RIG", rerun_seq=number // 800) for number in range(1500)]
    folder = Written(events=lines(many), rerun_seq=1).write(tmp_path)
    for writes in (0, 1, 2, 3, 4, 5, 9, 16):
        with pytest.raises(KeyboardInterrupt):
            await imported(cast("Store", Dying(store, iter(range(writes)))), tmp_path)
    (report,) = await imported(store, tmp_path)
    assert report.rollout_id is not None
    rows = await all_events(store, report.rollout_id)
    assert [row.node_id for row in rows] == [f"n{number}" for number in range(1500)]
    assert [node.rerun_seq for node in await store.runs.list_lineage(report.rollout_id)] == [0, 1]
    assert tree(await export_run_folder(store, report.rollout_id, tmp_path / "out")) == tree(folder)
    assert len(await left(store, report.rollout_id)) == 12


async def test_names_that_lead_out_of_a_folder_are_refused(
    store: Store, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    values = ["../x", "..", "a/b", "a\0b", ".hidden", "x" * 65, ["a"]]
    written: dict[str, tuple[str, Any]] = {}
    for field in ("id", "flow_id", "date"):
        for number, value in enumerate(values):
            flow = f"bad-{field}-{number}"
            Written(flow_id=flow, files={}).write(tmp_path)
            folder = Written(flow_id=flow).folder(tmp_path)
            (folder / "run_meta.json").write_text(json.dumps(Written().meta() | {field: value}))
            written[str(folder)] = field, value
    Written(run_id=OTHER, flow_id="good", files={}).write(tmp_path)
    *bad, good = await imported(store, tmp_path)
    assert (good.run_id, good.outcome) == (OTHER, "imported")
    assert len(bad) == len(written)
    assert {str(report.path) for report in bad} == written.keys()
    for report in bad:
        with subtests.test(written=written[str(report.path)]):
            assert report.outcome == "refused"
            assert report.reason is not None
            assert "cannot name a folder" in report.reason


async def test_a_damaged_meta_file_is_refused_by_name_and_the_others_go_on(
    store: Store, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, meta in enumerate([b"", b"{", b"[]", b"\xff", b'{"id": null}']):
        with subtests.test(meta=meta):
            root = tmp_path / str(number)
            (Written(flow_id="bad").write(root) / "run_meta.json").write_bytes(meta)
            run_id = f"{RUN}-{number}"
            Written(run_id=run_id).write(root)
            assert sorted(outcomes(await imported(store, root)), key=str) == sorted(
                [(None, "refused"), (run_id, "imported")], key=str
            )


async def test_links_and_hidden_files_are_not_followed(store: Store, tmp_path: Path) -> None:
    folder = Written(files={}).write(tmp_path / "in")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x.txt").write_text("secret")
    (folder / "RIG").symlink_to(tmp_path / "secret")
    (folder / "x.txt").symlink_to(tmp_path / "secret" / "x.txt")
    (folder / ".hidden").write_text("no")
    (report,) = await imported(store, tmp_path / "in")
    assert (report.artifacts, [warning.file for warning in report.warnings]) == (0, ["RIG", "x.txt"])


async def test_a_named_pipe_is_reported_and_never_waited_for(store: Store, tmp_path: Path) -> None:
    folder = Written(files={}).write(tmp_path)
    os.mkfifo(folder / "x.txt")
    (report,) = await imported(store, tmp_path)
    assert (report.outcome, [warning.file for warning in report.warnings]) == ("imported", ["x.txt"])


@pytest.mark.parametrize("name", ["run_meta.json", "run_events.jsonl"])
async def test_a_run_whose_own_file_is_a_named_pipe_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    file = Written().write(tmp_path) / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    (report,) = await imported(store, tmp_path)
    assert report.outcome == "refused"
    assert report.reason is not None
    assert f"{file} is not a regular file" in report.reason


async def test_a_run_of_the_store_itself_is_not_imported_into_it(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store)
    await export_run_folder(store, run.rollout_id, tmp_path)
    (report,) = await imported(store, tmp_path)
    assert (report.outcome, report.rollout_id) == ("skipped", run.rollout_id)
    assert (await store.query_rollouts()).total == 1


async def test_a_copy_of_a_folder_is_not_imported_beside_it(store: Store, tmp_path: Path) -> None:
    folder = Written().write(tmp_path)
    shutil.copytree(folder, folder.with_name("zcopy"))
    assert outcomes(await imported(store, tmp_path)) == [(RUN, "imported"), (RUN, "skipped")]


async def test_a_wild_rerun_number_makes_no_attempts(store: Store, tmp_path: Path) -> None:
    wild = [event("log", "a", None, rerun_seq=10**9), event("log", "b", None, rerun_seq=-1)]
    (report,) = await imported(store, Written(events=lines(wild), files={}).write(tmp_path))
    assert report.rollout_id is not None
    assert [warning.line for warning in report.warnings] == [1]
    assert len(await store.runs.list_lineage(report.rollout_id)) == 1
    assert len(await all_events(store, report.rollout_id)) == 2


async def test_a_run_that_went_on_in_the_store_is_not_mixed_with_its_folder(store: Store, tmp_path: Path) -> None:
    Written(files={}).write(tmp_path)
    (first,) = await imported(store, tmp_path)
    assert first.rollout_id is not None
    (attempt,) = (await store.query_attempts(first.rollout_id)).items
    await store.runs.append_events(first.rollout_id, attempt.attempt_id, [RunEvent(kind="log")])
    Written(files={}, events=lines([*EVENTS, EVENTS[0]])).write(tmp_path)
    (report,) = await imported(store, tmp_path)
    assert report.outcome == "skipped"
    assert len(await all_events(store, first.rollout_id)) == len(EVENTS) + 1


async def test_a_directory_that_is_none_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is no directory"):
        await imported(store, tmp_path / "missing")
    with pytest.raises(Invalid, match="holds no run_meta"):
        await import_run_folder(store, tmp_path)
    assert await imported(store, tmp_path) == []
