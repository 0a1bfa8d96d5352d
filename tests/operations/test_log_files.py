"""A log in files of JSON lines makes an equal store, on either database, and has equal bytes everywhere."""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.db.dialect import NamedRow
from store.db.tables import core as core_tables
from store.domain.rows import row_maker
from store.errors import AlreadyExists, Conflict, Corrupt, Incompatible, NotFound, StoreError
from store.operations import (
    OperationProgress,
    Redaction,
    RetentionPolicy,
    compact,
    compression,
    export_log,
    import_log,
    log_source,
    packing,
    redact,
    remove_payload,
)
from store.operations.log_files import exporting, lines
from store.testing import ManualClock
from tests.conftest import POSTGRES, SQLITE
from tests.faults import processes
from tests.operations import payloads, work
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import assert_equal, content, drop, verified
from tests.operations.test_compression import fill as fill_for_dictionary
from tests.torture import rounds

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write several files, and several transactions for each."""
    monkeypatch.setattr(log_source, "EVENTS_AT_ONCE", work.EVENTS_AT_ONCE)
    monkeypatch.setattr(exporting, "_FILE_BYTES", 15_000)


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


class Stop(Exception):
    """Stops an operation."""


def stop_at(step: str, done: int = 0) -> Callable[[OperationProgress], None]:
    def on_progress(progress: OperationProgress) -> None:
        if progress.step == step and progress.done >= done:
            raise Stop

    return on_progress


@pytest.mark.postgres
async def test_store_and_files_are_equal_after_an_import_on_the_other_database_and_an_export(
    source: str, make_url: MakeURL, tmp_path: Path
) -> None:
    target = make_url("postgres" if source.startswith("sqlite") else "sqlite")
    exported = await export_log(source, tmp_path / "first")
    imported = await import_log(tmp_path / "first", target)
    again = await export_log(target, tmp_path / "second")
    proof = await assert_equal(source, target)
    assert bytes_of(tmp_path / "first") == bytes_of(tmp_path / "second")
    assert exported.files == again.files > 3
    assert (exported.chain_head, exported.events) == (proof.chain_head, proof.events)
    assert (imported.state_hash, imported.is_verified, imported.events_before) == (proof.state_hash, True, 0)
    # The imported store is in use like any other.
    async with await open_store(target, create=False) as store:
        await store.enqueue_rollout("next")
    await verified(target)


async def test_compressed_store_has_the_same_files(
    full: str, make_url: MakeURL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in work.ENOUGH.items():
        monkeypatch.setattr(compression, name, value)
    monkeypatch.setattr(packing, "EVENTS_PER_BLOCK", 4)
    monkeypatch.setattr(exporting, "_FILE_BYTES", 2**30)
    with_dictionary = (await fill_for_dictionary(make_url("sqlite"))).url
    for name, url, table in (
        ("blocks", full, core_tables.data_blocks),
        ("dictionary", with_dictionary, core_tables.dictionaries),
    ):
        await export_log(url, tmp_path / name / "before")
        await compact(url)
        assert (await content(url, table))[table.name]
        await export_log(url, tmp_path / name / "after")
        assert bytes_of(tmp_path / name / "before") == bytes_of(tmp_path / name / "after")


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_removed_payload_is_absent_and_its_removal_is_imported(
    kind: str, make_url: MakeURL, tmp_path: Path, clock: ManualClock
) -> None:
    source, target = make_url("sqlite"), make_url(kind)
    place = await payloads.fill(source, clock)
    await remove_payload(source, RetentionPolicy.of(statuses=["succeeded"]), apply=True)
    await redact(source, place.active, Redaction.of(everything=True, reason="request 17"))
    await export_log(source, tmp_path / "log")
    await import_log(tmp_path / "log", target)
    await assert_equal(source, target)
    assert (await payloads.payload_rows(target))["dropped"] > 5
    assert payloads.SECRET.encode() not in b"".join(bytes_of(tmp_path / "log").values())


async def test_empty_store_is_exported_and_imported(make_url: MakeURL, tmp_path: Path) -> None:
    source, target = make_url("sqlite"), make_url("sqlite")
    await (await open_store(source)).close()
    report = await export_log(source, tmp_path / "log")
    assert (report.commit_id, report.events, report.files) == (0, 0, 1)
    await import_log(tmp_path / "log", target)
    await assert_equal(source, target)


async def test_stopped_export_continues_at_its_end_of_the_log(full: str, tmp_path: Path) -> None:
    await export_log(full, tmp_path / "whole")
    for done in (0, 40):
        with pytest.raises(Stop):
            await export_log(full, tmp_path / "stopped", on_progress=stop_at("exporting the log", done))
        with pytest.raises(Incompatible, match="is not finished; repeat the command that began it"):
            await import_log(tmp_path / "stopped", "sqlite:///nowhere.db")
        async with await open_store(full) as store:
            await store.enqueue_rollout("meanwhile")
    report = await export_log(full, tmp_path / "stopped")
    assert 0 < report.events_before < report.events
    assert bytes_of(tmp_path / "stopped") == bytes_of(tmp_path / "whole")


async def test_export_begins_again_after_a_removal_of_payload(full: str, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        await export_log(full, tmp_path / "log", on_progress=stop_at("exporting the log", 40))
    exported = b"".join(bytes_of(tmp_path / "log").values())
    position = max(int(number) for number in re.findall(rb'"position":(\d+)[^\n]*"body":', exported))
    await drop(full, position)
    report = await export_log(full, tmp_path / "log")
    assert report.events_before == 0
    assert report.events == (await verified(full)).events
    (event,) = re.findall(rb'{"event":{"position":%d,.*' % position, b"".join(bytes_of(tmp_path / "log").values()))
    assert b'"body":' not in event


async def test_stopped_import_continues(full: str, tmp_path: Path, make_url: MakeURL) -> None:
    await export_log(full, tmp_path / "log")
    target = make_url("sqlite")
    for step, done in (("copying the log", 20), ("copying the log", 60), ("checking the log", 0)):
        with pytest.raises(Stop):
            await import_log(tmp_path / "log", target, on_progress=stop_at(step, done))
        with pytest.raises(NotFound):
            await open_store(target, create=False)
    report = await import_log(tmp_path / "log", target)
    assert report.events_before == report.events
    await assert_equal(full, target)


async def test_directory_with_something_else_is_not_overwritten(full: str, tmp_path: Path, make_url: MakeURL) -> None:
    other = make_url("sqlite")
    await (await open_store(other)).close()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(AlreadyExists, match=r"notes\.txt.* already exists; export to a new or empty directory"):
        await export_log(full, tmp_path / "taken", overwrite=True)
    await export_log(full, tmp_path / "log")
    with pytest.raises(AlreadyExists, match=r"finished export .*overwrite it with --overwrite"):
        await export_log(full, tmp_path / "log")
    with pytest.raises(Conflict, match=r"contains the log of store [0-9a-f]{16}, not of [0-9a-f]{16}"):
        await export_log(other, tmp_path / "log")
    await export_log(other, tmp_path / "log", overwrite=True)
    assert sorted(bytes_of(tmp_path / "log")) == ["manifest.json", "tables.jsonl"]
    (tmp_path / "log" / "manifest.json").write_text('{"schema_version": 1}')
    with pytest.raises(Incompatible, match="is not the manifest of a log"):
        await export_log(full, tmp_path / "log")


async def test_file_outside_of_the_directory_is_not_deleted(full: str, log: Path, tmp_path: Path) -> None:
    (tmp_path / "log-00001.jsonl").write_text("mine")
    manifest = orjson.loads((log / "manifest.json").read_bytes())
    manifest["files"][0]["path"] = "../log-00001.jsonl"
    (log / "manifest.json").write_bytes(orjson.dumps(manifest))
    before = bytes_of(log)
    with pytest.raises(Incompatible, match="is not the manifest of a log"):
        await export_log(full, log, overwrite=True)
    assert (bytes_of(log), (tmp_path / "log-00001.jsonl").read_text()) == (before, "mine")


@pytest.fixture
async def log(full: str, tmp_path: Path) -> Path:
    """A directory with a complete log in three files or more."""
    await export_log(full, tmp_path / "log")
    return tmp_path / "log"


Damage = Callable[[Path], object]


def _edit(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def edit(directory: Path) -> None:
        path = directory / name
        path.write_bytes(change(path.read_bytes()))

    return edit


def _manifest(**changes: Any) -> Damage:
    return _edit("manifest.json", lambda text: orjson.dumps(orjson.loads(text) | changes))


def _without(name: str) -> Damage:
    return lambda directory: (directory / name).unlink()


def _without_last_entry(directory: Path) -> None:
    manifest = orjson.loads((directory / "manifest.json").read_bytes())
    _manifest(files=manifest["files"][:-1])(directory)


_FIRST, _SECOND, _TABLES = "log-00001.jsonl", "log-00002.jsonl", "tables.jsonl"
_DAMAGE: dict[str, tuple[Damage, type[StoreError], str]] = {
    "a number": (_edit(_FIRST, lambda text: text.replace(b'"at":1', b'"at":2', 1)), Corrupt, "SHA-256 of"),
    "a half file": (_edit(_SECOND, lambda text: text[: len(text) // 2]), Corrupt, r"a line of .*log-00002\.jsonl"),
    "a key": (_edit(_SECOND, lambda text: text.replace(b'"stream"', b'"steam"')), Corrupt, "KeyError: 'stream'"),
    "a line": (_edit(_TABLES, lambda text: text[text.index(b"\n") + 1 :]), Corrupt, r"SHA-256 of .*tables\.jsonl"),
    "a table": (_edit(_TABLES, lambda _: b'{"table":"keys","row":{}}\n'), Corrupt, "KeyError: 'keys'"),
    "no file": (_without(_SECOND), Corrupt, "found None, expected a file of the log"),
    "no last file": (_without_last_entry, Corrupt, "the last commit in"),
    "another head": (_manifest(chain_head="00" * 32), Corrupt, "hash of the last commit of the copy"),
    "unfinished": (_manifest(is_complete=False), Incompatible, r"the export of the log to .* is not finished"),
    "newer version": (_manifest(version=2), Incompatible, r"has version 2 .* upgrade Rollbook"),
    "newer log": (_manifest(log_format=2), Incompatible, r"log format 2; .* upgrade Rollbook"),
    "other format": (_manifest(format="rollbook-book"), Incompatible, "is not the manifest of a log"),
    "no manifest": (_without("manifest.json"), NotFound, "contains no log; `rollbook export log`"),
}


@pytest.mark.parametrize("damage,error,message", _DAMAGE.values(), ids=_DAMAGE.keys())
async def test_damaged_or_foreign_files_make_no_store(
    damage: Damage, error: type[StoreError], message: str, log: Path, tmp_path: Path
) -> None:
    damage(log)
    with pytest.raises(error, match=message):
        await import_log(log, f"sqlite:///{tmp_path / 'new.db'}")
    assert [path.name for path in tmp_path.glob("new.db*") if path.suffix != ".lock"] == []


async def test_existing_store_is_not_overwritten(full: str, log: Path) -> None:
    before = await verified(full)
    with pytest.raises(AlreadyExists, match="a copy never overwrites anything"):
        await import_log(log, full)
    assert (await verified(full)).chain_head == before.chain_head


@pytest.mark.parametrize(
    "text,key",
    [
        (b'{"a":[1,2.5,"\xc3\xa9"]}', "content"),
        (b'{"a": 1}', "content_text"),
        (b'{"a":1.50}', "content_text"),
        (b'{"a":1,"a":2}', "content_text"),
        (b'{"a":123456789012345678901234567890}', "content_text"),
        (b"long text, not JSON\n", "content_text"),
        (b"\xff\xfe", "content_base64"),
    ],
)
def test_text_of_any_form_is_restored_byte_for_byte(text: bytes, key: str) -> None:
    line = lines.blob_line("00", 0, text)
    assert line.count(b"\n") == 1
    fields = orjson.loads(line)["blob"]
    assert fields.keys() == {"hash", key}
    row = lines.blob_row(fields)
    assert (row.codec, row.raw_len, row.body) == (0, len(text), text)


def test_data_that_is_not_json_is_not_exported() -> None:
    make: Callable[[Any], NamedRow] = row_maker((*core_tables.events.c.keys(), "codec", "body"))
    row = make((1, 1, "store", 1, 0, "x", 1, 1, None, None, "@7", None, None, None))
    with pytest.raises(Corrupt, match="a reference to block 7, which is missing or damaged"):
        lines.event_line(row)


_KILLED_ON = [SQLITE, pytest.param("postgres", marks=(pytest.mark.postgres, pytest.mark.torture_only), id="postgres")]


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", _KILLED_ON)
async def test_export_and_import_killed_at_any_instant_are_complete_or_continue(
    kind: str, full: str, make_url: MakeURL, tmp_path: Path
) -> None:
    began = time.monotonic()
    with processes.running(work.export_and_import, (full, tmp_path / "calm", make_url(kind))) as undisturbed:
        assert await asyncio.to_thread(processes.leave, undisturbed) == [0]
    needed = time.monotonic() - began
    for number in range(rounds(20, few=1)):
        directory, target = tmp_path / str(number), make_url(kind)
        for _ in range(rounds(5, few=2)):
            with processes.running(work.export_and_import, (full, directory, target)) as (process,):
                await asyncio.to_thread(process.join, random.uniform(0, needed))
        with contextlib.suppress(AlreadyExists):
            await export_log(full, directory)
        assert bytes_of(directory) == bytes_of(tmp_path / "calm")
        with contextlib.suppress(AlreadyExists):
            await import_log(directory, target)
        await assert_equal(full, target)
