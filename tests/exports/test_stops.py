"""An export that is killed, or whose disk is full, is continued by the same call, and only by it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.errors import AlreadyExists, Conflict, Incompatible, Invalid, StoreError
from store.exports import export_store
from store.exports.manifest import locked
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from store.models.queries import RolloutQuery
from tests.exports.agents import conversation
from tests.exports.conftest import content
from tests.exports.work import ARGUMENTS, export, export_documents, export_until_full
from tests.faults import processes
from tests.torture import rounds

LONG = "long " * 15_000
"""An input that does not fit into the files of a full disk."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store with several parts for an export."""
    url = f"sqlite:///{tmp_path_factory.mktemp('stops') / 'many.db'}"

    async def fill() -> None:
        async with await open_store(url) as store:
            inputs = [number if number < 40 else LONG for number in range(60)]
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=value) for value in inputs])
            for number, rollout in enumerate(await store.dequeue_many_rollouts(limit=60)):
                await store.add_many_spans(conversation(rollout.attempt, number))

    asyncio.run(fill())
    return url


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("export,few", [(export, 2), (export_documents, 1)], ids=["tables", "documents"])
async def test_an_export_killed_at_any_instant_is_continued_to_the_same_bytes(
    export: Callable[[str, str], Coroutine[Any, Any, None]], few: int, many: str, tmp_path: Path
) -> None:
    await export(many, str(tmp_path / "expected"))
    expected = content(tmp_path / "expected")
    assert len(orjson.loads(expected["manifest.json"])["files"]) > 6
    began = time.monotonic()
    with processes.running(export, (many, str(tmp_path / "undisturbed"))) as undisturbed:
        assert await asyncio.to_thread(processes.leave, undisturbed) == [0]
    needed = time.monotonic() - began
    for number in range(rounds(40, few=few)):
        directory = tmp_path / str(number)
        for _ in range(3):
            with processes.running(export, (many, str(directory))) as (process,):
                await asyncio.to_thread(process.join, random.uniform(0, needed))
            _check_listed(directory)
        with contextlib.suppress(AlreadyExists):  # it may have been killed after its end
            await export(many, str(directory))
        assert content(directory) == expected


def _check_listed(directory: Path) -> None:
    """Check that each file in the manifest is complete."""
    if not (directory / "manifest.json").exists():
        return
    for file in orjson.loads((directory / "manifest.json").read_bytes())["files"]:
        lines = (directory / file["path"]).read_bytes().splitlines()
        assert len(lines) == file["rows"]
        for document in [document for line in lines if (document := orjson.loads(line).get("file"))]:
            assert (directory / document).is_file()


async def test_a_full_disk_is_reported_and_the_export_continues_later(many: str, tmp_path: Path) -> None:
    await export(many, str(tmp_path / "expected"))
    for _ in range(2):
        with processes.running(export_until_full, (many, str(tmp_path / "export"), len(LONG))) as exporting:
            assert await asyncio.to_thread(processes.leave, exporting) == [0]
        assert 0 < orjson.loads((tmp_path / "export" / "manifest.json").read_bytes())["rollouts"] <= 40
    await export(many, str(tmp_path / "export"))
    assert content(tmp_path / "export") == content(tmp_path / "expected")


async def test_after_a_value_that_does_not_fit_no_later_part_is_written(tmp_path: Path) -> None:
    directory = tmp_path / "export"
    async with await open_store(f"sqlite:///{tmp_path / 'late.db'}") as store:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(160)])
        claims = await store.dequeue_many_rollouts(limit=160)
        spans = [span for number, claim in enumerate(claims) for span in conversation(claim.attempt, number)]
        late = next(place for place, span in enumerate(spans) if span.rollout_id == claims[9].rollout_id)
        spans[late] = spans[late].model_copy(update={"end_time": 1e14})
        await store.add_many_spans(spans)
        with pytest.raises(Invalid, match="is not a value of type timestamp"):
            await export_store(store, "parquet", directory, tables=["spans"], rows_per_file=30)
    manifest = directory / "manifest.json"
    assert not manifest.exists() or orjson.loads(manifest.read_bytes())["rollouts"] < 10


@pytest.fixture
async def stopped(many: str, tmp_path: Path) -> Path:
    """The directory of an export that was cancelled after its first part."""
    directory = tmp_path / "export"

    def stop(_: Any) -> None:
        if (directory / "manifest.json").read_bytes().count(b"sha256"):
            raise KeyboardInterrupt

    async with await open_store(many, read_only=True) as store:
        with pytest.raises(KeyboardInterrupt):
            await export_store(store, "jsonl", directory, on_progress=stop, **ARGUMENTS)
    assert [*directory.rglob("*.unfinished")] == []
    return directory


