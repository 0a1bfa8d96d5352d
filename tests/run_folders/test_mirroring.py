"""A mirror updates folders, warns of failed writes, and catches up after it was killed."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.interface.store import Store
from store.models import RunEvent
from store.run_folders import Mirror, export_run_folder
from tests.cli.conftest import COMMAND, environment
from tests.conftest import SQLITE
from tests.run_folders.conftest import POSTGRES_TOO
from tests.run_folders.folder_samples import DAY, tree
from tests.runs.trading_runs import auto_run, begin, complete_rerun, say


def written(root: Path) -> dict[str, bytes]:
    """Return what a mirror has written, without its own notes and those of the day."""
    return {path: data for path, data in tree(root).items() if path.count("/") > 2}


async def test_mirror_writes_only_changed_runs(store: Store, tmp_path: Path) -> None:
    told: list[str] = []
    mirror = Mirror(store, tmp_path, on_written=lambda rollout_id, _: told.append(rollout_id))
    assert await mirror.catch_up()
    one, two = await auto_run(store), await auto_run(store)
    await store.enqueue_rollout("no run")
    assert await mirror.catch_up()
    assert sorted(told) == sorted([one.rollout_id, two.rollout_id])
    told.clear()
    await complete_rerun(store, two, "risk", "RIG")
    assert await Mirror(store, tmp_path, on_written=lambda rollout_id, _: told.append(rollout_id)).catch_up()
    assert told == [two.rollout_id]
    for run in (one, two):
        await export_run_folder(store, run.rollout_id, tmp_path / "direct")
    assert written(tmp_path / "direct").items() <= written(tmp_path).items()


async def test_failed_write_of_the_mirror_is_a_warning_and_is_repeated(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = await auto_run(store)
    (tmp_path / "daily").write_text("in the way")
    mirror = Mirror(store, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert not await mirror.catch_up()
    assert f"could not write run {run.rollout_id}, and will try again" in caplog.text
    (tmp_path / "daily").unlink()
    assert await mirror.catch_up()
    assert any(path.endswith("run_meta.json") for path in tree(tmp_path))


async def test_a_run_that_no_folder_can_hold_does_not_hold_up_the_others(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await auto_run(store, group="a/b"), await auto_run(store, group="fine")
    with caplog.at_level(logging.WARNING):
        assert await Mirror(store, tmp_path).catch_up()
    assert f"leaves run {bad.rollout_id} out" in caplog.text
    (meta,) = [data for path, data in tree(tmp_path).items() if path.endswith("run_meta.json")]
    assert json.loads(meta)["id"] == good.rollout_id


@pytest.mark.parametrize("place", ["{", "[]", '{"cursor": 1}', '{"cursor": "1.other.1.0123456789abcdef.1"}'])
async def test_a_place_that_is_none_of_this_log_begins_anew(
    store: Store, tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    await auto_run(store)
    (tmp_path / ".rollbook-mirror.json").write_text(place)
    with caplog.at_level(logging.ERROR):
        assert await Mirror(store, tmp_path).catch_up()
    assert [path for path in tree(tmp_path) if path.endswith("run_meta.json")] != []


def mirroring(url: str, root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, "mirror", str(root)], env=environment(url), stdout=subprocess.PIPE, text=True)


def await_written(child: subprocess.Popen[str], rollout_id: str) -> None:
    assert child.stdout is not None
    while not child.stdout.readline().startswith(rollout_id):
        assert child.poll() is None


def mirror_once(url: str, root: Path) -> str:
    done = CliRunner().invoke(app, ["mirror", str(root), "--once", "--db", url])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_TOO], indirect=True)
@pytest.mark.slow
async def test_killed_it_catches_up_from_where_it_was(durable_url: str, tmp_path: Path) -> None:
    async with await open_store(durable_url) as store:
        first = await auto_run(store, date=DAY)
        second = await begin(store, date=DAY)
        with mirroring(durable_url, tmp_path) as child:
            await asyncio.to_thread(await_written, child, first.rollout_id)
            await say(store, second, [RunEvent(kind="log", message="one")])
            await asyncio.to_thread(await_written, child, second.rollout_id)
            child.kill()
        await say(store, second, [RunEvent(kind="log", message="two")])
        assert second.rollout_id in await asyncio.to_thread(mirror_once, durable_url, tmp_path)
        assert await asyncio.to_thread(mirror_once, durable_url, tmp_path) == ""
        for run in (first, second):
            out = await export_run_folder(store, run.rollout_id, tmp_path / "direct")
            assert tree(out) == tree(tmp_path / "daily" / DAY / out.name)
