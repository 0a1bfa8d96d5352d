"""`archive_payload`: the payload of old rollouts moves into one file that can be read, verified and restored."""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.cli.output import progress
from store.db.queries import removal as removal_queries
from store.db.url import parse
from store.errors import AlreadyExists, Conflict, Corrupt, Incompatible, Invalid, NotFound, StoreError, Unavailable
from store.models import Seal, VerifyReport
from store.operations import RetentionPolicy, archive_payload, backup_store, remove_payload, restore_store
from store.operations.removal import database, remover
from store.semconv import DROPPED
from store.testing.samples import make_span
from tests.faults import processes
from tests.journal.database_helpers import run_sql, tamper
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import assert_equal
from tests.operations.payloads import ON_SQLITE, SECRET, Place, bodies_of, fill, opened, payload_rows, rows, verified
from tests.operations.work import archive_in_small_steps, archive_until_full
from tests.torture import Rounds

pytestmark = pytest.mark.slow

ALL = RetentionPolicy.of(statuses=("succeeded", "failed", "cancelled"))


@pytest.fixture
async def place(durable_url: str, clock: Any) -> Place:
    return await fill(durable_url, clock)


@pytest.fixture
async def file_place(tmp_path: Path, clock: Any) -> Place:
    return await fill(f"sqlite:///{tmp_path / 'store.db'}", clock)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "old.archive"


async def archived(place: Place, archive: Path, policy: RetentionPolicy = ALL, **options: Any) -> Any:
    return await archive_payload(place.url, archive, policy, apply=True, actor="cli", clock=place.clock, **options)


async def read(url: str, place: Place, rollout_id: str) -> tuple[Any, ...]:
    """Return what a store shows of a rollout."""
    async with await open_store(url, read_only=True, clock=place.clock) as store:
        history = await store.log.history(rollout_id)
        return (
            await store.get_rollout_by_id(rollout_id),
            await store.query_spans(rollout_id, limit=-1),
            await store.query_attempts(rollout_id),
            [event.model_dump() for event in history],
            (await store.runs.query_events(rollout_id, view="raw")).items if rollout_id == place.run else None,
            await store.runs.query_artifacts(rollout_id=rollout_id),
        )


async def test_payload_moves_from_the_store_to_the_archive(place: Place, archive: Path) -> None:
    url = f"sqlite:///{archive}"
    state = (await verified(place.url)).state_hash
    before = {rollout_id: await read(place.url, place, rollout_id) for rollout_id in (place.task, place.run)}
    active = await read(place.url, place, place.active)
    at_first = await payload_rows(place.url)
    counted = await archive_payload(place.url, archive, ALL, clock=place.clock)
    assert (counted.is_applied, counted.rollouts, archive.exists()) == (False, 2, False)
    done = await archived(place, archive, vacuum=True)
    amounts = {"policy", "rollouts", "events", "bodies", "body_bytes", "blobs", "blob_bytes"}
    assert done.model_dump(include=amounts) == counted.model_dump(include=amounts)
    assert (done.is_applied, done.archive_bytes) == (True, archive.stat().st_size)

    # The archive is one file, a store whose state and history are those of the store.
    assert [path.name for path in archive.parent.glob("old.archive*")] == [archive.name]
    for rollout_id, answers in before.items():
        assert await read(url, place, rollout_id) == answers
    async with await open_store(url, read_only=True) as store:
        report = await store.log.verify(Seal(**done.seal.model_dump(include=set(Seal.model_fields))))
        other = await store.get_rollout_by_id(place.active)
    assert (report.differences, report.state_hash) == ([], state)
    assert report.seal_checked
    assert other is not None
    assert other.input is None
    assert SECRET.encode() not in archive.read_bytes()

    # The store is as after a retention.
    after = await payload_rows(place.url)
    assert at_first["bodies"] - after["bodies"] == done.bodies > 10
    assert at_first["blobs"] - after["blobs"] == done.blobs > 3
    assert (await verified(place.url)).state_hash == state
    assert await read(place.url, place, place.active) == active
    async with await opened(place) as store:
        rollout = await store.get_rollout_by_id(place.task)
        assert rollout is not None
        assert (rollout.input, rollout.metadata) == (None, {DROPPED: True})
        (note,) = (await store.annotations.query(place.task)).notes
        assert note.text == "look again"
        orders = [event async for event in store.log.tail() if event.type.startswith("store.")]
    words = f"archived to old.archive at commit {done.seal.archive.commit_id}: {ALL}"
    assert {(order.actor, order.data["policy"]) for order in orders} == {("cli", words)}


