"""A backup is one file with a proof of its content, and its restoration equals the source."""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.db.schema.partitions import files
from store.db.url import parse
from store.errors import AlreadyExists, Corrupt, Incompatible, Invalid, NotFound, ReadOnly
from store.models import Seal
from store.operations import CopyReport, RetentionPolicy, backup_store, copy_store, remove_payload, restore_store
from tests.command_line import logging_restored
from tests.journal.database_helpers import ask, run_sql, tamper
from tests.migrations.test_alembic_commands import run as run_alembic
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import assert_equal, content, verified
from tests.operations.test_copy import is_there
from tests.torture import Rounds

pytestmark = pytest.mark.slow

INI = str(Path(__file__).parents[2] / "alembic.ini")


@pytest.fixture(scope="session")
def original_backup(original: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CopyReport]:
    """A backup that tests get copies of."""
    path = tmp_path_factory.mktemp("backup") / "original.backup"
    return path, asyncio.run(backup_store(f"sqlite:///{original}", path))


@pytest.fixture
def backup(original_backup: tuple[Path, CopyReport], tmp_path: Path) -> Path:
    return Path(shutil.copy(original_backup[0], tmp_path / "store.backup"))


@pytest.fixture
def report(original_backup: tuple[Path, CopyReport]) -> CopyReport:
    return original_backup[1]


async def test_restored_store_equals_its_backup(source: str, make_url: MakeURL, tmp_path: Path) -> None:
    file, target = tmp_path / "store.backup", make_url(parse(source).scheme.removesuffix("ql"))
    saved = await backup_store(source, file)
    restored = await restore_store(file, target)
    assert restored.seal == saved.seal
    assert (restored.chain_head, restored.state_hash) == (saved.chain_head, saved.state_hash)
    assert restored.is_verified
    await assert_equal(source, target)
    async with await open_store(target) as store:
        await store.enqueue_rollout("goes on")
    await verified(target)


async def test_a_backup_is_one_file_that_can_be_read(backup: Path, report: CopyReport) -> None:
    url = f"sqlite:///{backup}"
    before = backup.read_bytes()
    async with await open_store(url, read_only=True) as store:
        proof = await store.log.verify(Seal(**report.model_dump()["seal"]))
        assert (await store.query_rollouts(limit=1)).total > 1
    assert proof.ok
    assert proof.seal_checked
    assert (proof.chain_head, proof.state_hash) == (report.chain_head, report.state_hash)
    assert [path.name for path in backup.parent.glob("store.backup*")] == [backup.name]
    assert backup.read_bytes() == before
    ((stored,),) = await ask(url, "SELECT seal FROM backup_seal")
    assert orjson.loads(stored) == report.model_dump()["seal"]
    assert report.size_bytes == pytest.approx(len(before), abs=8192)


async def test_a_backup_that_was_verified_by_the_command_can_be_restored(backup: Path, make_url: MakeURL) -> None:
    # Storing the result of a verification changes the file.
    verified = await asyncio.to_thread(CliRunner().invoke, app, ["verify", "--db", f"sqlite:///{backup}"])
    assert verified.exit_code == 0
    target = make_url("sqlite")
    await restore_store(backup, target)
    await assert_equal(f"sqlite:///{backup}", target)


async def test_a_backup_may_not_have_the_name_of_a_partition(full: str, tmp_path: Path) -> None:
    path = parse(full).path
    assert path is not None
    with pytest.raises(Invalid, match=r"full\.old\.db would be the partition 'old' of full\.db; choose a name"):
        await backup_store(full, path.with_name("full.old.db"))
    await backup_store(full, tmp_path / "old.db")
    assert list(files(parse(full))) == ["default"]


async def test_no_payload_is_removed_from_a_backup(backup: Path) -> None:
    before = backup.read_bytes()
    with pytest.raises(Incompatible, match=r"is a backup or an archive, .* make a new store with `rollbook restore`"):
        await remove_payload(f"sqlite:///{backup}", RetentionPolicy.of(keep_last=1), apply=True)
    assert backup.read_bytes() == before