async def test_a_stopped_export_continues_at_its_position(stopped: Path, many: str) -> None:
    async with await open_store(many) as store:
        position = orjson.loads((stopped / "manifest.json").read_bytes())["position"]
        await store.enqueue_rollout("later")
        report = await export_store(store, "jsonl", stopped, **ARGUMENTS)
    assert (report.position, report.rollouts) == (position, 60)
    assert 0 < report.rollouts_before < 60


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "sft", "tables": None},
        {"tables": ["rollouts"]},
        {"rows_per_file": 41},
        {"query": RolloutQuery(status_in=["running"])},
        {"query": RolloutQuery(as_at=3)},
        {"redact": ["input"]},
        {"split_by": "mode"},
    ],
    ids="+".join,
)
async def test_another_command_is_refused_in_a_directory(stopped: Path, many: str, changes: dict[str, Any]) -> None:
    before = content(stopped)
    arguments: dict[str, Any] = {"format": "jsonl", "directory": stopped, **ARGUMENTS, **changes}
    async with await open_store(many, read_only=True) as store:
        with pytest.raises(Conflict, match="contains an export of another command"):
            await export_store(store, **arguments)
    assert content(stopped) == before


async def test_an_export_of_another_store_is_refused_in_a_directory(stopped: Path) -> None:
    async with await open_store("memory://") as store:
        with pytest.raises(Conflict, match="store_id"):
            await export_store(store, "jsonl", stopped, **ARGUMENTS)


async def test_a_finished_export_is_only_overwritten_on_request(store: Store, tmp_path: Path) -> None:
    await export_store(store, "sft", tmp_path / "export")
    before = content(tmp_path / "export")
    with pytest.raises(AlreadyExists, match="--overwrite"):
        await export_store(store, "sft", tmp_path / "export")
    (tmp_path / "export" / "notes.txt").write_text("mine")
    await export_store(store, "jsonl", tmp_path / "export", tables=["spans"], overwrite=True)
    assert content(tmp_path / "export").keys() == {"manifest.json", "spans/part-00000.jsonl", "notes.txt"}
    (tmp_path / "export" / "notes.txt").unlink()
    await export_store(store, "sft", tmp_path / "export", overwrite=True)
    assert content(tmp_path / "export") == before


@pytest.mark.parametrize("field", ["path", "table"])
async def test_files_outside_of_the_directory_are_not_deleted(field: str, store: Store, tmp_path: Path) -> None:
    directory = tmp_path / "export"
    await export_store(store, "sft", directory)
    outside = tmp_path / "outside"
    (outside.touch if field == "path" else outside.mkdir)()
    manifest = orjson.loads((directory / "manifest.json").read_bytes())
    manifest["files"][-1][field] = "../outside"
    (directory / "manifest.json").write_bytes(orjson.dumps(manifest))
    before = content(directory)
    with pytest.raises(Incompatible, match=r"lists '\.\./outside', which is not in the directory"):
        await export_store(store, "sft", directory, overwrite=True)
    assert (content(directory), outside.exists()) == (before, True)


async def test_folders_of_unfinished_documents_are_deleted_and_others_stay(many: str, tmp_path: Path) -> None:
    await export_documents(many, str(tmp_path / "expected"))
    directory = tmp_path / "export"

    def stop(_: Any) -> None:
        if (directory / "manifest.json").read_bytes().count(b"sha256"):
            raise KeyboardInterrupt

    async with await open_store(many, read_only=True) as store:
        with pytest.raises(KeyboardInterrupt):
            await export_store(store, "atif", directory, rows_per_file=9, on_progress=stop)
        parts = orjson.loads((directory / "manifest.json").read_bytes())["parts"]
        # Killed between the names of the folder and of its index, and before both.
        (directory / f"part-{parts:05d}.jsonl.unfinished").touch()
        for name in (f"part-{parts:05d}", "part-00077.unfinished", "mine"):
            (directory / name).mkdir()
            (directory / name / "rest.json").touch()
        await export_documents(many, str(directory))
        expected = content(tmp_path / "expected")
        assert content(directory) == {**expected, "mine/rest.json": b""}
        await export_store(store, "jsonl", directory, tables=["rollouts"], overwrite=True)
    assert content(directory).keys() == {"manifest.json", "rollouts/part-00000.jsonl", "mine/rest.json"}


async def test_a_directory_with_other_files_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(AlreadyExists, match=r"notes\.txt"):
            await export_store(store, "jsonl", tmp_path, overwrite=overwrite)
    with pytest.raises(FileExistsError):
        await export_store(store, "jsonl", tmp_path / "notes.txt")
    assert content(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize(
    "manifest,error",
    [
        (b'{"schema_version": 2}', "schema version 2, and this program writes 1"),
        (b'{"schema_version": 1}', "is not the manifest"),
        (b"[]", "is not the manifest"),
        (b"{", "is not the manifest"),
    ],
)
async def test_an_export_of_another_version_is_refused(
    manifest: bytes, error: str, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_bytes(manifest)
    with pytest.raises(Incompatible, match=error):
        await export_store(store, "jsonl", tmp_path)
    assert content(tmp_path) == {"manifest.json": manifest}


async def test_a_directory_has_one_export_at_a_time(store: Store, tmp_path: Path) -> None:
    with locked(tmp_path / "export"), pytest.raises(StoreError, match="another process is exporting"):
        await export_store(store, "jsonl", tmp_path / "export")