async def test_readers_of_the_store_learn_where_the_payload_is(file_place: Place, archive: Path) -> None:
    await archived(file_place, archive)
    dialect = database(file_place.url, read_only=True)
    await dialect.open(create=False)
    async with dialect.read() as session:
        (policy,) = await removal_queries.policies_of(session, file_place.task)
    await dialect.close()
    assert policy.startswith("archived to old.archive at commit ")


async def test_an_archive_can_be_restored(file_place: Place, archive: Path, make_url: MakeURL) -> None:
    before = await read(file_place.url, file_place, file_place.run)
    done = await archived(file_place, archive)
    target = make_url("sqlite")
    restored = await restore_store(archive, target)
    assert restored.seal == done.seal
    assert restored.is_verified
    await assert_equal(f"sqlite:///{archive}", target)
    assert await read(target, file_place, file_place.run) == before


@ON_SQLITE
async def test_only_rollouts_selected_by_the_policy_are_archived(place: Place, archive: Path) -> None:
    url = f"sqlite:///{archive}"
    policy = RetentionPolicy.of(without_labels=("good",))
    task = await read(place.url, place, place.task)
    done = await archived(place, archive, policy)
    assert done.rollouts == 1
    assert await read(place.url, place, place.task) == task
    # The archive does not contain the notes of other rollouts either.
    assert [await bodies_of(url, rollout_id) for rollout_id in (place.task, place.active)] == [0, 0]
    assert await bodies_of(url, place.run) > 0
    assert await bodies_of(place.url, place.run) == 0


@ON_SQLITE
async def test_a_policy_that_selects_nothing_writes_no_file(place: Place, archive: Path) -> None:
    before = await payload_rows(place.url)
    done = await archived(place, archive, RetentionPolicy.of(groups=("nobody",)))
    assert (done.rollouts, done.seal, archive.exists()) == (0, None, False)
    assert await payload_rows(place.url) == before


@ON_SQLITE
async def test_second_archive_contains_later_payload(place: Place, archive: Path) -> None:
    await archived(place, archive)
    async with await opened(place) as store:
        await store.add_span(make_span((await store.query_attempts(place.task))[-1], 90, attributes={"late": "text"}))
    # The same call is the continuation of the first one, so it moves nothing that the file does not contain.
    again = await archived(place, archive)
    assert (again.events, again.blobs) == (0, 0)
    assert await bodies_of(place.url, place.task) == 2  # the late span and the note
    later = archive.with_name("later.archive")
    assert (await archived(place, later)).events == 1
    assert await bodies_of(f"sqlite:///{later}", place.task) == 2
    await verified(place.url)
    async with await open_store(f"sqlite:///{later}", read_only=True) as store:
        assert (await store.log.verify()).differences == []


async def test_nothing_is_overwritten_and_no_payload_is_lost(file_place: Place, archive: Path) -> None:
    before = await payload_rows(file_place.url)

    async def refuse(error: type[StoreError], text: str, policy: RetentionPolicy = ALL) -> None:
        content = archive.read_bytes()
        with pytest.raises(error, match=text):
            await archived(file_place, archive, policy)
        assert archive.read_bytes() == content
        assert await payload_rows(file_place.url) == before

    for text in ("some notes", ""):
        archive.write_text(text)
        await refuse(AlreadyExists, "is not an archive; choose another name")
        with pytest.raises(AlreadyExists):
            await archive_payload(file_place.url, archive, ALL, clock=file_place.clock)
    archive.unlink()
    await backup_store(file_place.url, archive)
    await refuse(AlreadyExists, "it is a backup and not an archive; choose another name")
    archive.unlink()
    other = await fill(f"sqlite:///{archive.parent / 'other.db'}", file_place.clock)
    async with await opened(other) as store:
        await store.enqueue_rollout("another history")
    await archived(other, archive)
    await refuse(Conflict, r"is not an archive of this store: it contains commit \d+ of store \w+ with the hash")
    await refuse(
        AlreadyExists,
        "it was made with the policy 'status succeeded, failed, cancelled'",
        RetentionPolicy.of(keep_last=1),
    )


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE bodies SET body = X'7b7d', codec = 0 WHERE position = (SELECT min(position) FROM bodies)",
        "UPDATE events SET data = data || ' ' WHERE position = 3",
        "DELETE FROM bodies WHERE position = (SELECT max(position) FROM bodies)",
        "UPDATE blobs SET body = X'7b7d'",
        "DELETE FROM dropped",
        "DELETE FROM backup_seal",
        "UPDATE backup_seal SET seal = replace(seal, 'chain_head\":\"', 'chain_head\":\"0')",
    ],
)
async def test_a_damaged_archive_removes_nothing(change: str, file_place: Place, archive: Path) -> None:
    path = parse(file_place.url).path
    assert path is not None
    complete = replace(file_place, url=f"sqlite:///{shutil.copy(path, archive.parent / 'whole.db')}")
    await archived(file_place, archive)
    # The second call continues with a store from which nothing was removed yet, as after a kill.
    before = await payload_rows(complete.url)
    restored = f"sqlite:///{archive.parent / 'restored.db'}"
    await tamper(f"sqlite:///{archive}", change)
    with pytest.raises(Corrupt):
        await archived(complete, archive)
    assert await payload_rows(complete.url) == before
    with pytest.raises(Corrupt):
        await restore_store(archive, restored)
    assert not (archive.parent / "restored.db").exists()


