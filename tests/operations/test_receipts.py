"""A copy that was killed after it got its name is reported by the same call, and by no other."""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from store import open_store
from store.errors import AlreadyExists
from store.operations import CopyReport, archive_payload, backup_store, copy_store, receipts, restore_store
from store.operations.policy import RetentionPolicy
from tests.conftest import POSTGRES, SQLITE
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import verified

Repeat = Callable[[], Awaitable[CopyReport]]


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Copies are made as if their process were killed before they return."""
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    gone = receipts.this_process() | {"pid": int(process.stdout)}
    monkeypatch.setattr(receipts, "this_process", lambda: gone)

    async def die(target: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(receipts, "acknowledge", die)
    return monkeypatch


async def assert_reported_once(repeat: Repeat, dies: pytest.MonkeyPatch) -> CopyReport:
    with pytest.raises(asyncio.CancelledError):
        await repeat()
    dies.undo()
    report = await repeat()
    assert report.events_before == report.events > 0
    with pytest.raises(AlreadyExists, match="already exists; a copy never overwrites anything"):
        await repeat()
    return report


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_killed_copy_is_reported_by_the_same_call(
    kind: str, make_url: MakeURL, full: str, dies: pytest.MonkeyPatch
) -> None:
    target = make_url(kind)
    report = await assert_reported_once(lambda: copy_store(full, target), dies)
    assert report.state_hash == (await verified(target)).state_hash


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_killed_restoration_is_reported_by_the_same_call_only(
    kind: str, make_url: MakeURL, full: str, tmp_path: Path, dies: pytest.MonkeyPatch
) -> None:
    target, file, other = make_url(kind), tmp_path / "a.backup", tmp_path / "b.backup"
    for backup in (file, other):
        with pytest.raises(asyncio.CancelledError):
            await backup_store(full, backup)
    with pytest.raises(asyncio.CancelledError):
        await restore_store(file, target)
    dies.undo()
    with pytest.raises(AlreadyExists):
        await restore_store(other, target)
    assert (await restore_store(file, target)).seal is not None
    with pytest.raises(AlreadyExists):
        await restore_store(file, target)


async def test_killed_backup_of_a_live_store_is_reported_with_its_seal(
    full: str, tmp_path: Path, dies: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.backup"

    async def repeat() -> CopyReport:
        async with await open_store(full) as store:
            await store.enqueue_rollout("later")
        return await backup_store(full, file)

    report = await assert_reported_once(repeat, dies)
    assert report.seal is not None
    assert report.seal.commit_id == report.commit_id
    assert sorted(path.name for path in tmp_path.glob("*a.backup*")) == ["a.backup"]


async def test_receipt_of_a_replaced_file_is_ignored(full: str, tmp_path: Path, dies: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.backup"
    with pytest.raises(asyncio.CancelledError):
        await backup_store(full, file)
    dies.undo()
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes())
    copy.replace(file)
    with pytest.raises(AlreadyExists):
        await backup_store(full, file)


async def test_backups_and_archives_can_be_read_by_their_user_only(
    full: str, tmp_path: Path, make_url: MakeURL
) -> None:
    modes: set[int] = set()

    def look(_: object) -> None:
        files = (path for path in tmp_path.glob("private.*") if path.suffix != ".lock")  # which is empty
        modes.update(path.stat().st_mode & 0o777 for path in files)

    await backup_store(full, tmp_path / "private.backup", on_progress=look)
    policy = RetentionPolicy.of(statuses=["succeeded", "failed"])
    await archive_payload(full, tmp_path / "private.archive", policy, apply=True, on_progress=look)
    look(None)
    assert modes == {0o600}
    target = make_url("sqlite")
    await restore_store(tmp_path / "private.backup", target)
    umask = os.umask(0)
    os.umask(umask)
    assert Path(target.removeprefix("sqlite:///")).stat().st_mode & 0o777 == 0o666 & ~umask
