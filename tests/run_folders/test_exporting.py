"""An export leaves a complete folder even if it is interrupted, and keeps files of others.

Acceptance scenarios 52 and 57.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.errors import Invalid, NotFound
from store.interface.store import Store
from store.run_folders import ImportReport, export_run_folder, import_runs, writing
from tests.conftest import SQLITE
from tests.faults import processes
from tests.run_folders.conftest import POSTGRES_TOO
from tests.run_folders.folder_samples import DAY, FLOW, OTHER, RUN, Written, all_events, left, tree
from tests.runs.trading_runs import auto_run, complete_rerun
from tests.torture import Rounds


async def export_in_turns(exported: Connection, url: str, rollout_id: str, root: Path) -> None:
    """Export two views in turns, with a message to the test after each."""
    async with await open_store(url, read_only=True) as store:
        while True:
            for view in ("attempt:1", "head"):
                await export_run_folder(store, rollout_id, root, view=view)
                exported.send(None)


async def reports(store: Store, root: Path) -> list[ImportReport]:
    return [report async for report in import_runs(store, root)]


def export_and_kill(url: str, rollout_id: str, root: Path, seconds: float) -> None:
    """Let a process export two views in turns, and kill it at a moment that may be any."""
    exporter = processes.Killable(export_in_turns, url, rollout_id, root)
    time.sleep(seconds)
    exporter.kill()


def no_exchange(*_: Path) -> bool:
    return False


@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_TOO], indirect=True)
@pytest.mark.torture
@pytest.mark.slow
async def test_a_killed_export_leaves_the_old_folder_or_the_new_one(
    durable_url: str, rounds: Rounds, tmp_path: Path
) -> None:
    async with await open_store(durable_url) as store:
        run = await auto_run(store, date=DAY)
        for number in range(20):
            await store.runs.save_artifact(
                run.rollout_id, run.attempt.attempt_id, scope="RIG", name=f"n{number}", content="x" * 5000, phase="risk"
            )
        await complete_rerun(store, run, "risk", "RIG")
        versions = [
            tree(await export_run_folder(store, run.rollout_id, tmp_path / view.replace(":", ""), view=view))
            for view in ("attempt:1", "head")
        ]
        assert versions[0] != versions[1]
        root = tmp_path / "out"
        chance = random.Random(7)
        for _ in range(rounds(30, few=2)):
            await asyncio.to_thread(export_and_kill, durable_url, run.rollout_id, root, chance.uniform(0, 0.2))
            assert tree(root / "daily" / DAY / run.rollout_id) in versions
        out = await export_run_folder(store, run.rollout_id, root)
        assert tree(out) == versions[1]
        assert sorted(entry.name for entry in out.parent.iterdir()) == ["daily_digest.md", "latest.json", out.name]


async def test_an_export_without_exchange_is_put_back_by_the_next_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await auto_run(store)
    out = await export_run_folder(store, run.rollout_id, tmp_path)
    before = tree(out)
    monkeypatch.setattr(writing, "_exchange", no_exchange)
    await complete_rerun(store, run, "risk", "RIG")
    assert tree(await export_run_folder(store, run.rollout_id, tmp_path)) != before
    # Cut off between the two renamings.
    out.rename(out.with_name(f".{out.name}.old"))
    (out.with_name(f".{out.name}.new-00000000")).mkdir()
    assert tree(await export_run_folder(store, run.rollout_id, tmp_path, view="attempt:1"))
    assert [entry.name for entry in out.parent.iterdir() if entry.name.startswith(".")] == []


async def test_a_folder_that_is_right_is_not_touched(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store)
    out = await export_run_folder(store, run.rollout_id, tmp_path)
    before = out.stat().st_ino
    digest = (out.parent / "daily_digest.md").read_bytes()
    assert (await export_run_folder(store, run.rollout_id, tmp_path)).stat().st_ino == before
    assert (out.parent / "daily_digest.md").read_bytes() == digest


async def test_meta_holds_all_its_fields(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store, group=FLOW, date=DAY)
    out = await export_run_folder(store, run.rollout_id, tmp_path)
    assert out == tmp_path / "daily" / DAY / FLOW
    meta = json.loads((out / "run_meta.json").read_text())
    fields = ["id", "flow_id", "short_rid", "type", "status", "created_at", "completed_at", "user_id", "date", "params"]
    assert list(meta) == [*fields, "rerun_seq", "error", "history_complete"]
    assert (meta["id"], meta["flow_id"], meta["status"], meta["params"]) == (
        run.rollout_id,
        FLOW,
        "completed",
        {"date": DAY},
    )
    latest = json.loads((out.parent / "latest.json").read_text())
    assert (latest["flow_id"], latest["run_id"]) == (FLOW, run.rollout_id)
    assert f"- {FLOW} {run.rollout_id} auto: completed" in (out.parent / "daily_digest.md").read_text()


async def test_complete_report_has_no_time_in_its_name(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store, group=FLOW, date=DAY)
    for text in ("first", "second"):
        options: dict[str, Any] = {"scope": "RIG", "phase": "risk", "name": "complete_report"}
        for media_type in ("text/markdown", "application/json"):
            await store.runs.save_artifact(
                run.rollout_id, run.attempt.attempt_id, **options, content=text, media_type=media_type
            )
        out = await export_run_folder(store, run.rollout_id, tmp_path)
        assert (out / "RIG" / "report" / "complete_report.md").read_text() == text
    assert len(list((out / "RIG" / "report").glob("*complete_report*"))) == 3
    await complete_rerun(store, run, "risk", "RIG")
    out = await export_run_folder(store, run.rollout_id, tmp_path)
    assert not (out / "RIG" / "report" / "complete_report.md").exists()


@pytest.mark.parametrize("shared", [False, True], ids=["files of their own", "a path in common"])
@pytest.mark.slow
async def test_runs_of_one_flow_share_a_folder_and_the_newest_has_the_plain_names(
    store: Store, tmp_path: Path, *, shared: bool
) -> None:
    theirs = "RIG/complete_report.md" if shared else "RIG/report/analysts_checkpoint.json"
    Written(created_at=100.0).write(tmp_path / "a")
    Written(run_id=OTHER, created_at=200.0, files={theirs: "{}"}).write(tmp_path / "b")
    imported = [*await reports(store, tmp_path / "a"), *await reports(store, tmp_path / "b")]
    ids = [report.rollout_id or "" for report in imported]
    trees: list[dict[str, bytes]] = []
    for order in (ids, ids[::-1], [*ids, *ids]):
        root = tmp_path / f"out{len(trees)}"
        for rollout_id in order:
            await export_run_folder(store, rollout_id, root)
        trees.append(tree(root / "daily" / DAY / FLOW))
        assert json.loads(trees[-1]["run_meta.json"])["id"] == OTHER
        assert json.loads(trees[-1][f"run_meta.{RUN}.json"])["id"] == RUN
        async with await open_store("memory://") as other:
            again = await reports(other, root)
            assert [(report.run_id, report.outcome) for report in again] == [(RUN, "imported"), (OTHER, "imported")]
            for report, rollout_id in zip(again, ids, strict=True):
                assert report.rollout_id is not None
                assert len(await all_events(other, report.rollout_id)) == len(await all_events(store, rollout_id))
                copied, original = [await left(*target) for target in ((other, report.rollout_id), (store, rollout_id))]
                assert sorted(map(repr, copied)) == sorted(map(repr, original))
    assert trees[0] == trees[2]
    assert shared or trees[0] == trees[1]


async def test_a_scope_that_could_lead_elsewhere_is_refused(
    store: Store, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for scope in ("../x", "a/b", "..", ".x", "a\\b", "a..b"):
        with subtests.test(scope=scope):
            run = await auto_run(store)
            await store.runs.save_artifact(run.rollout_id, run.attempt.attempt_id, scope=scope, name="n", content=1)
            with pytest.raises(Invalid, match="cannot name a folder"):
                await export_run_folder(store, run.rollout_id, tmp_path / "out")
            assert tree(tmp_path / "out") == {}


async def test_a_flow_or_date_that_could_lead_elsewhere_is_refused(
    store: Store, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for which in ("rollbook.group", "date"):
        for flow in ("../x", "a/b", "..", ".x"):
            with subtests.test(which=which, flow=flow):
                run = await store.start_rollout(None, metadata={which: flow})
                with pytest.raises(Invalid, match="cannot name a folder"):
                    await export_run_folder(store, run.rollout_id, tmp_path / "out")
                assert not (tmp_path / "out").exists()


async def test_a_link_that_leads_out_is_refused(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store, group=FLOW, date=DAY)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in" / "daily" / DAY).mkdir(parents=True)
    (tmp_path / "in" / "daily" / DAY / FLOW).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match="leads out of"):
        await export_run_folder(store, run.rollout_id, tmp_path / "in")


async def test_another_runs_damaged_meta_is_not_written_over(store: Store, tmp_path: Path) -> None:
    run = await auto_run(store, group=FLOW, date=DAY)
    folder = Written().write(tmp_path)
    (folder / "run_meta.json").write_text("{")
    before = tree(folder)
    with pytest.raises(Invalid, match="cannot be read"):
        await export_run_folder(store, run.rollout_id, tmp_path)
    assert tree(folder) == before


async def test_a_run_that_does_not_exist_is_not_found(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await export_run_folder(store, "ro-nothing", tmp_path)