@pytest.mark.parametrize("name", ["old.archive", "old.archive.partial"])
async def test_an_archive_that_was_written_before_a_kill_is_used(name: str, file_place: Place, archive: Path) -> None:
    path = parse(file_place.url).path
    assert path is not None
    complete = replace(file_place, url=f"sqlite:///{shutil.copy(path, archive.parent / 'whole.db')}")
    done = await archived(file_place, archive)
    archive.rename(archive.with_name(name))
    async with await opened(complete) as store:
        rollout = await store.start_rollout("later")
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    again = await archived(complete, archive)
    assert (again.events, again.blobs, again.seal) == (done.events, done.blobs, done.seal)
    assert again.rollouts_left == 1
    assert await bodies_of(complete.url, rollout.rollout_id) == 1


async def test_a_complete_archive_that_was_not_renamed_is_not_deleted(file_place: Place, archive: Path) -> None:
    await archived(file_place, archive)
    partial = archive.rename(archive.with_name("old.archive.partial"))
    before = partial.read_bytes()
    with pytest.raises(
        Conflict, match=r"is a complete archive that was made with the policy '.*'; repeat the command with this policy"
    ):
        await archived(file_place, archive, RetentionPolicy.of(without_labels=("nothing",)))
    other = await fill(f"sqlite:///{archive.parent / 'other.db'}", file_place.clock)
    await run_sql(other.url, "UPDATE store_info SET store_id = '0123456789abcdef'")
    with pytest.raises(Incompatible, match="remove it"):
        await archived(other, archive)
    assert partial.read_bytes() == before


@pytest.mark.parametrize("apply", [False, True])
async def test_a_place_where_no_file_can_be_written_is_reported(apply: bool, file_place: Place, archive: Path) -> None:
    before = await payload_rows(file_place.url)
    for path, error, text in (
        (archive.parent / "none" / "old.archive", NotFound, "does not exist; make it first: mkdir -p"),
        (archive.parent, Invalid, "is a directory; choose a file in it"),
    ):
        with pytest.raises(error, match=text):
            await archive_payload(file_place.url, path, ALL, apply=apply, clock=file_place.clock)
    with pytest.raises(Unavailable, match="cannot be used"):
        await archived(file_place, Path("/proc/old.archive"))
    assert await payload_rows(file_place.url) == before


async def test_an_archive_is_not_archived_again(file_place: Place, archive: Path) -> None:
    await archived(file_place, archive)
    before = archive.read_bytes()
    for target in (archive, archive.with_name("new.archive")):
        with pytest.raises(Incompatible, match="is a backup or an archive, which cannot be restored after a change"):
            await archived(replace(file_place, url=f"sqlite:///{archive}"), target)
    assert archive.read_bytes() == before
    with pytest.raises(Invalid, match="would be the partition"):
        await archived(file_place, Path(file_place.url.removeprefix("sqlite:///")).with_suffix(".old.db"))


@ON_SQLITE
async def test_two_calls_with_the_same_file_run_one_after_the_other(place: Place, archive: Path) -> None:
    first, second = await asyncio.gather(archived(place, archive), archived(place, archive))
    assert first.seal == second.seal
    assert sorted((first.rollouts, second.rollouts)) == [0, 2]
    assert [path.name for path in archive.parent.glob("old.archive*")] == [archive.name]
    await verified(place.url)


