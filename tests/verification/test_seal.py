"""Seals: complete files that name the head of the log and are never overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import Seal
from store.testing import ManualClock
from tests.journal.database_helpers import fill

ON_SQLITE = pytest.mark.parametrize("durable_url", ["sqlite"], indirect=True)
"""For tests of files, which are the same for every database."""


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")


def files(directory: Path) -> set[str]:
    """Return the names of seals there, finished or not; the store's own files may lie beside them."""
    return {path.name for path in directory.iterdir() if "head" in path.name}


async def test_a_seal_names_the_head_of_the_log(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    await fill(store, clock)
    seal = await store.log.seal(tmp_path / "head.json")
    report = await store.log.verify()
    assert (seal.store_id, seal.commit_id) == (report.store_id, report.commits)
    assert (seal.chain_head, seal.position) == (report.chain_head, report.last_position)
    assert json.loads(text(tmp_path / "head.json")) == seal.model_dump()
    assert files(tmp_path) == {"head.json"}


@ON_SQLITE
async def test_an_empty_log_can_be_sealed(store: Store, tmp_path: Path) -> None:
    seal = await store.log.seal(tmp_path / "head.json")
    assert (seal.commit_id, seal.position, seal.chain_head) == (0, 0, "00" * 32)
    await store.enqueue_rollout({"q": 1})
    assert (await store.log.verify(str(tmp_path / "head.json"))).ok


@ON_SQLITE
async def test_a_seal_is_never_overwritten(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    write(path, "older")
    with pytest.raises(FileExistsError, match="never overwritten"):
        await store.log.seal(path)
    assert text(path) == "older"
    assert files(tmp_path) == {"head.json"}


@ON_SQLITE
async def test_a_seal_that_cannot_be_written_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await store.log.seal(tmp_path / "missing" / "head.json")


@ON_SQLITE
async def test_another_file_is_refused_as_a_seal(store: Store, tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "head.json"
    for content in ("", "{}", "[]", '{"form": 2}', "seal"):
        write(path, content)
        with subtests.test(content=content), pytest.raises(Invalid, match="not a seal"):
            await store.log.verify(path)


@ON_SQLITE
async def test_a_seal_that_is_not_there_is_an_error(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await store.log.verify(tmp_path / "head.json")


async def test_a_seal_reads_back_as_it_was(store: Store, tmp_path: Path) -> None:
    await store.enqueue_rollout({"q": 1})
    seal = await store.log.seal(tmp_path / "head.json")
    assert Seal.model_validate_json(text(tmp_path / "head.json")) == seal
    assert (await store.log.verify(tmp_path / "head.json")).seal_checked