async def test_nothing_is_overwritten(backup: Path, full: str, make_url: MakeURL) -> None:
    before = backup.read_bytes()
    with pytest.raises(AlreadyExists, match="already exists; a copy never overwrites anything"):
        await backup_store(full, backup)
    assert backup.read_bytes() == before
    with pytest.raises(AlreadyExists, match="already exists; a copy never overwrites anything"):
        await restore_store(backup, full)
    await verified(full)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET data = data || ' ' WHERE position = 3",
        "UPDATE bodies SET body = X'7b7d' WHERE position = (SELECT max(position) FROM bodies)",
        "DELETE FROM events WHERE position = 7",
        "UPDATE events SET at = 'yesterday' WHERE position = 7",
        "UPDATE blobs SET body = X'7b7d'",
        "DELETE FROM commits WHERE commit_id = (SELECT max(commit_id) FROM commits)",
        "UPDATE commits SET chain_hash = zeroblob(32) WHERE commit_id = 2",
        "UPDATE idempotency SET reply = '{}'",
        "UPDATE commits SET writer = 'me' WHERE commit_id = 2",
        "DELETE FROM span_counters",
        "INSERT INTO keys (key_id, hash, role, created_at) VALUES ('k', X'11', 'admin', 1)",
        "UPDATE store_info SET store_id = '0123456789abcdef'",
        "UPDATE backup_seal SET seal = replace(seal, 'chain_head\":\"', 'chain_head\":\"0')",
        "UPDATE backup_seal SET seal = '{}'",
        "DELETE FROM backup_seal",
    ],
)
async def test_a_changed_backup_is_refused(change: str, backup: Path, make_url: MakeURL) -> None:
    await tamper(f"sqlite:///{backup}", change)
    target = make_url("sqlite")
    with pytest.raises(Corrupt):
        await restore_store(backup, target)
    _assert_no_files(target)


async def test_a_backup_is_opened_only_for_reading(backup: Path) -> None:
    before = backup.read_bytes()
    with pytest.raises(Incompatible, match=r"is a backup or an archive, .*; to read it, use read_only=True"):
        await open_store(f"sqlite:///{backup}")
    assert backup.read_bytes() == before
    async with await open_store(f"sqlite:///{backup}", read_only=True) as store:
        assert (await store.query_rollouts()).total
        with pytest.raises(ReadOnly):
            await store.enqueue_rollout("changed")


@pytest.mark.parametrize(
    "command",
    [
        ["enqueue", "1"],
        ["serve", "--port", "0"],
        ["cancel", "ro-1"],
        ["rebuild"],
        ["keys", "create", "--role", "reader"],
        ["keys", "revoke", "rbk"],
        ["keys", "enforce"],
    ],
    ids=" ".join,
)
def test_commands_that_change_the_log_or_keys_refuse_a_backup(backup: Path, command: list[str]) -> None:
    before = backup.read_bytes()
    with logging_restored():
        refused = CliRunner().invoke(app, [*command, "--db", f"sqlite:///{backup}"])
    assert refused.exit_code != 0
    assert "is a backup or an archive" in refused.output
    assert backup.read_bytes() == before


async def test_an_older_backup_is_not_upgraded_before_it_is_refused(backup: Path) -> None:
    assert "FAILED" not in await asyncio.to_thread(run_alembic, INI, f"sqlite:///{backup}", "downgrade", "-1")
    before = backup.read_bytes()
    with pytest.raises(Incompatible, match=r"is a backup or an archive"):
        await open_store(f"sqlite:///{backup}")
    assert backup.read_bytes() == before
    assert [path.name for path in backup.parent.glob("store.backup*")] == [backup.name]