async def test_an_unfinished_archive_is_deleted_if_nothing_is_selected(file_place: Place, archive: Path) -> None:
    with processes.running(archive_until_full, (file_place.url, archive, 350_000)) as working:
        assert await asyncio.to_thread(processes.leave, working) == [0]
    assert list(archive.parent.glob("old.archive*"))
    other = await fill(f"sqlite:///{archive.parent / 'other.db'}", file_place.clock)
    await run_sql(other.url, "UPDATE store_info SET store_id = '0123456789abcdef'")
    assert (await archived(other, archive, RetentionPolicy.of(groups=("nobody",)))).seal is None
    assert list(archive.parent.glob("old.archive*"))
    await remove_payload(file_place.url, ALL, apply=True, clock=file_place.clock)
    assert (await archived(file_place, archive)).seal is None
    assert not list(archive.parent.glob("old.archive*"))


async def test_the_size_limit_selects_the_same_payload_in_the_archive(place: Place, archive: Path) -> None:
    dialect = database(place.url, read_only=True)
    await dialect.open(create=False)
    async with dialect.read() as session:
        size = await removal_queries.size_of_bodies(session)
    await dialect.close()
    policy = RetentionPolicy.of(max_bytes=size - 1)
    counted = await remove_payload(place.url, policy, clock=place.clock)
    done = await archived(place, archive, policy)
    assert (done.rollouts, done.events, done.rollouts_left) == (1, counted.events, 0)
    assert await bodies_of(f"sqlite:///{archive}", place.active) == 0


@ON_SQLITE
async def test_a_blob_left_by_a_stopped_retention_is_removed(place: Place, archive: Path) -> None:
    """A retention that was stopped has removed bodies, but not yet their blobs."""
    policy = RetentionPolicy.of(without_labels=("good",))
    counted = await remove_payload(place.url, policy, clock=place.clock)
    dialect = database(place.url, place.clock)
    await dialect.open(create=False)
    async with dialect.read() as session, remover(dialect, "stopped", actor=None) as removing:
        await removing.remove(await removal_queries.payload_of(session, [place.run]))
    await dialect.close()
    done = await archived(place, archive)
    assert (done.rollouts, done.blobs) == (1, counted.blobs)
    await verified(place.url)
    async with await open_store(f"sqlite:///{archive}", read_only=True) as store:
        assert (await store.log.verify()).differences == []


async def test_a_damaged_store_loses_nothing(file_place: Place, archive: Path) -> None:
    await tamper(
        file_place.url,
        "UPDATE bodies SET body = X'7b7d', codec = 0 WHERE position = (SELECT min(position) FROM bodies)",
    )
    before = await payload_rows(file_place.url)
    with pytest.raises(Corrupt, match="the copy has"):
        await archived(file_place, archive)
    assert not list(archive.parent.glob("old.archive*"))
    assert await payload_rows(file_place.url) == before


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_an_archive_killed_at_any_moment_loses_nothing_and_is_continued(
    place: Place, archive: Path, rounds: Rounds
) -> None:
    payload = await _stored(place.url)
    kills, complete = 0, list[Path]()
    while kills < rounds(200, few=1):
        file = archive.with_name(f"{len(complete)}.archive")
        with processes.running(archive_in_small_steps, (place.url, file)) as (process,):
            await asyncio.to_thread(process.join, random.uniform(0.5, 1.2))
        kills += 1
        # The archives contain everything that was removed from the store.
        files = [*complete, *([file] if file.exists() else [])]
        assert (
            set[Any]().union(*[await _stored(url) for url in (place.url, *(f"sqlite:///{name}" for name in files))])
            >= payload
        )
        if process.exitcode == 0:
            complete.append(file)
            await _add_rollouts(place)
            payload = payload | await _stored(place.url)
    last = archive.with_name("last.archive")
    unfinished = archive.with_name(f"{len(complete)}.archive")
    for file in (unfinished, last):
        await archived(place, file)
    state = (await verified(place.url)).state_hash
    assert (await remove_payload(place.url, ALL, clock=place.clock)).events == 0
    reports: list[VerifyReport] = []
    for file in (*complete, unfinished):
        async with await open_store(f"sqlite:///{file}", read_only=True) as store:
            reports.append(await store.log.verify())
    assert [report.difference_count for report in reports] == [0] * len(reports)
    assert reports[-1].state_hash == state
    print(f"\n{kills} kills, {len(complete)} archives")