async def test_a_backup_with_more_commits_than_its_seal_is_refused(backup: Path, make_url: MakeURL) -> None:
    seal = await ask(f"sqlite:///{backup}", "SELECT seal FROM backup_seal")
    await run_sql(f"sqlite:///{backup}", "DROP TABLE backup_seal")
    async with await open_store(f"sqlite:///{backup}") as store:
        await store.enqueue_rollout("changed")
    text = seal[0][0].replace("'", "''")
    await run_sql(
        f"sqlite:///{backup}",
        "CREATE TABLE backup_seal (seal TEXT NOT NULL)",
        f"INSERT INTO backup_seal VALUES ('{text}')",
    )
    with pytest.raises(Corrupt, match=r"commit_id of the backup .*: found \d+, expected \d+ as in its seal"):
        await restore_store(backup, make_url("sqlite"))
    # Its data is not lost: it can be copied.
    target = make_url("sqlite")
    await copy_store(f"sqlite:///{backup}", target)
    async with await open_store(target) as store:
        assert "changed" in [rollout.input for rollout in await store.query_rollouts()]
        await store.enqueue_rollout("goes on")
    await verified(target)


@pytest.mark.torture
async def test_flipped_bytes_are_noticed_or_harmless(
    backup: Path, report: CopyReport, make_url: MakeURL, rounds: Rounds
) -> None:
    sound, draw, noticed = backup.read_bytes(), random.Random(61), 0
    number = rounds(120, few=6)
    tables = await content(f"sqlite:///{backup}")
    for _ in range(number):
        damaged = bytearray(sound)
        for place in draw.sample(range(len(sound)), 8):
            damaged[place] ^= 1 << draw.randrange(8)
        backup.write_bytes(damaged)
        target = make_url("sqlite")
        try:
            restored = await restore_store(backup, target)
        except (Corrupt, Incompatible):
            _assert_no_files(target)
            noticed += 1
        else:
            # The bytes belong to a table that the copy computes anew, or to no row.
            assert (restored.chain_head, restored.state_hash) == (report.chain_head, report.state_hash)
            assert await content(target) == tables
    # Most bytes matter; with few rounds, chance may hit free pages in half of them.
    assert noticed >= number // 6


@pytest.mark.parametrize("length", [0, 50, 5000])
async def test_a_file_that_is_cut_off_is_refused(length: int, backup: Path, make_url: MakeURL) -> None:
    backup.write_bytes(backup.read_bytes()[:length])
    target = make_url("sqlite")
    with pytest.raises((Corrupt, Incompatible, NotFound)):
        await restore_store(backup, target)
    _assert_no_files(target)


async def test_a_foreign_file_is_refused(full: str, make_url: MakeURL, tmp_path: Path) -> None:
    target, text = make_url("sqlite"), tmp_path / "notes.txt"
    text.write_text("these are notes\n" * 100)
    with pytest.raises(NotFound, match=r"there is no file .*none; `rollbook backup .*none` writes one"):
        await restore_store(tmp_path / "none", target)
    with pytest.raises(Incompatible, match="is not a SQLite database"):
        await restore_store(text, target)
    with pytest.raises(Incompatible, match=r"contains no seal, so neither `rollbook backup` nor `archive` wrote it"):
        await restore_store(full.removeprefix("sqlite:///"), target)
    with pytest.raises(Invalid, match=r"contains \? or #"):
        await backup_store(full, tmp_path / "what?")
    await run_sql(full, "CREATE TABLE backup_seal (seal TEXT)", "INSERT INTO backup_seal VALUES ('no seal')")
    with pytest.raises(Corrupt, match="the seal of the backup"):
        await restore_store(full.removeprefix("sqlite:///"), target)
    _assert_no_files(target)


def _assert_no_files(url: str) -> None:
    assert not is_there(url)
    path = Path(url.removeprefix("sqlite:///"))
    assert list(path.parent.glob(f"{path.name}*")) == []