async def _add_rollouts(place: Place) -> None:
    async with await open_store(place.url) as store:
        for number in range(5):
            rollout = await store.start_rollout({"question": number})
            await store.add_many_spans([make_span(rollout.attempt, index + 1) for index in range(5)])
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")


async def _stored(url: str) -> set[Any]:
    """Return the positions of all bodies and the hashes of all blobs."""
    return {*await rows(url, "SELECT position FROM bodies"), *await rows(url, "SELECT hash FROM blobs")}


@ON_SQLITE
async def test_writers_lose_nothing_during_an_archive(place: Place, archive: Path) -> None:
    written: list[str] = []
    async with await open_store(place.url) as store:
        attempt = (await store.start_rollout("meanwhile")).attempt
        archiving = asyncio.create_task(archived(place, archive))
        while not archiving.done() or len(written) < 20:
            span = make_span(attempt, len(written) + 1, span_id=f"{len(written):016x}")
            await store.add_span(span)
            written.append(span.span_id)
            await asyncio.sleep(0.01)
        assert (await archiving).rollouts == 2
        assert [item.span_id for item in await store.query_spans(attempt.rollout_id, limit=-1)] == written
    await verified(place.url)


@pytest.mark.parametrize("room", [60_000, 350_000])
async def test_a_full_disk_is_reported_and_the_archive_continues_later(
    room: int, file_place: Place, archive: Path
) -> None:
    before = await payload_rows(file_place.url)
    with processes.running(archive_until_full, (file_place.url, archive, room)) as working:
        assert await asyncio.to_thread(processes.leave, working) == [0]
    assert not archive.exists()
    assert await payload_rows(file_place.url) == before
    assert (await archived(file_place, archive)).rollouts == 2
    await verified(file_place.url)


async def test_an_unfinished_archive_without_other_payload_is_written_again(
    file_place: Place, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop(*_: Any) -> None:
        raise RuntimeError("stopped")

    with monkeypatch.context() as patched:
        patched.setattr("store.operations.archive.write_seal", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            await archived(file_place, archive)
    assert (archive.parent / "old.archive.partial").exists()
    async with await opened(file_place) as store:
        await store.enqueue_rollout("meanwhile")
    assert (await archived(file_place, archive)).rollouts == 2
    async with await open_store(f"sqlite:///{archive}", read_only=True) as store:
        assert (await store.log.verify()).ok


def test_the_command_counts_moves_and_says_where_the_payload_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    path, file = tmp_path / "store.db", tmp_path / "old.archive"

    async def make() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            for number in range(3):
                await store.enqueue_rollout({"number": number, "text": "long " * 100})
                rollout = await store.dequeue_rollout()
                assert rollout is not None
                await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")

    asyncio.run(make())
    db = ["--db", f"sqlite:///{path}"]
    runner = CliRunner()
    counted = runner.invoke(app, ["archive", str(file), "--status", "succeeded", *db])
    assert counted.exit_code == 0
    assert counted.stdout.splitlines()[:2] == ["policy: status succeeded", "rollouts           3"]
    assert f"nothing was moved; --yes moves this payload to {file}" in counted.stderr
    assert not file.exists()
    moved = runner.invoke(app, ["archive", str(file), "--status", "succeeded", "--yes", "--vacuum", *db])
    assert moved.exit_code == 0, moved.output
    assert f"archive   {file}, " in moved.stdout
    assert "removing payload: 0 of " in moved.stderr
    seal = orjson.loads(next(line for line in moved.stdout.splitlines() if line.startswith("seal"))[4:])
    assert seal["archive"]["policy"] == "status succeeded"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM bodies").fetchone() == (0,)
    again = runner.invoke(app, ["archive", str(file), "--status", "succeeded", "--apply", "--json", *db])
    assert again.exit_code == 0
    assert orjson.loads(again.stdout)["events"] == 0
    nothing = runner.invoke(app, ["archive", str(tmp_path / "b"), "--status", "failed", "--apply", *db])
    assert "the policy selects no payload, so" in nothing.stderr
    unconditional = runner.invoke(app, ["archive", str(file), *db])
    assert (unconditional.exit_code, "give at least one condition" in unconditional.stderr) == (2, True)
