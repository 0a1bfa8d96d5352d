"""A copy is equal to its source. A copy that fails leaves no store at the target."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.db.schema import history, sqlite_copies
from store.db.schema import postgres as postgres_schema
from store.db.schema.partitions import names
from store.db.schema.sqlite_copies import unfinished as unfinished_name
from store.db.tables import core as core_tables
from store.db.url import parse, with_partition
from store.errors import AlreadyExists, Corrupt, Incompatible, Invalid, NotFound, StoreError, Unavailable
from store.operations import (
    OperationProgress,
    Redaction,
    RetentionPolicy,
    beside_log,
    copy_store,
    log_source,
    redact,
    remove_payload,
)
from store.operations.beside_log import TREATMENTS
from store.operations.copying import database
from store.testing import ManualClock
from tests import postgres
from tests.conftest import POSTGRES, SQLITE
from tests.journal.database_helpers import ask, run_sql, tamper
from tests.operations import payloads
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import assert_equal, content, drop, keyed, verified

pytestmark = pytest.mark.slow

Chunks = Callable[[int], None]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Chunks:
    """A function that sets the most events of a chunk."""
    return lambda events: monkeypatch.setattr(log_source, "EVENTS_AT_ONCE", events)


@pytest.mark.parametrize("to", [SQLITE, POSTGRES])
async def test_a_copy_is_the_same_store(source: str, to: str, make_url: MakeURL, chunks: Chunks) -> None:
    target = make_url(to)
    chunks(10)
    seen: list[OperationProgress] = []
    report = await copy_store(source, target, on_progress=seen.append)
    proof = await assert_equal(source, target)
    assert (report.chain_head, report.state_hash) == (proof.chain_head, proof.state_hash)
    assert (report.store_id, report.position) == (proof.store_id, proof.last_position)
    assert (report.events, report.events_before, report.is_verified) == (proof.events, 0, True)
    # Each chunk is small, and nothing is left of the place in which the copy was made.
    done = [progress.done for progress in seen if progress.step == "copying the log"]
    assert done[0] == 0
    assert done[-1] == report.events
    assert len(done) > report.events // 30
    for step in ("computing the tables", "comparing the tables", "checking the log"):
        assert [progress.done for progress in seen if progress.step == step][-1] == report.events
    await _assert_no_unfinished_files(target)


async def test_a_copy_goes_on_where_the_source_was(make_url: MakeURL, full: str) -> None:
    for kind in ("sqlite", "postgres"):
        target = make_url(kind)
        report = await copy_store(full, target)
        async with await open_store(full) as source, await open_store(target, create=False) as store:
            assert await keyed(store) == await keyed(source)
            assert await source.get_next_span_sequence_id("a rollout that does not exist", "x") == 2
            assert await store.get_next_span_sequence_id("a rollout that does not exist", "x") == 2
            assert (await ask(target, "SELECT max(position) FROM events")) == [[str(report.position)]]
            await store.enqueue_rollout("next")
        rows = await ask(target, "SELECT max(position), max(commit_id) FROM events")
        assert rows == [[str(report.position + 1), str(report.commit_id + 1)]]
        await verified(target)
        await run_sql(full, "DELETE FROM span_counters WHERE rollout_id = 'a rollout that does not exist'")
        await run_sql(full, "INSERT INTO span_counters VALUES ('a rollout that does not exist', 1, NULL)")


@pytest.mark.torture_only
async def test_there_and_back_is_the_same(make_url: MakeURL, full: str) -> None:
    there, back = make_url("postgres"), make_url("sqlite")
    await copy_store(full, there)
    await copy_store(there, back)
    await assert_equal(full, back)


async def test_removed_payload_is_removed_in_the_copy(make_url: MakeURL, chunks: Chunks, clock: ManualClock) -> None:
    source, target = make_url("sqlite"), make_url("postgres")
    place = await payloads.fill(source, clock)
    await remove_payload(source, RetentionPolicy.of(statuses=["succeeded"]), apply=True)
    await redact(source, place.active, Redaction.of(everything=True, reason="request 17"))
    chunks(10)
    await copy_store(source, target)
    await assert_equal(source, target)
    assert await payloads.payload_rows(target) == await payloads.payload_rows(source)
    assert (await payloads.payload_rows(source))["dropped"] > 5


async def test_gaps_of_postgres_are_no_differences_on_sqlite(make_url: MakeURL, full_postgres: str) -> None:
    target, again = make_url("sqlite"), make_url("sqlite")
    await copy_store(full_postgres, target)
    ((last, count),) = await ask(target, "SELECT max(position), count(*) FROM events")
    assert int(last) > int(count)
    # So it is in a copy of the copy, and after more writes.
    await copy_store(target, again)
    async with await open_store(again) as store:
        await store.enqueue_rollout("more")
    await verified(again)


async def test_an_empty_store_can_be_copied(make_url: MakeURL) -> None:
    source, target = make_url("sqlite"), make_url("postgres")
    await (await open_store(source)).close()
    report = await copy_store(source, target)
    assert (report.commit_id, report.position, report.events) == (0, 0, 0)
    assert report.state_hash == (await verified(target)).state_hash


async def test_a_copy_without_verification_says_so(make_url: MakeURL, full: str) -> None:
    target = make_url("sqlite")
    report = await copy_store(full, target, verify=False)
    assert not report.is_verified
    await assert_equal(full, target)


def test_every_table_beside_the_log_is_treated() -> None:
    computed = {*core_tables.LOG, *core_tables.PROJECTIONS}
    assert TREATMENTS.keys() == set(core_tables.metadata.tables.values()) - computed


@pytest.mark.parametrize("partition,expected", [("default", 1), ("other", 0)])
async def test_keys_are_copied_between_default_partitions_only(
    partition: str, expected: int, full: str, tmp_path: Path
) -> None:
    await run_sql(
        full,
        "INSERT INTO keys (key_id, hash, role, created_at) VALUES ('k', X'11', 'admin', 1)",
        "INSERT INTO key_policy VALUES (1, 1)",
    )
    target = with_partition(f"sqlite:///{tmp_path / 'copy.db'}", partition)
    await copy_store(full, target)
    copied = await content(target, core_tables.keys, core_tables.key_policy)
    assert {name: len(rows) for name, rows in copied.items()} == {"keys": expected, "key_policy": expected}


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_a_store_is_copied_while_others_write(kind: str, make_url: MakeURL, chunks: Chunks) -> None:
    source, target = make_url(kind), make_url("sqlite")
    chunks(20)
    async with await open_store(source) as store:
        before = [(await store.enqueue_rollout(number)).rollout_id for number in range(60)]

        async def write() -> None:
            while True:
                await store.get_next_span_sequence_id(before[0], "x")
                claimed = await store.dequeue_rollout("w")
                assert claimed is not None
                await store.enqueue_rollout("more")

        writing = asyncio.create_task(write())
        await asyncio.sleep(0)
        report = await copy_store(source, target)
        assert not writing.done()
        writing.cancel()
        await asyncio.wait([writing])
        assert (await store.query_rollouts(limit=0)).total > len(before)
    await verified(target)
    async with await open_store(target, read_only=True) as copy:
        there = {rollout.rollout_id for rollout in (await copy.query_rollouts()).items}
    assert there.issuperset(before)
    (chain,) = await ask(
        source, f"SELECT {_hex('chain_hash', source)} FROM commits WHERE commit_id = {report.commit_id}"
    )
    assert chain == [report.chain_head]


def _hex(column: str, url: str) -> str:
    return f"lower(hex({column}))" if parse(url).scheme == "sqlite" else f"encode({column}, 'hex')"


@pytest.mark.parametrize("when", ["before it is copied", "after it was copied"])
async def test_a_body_that_is_dropped_meanwhile_is_dropped_in_the_copy(
    when: str, make_url: MakeURL, full: str, chunks: Chunks
) -> None:
    chunks(10)
    target = make_url("sqlite")
    position = int((await ask(full, "SELECT min(position) FROM bodies"))[0][0])
    dropped: list[int] = []

    def on_progress(progress: OperationProgress) -> None:
        is_copied = progress.done >= position
        if not dropped and progress.step == "copying the log" and is_copied == (when == "after it was copied"):
            dropped.append(1)
            _elsewhere(drop(full, position))

    report = await copy_store(full, target, on_progress=on_progress)
    assert dropped
    await verified(target)
    if when == "before it is copied":
        # The event that ordered it was not there when the copy began.
        await assert_equal(full, target)
        return
    assert report.events == (await verified(full)).events - 1
    # Another copy, which continues this one, drops what was copied.
    path = _path(target)
    path.rename(unfinished_name(path))
    await copy_store(full, target)
    await assert_equal(full, target)


def _elsewhere(work: Any) -> None:
    thread = threading.Thread(target=asyncio.run, args=(work,))
    thread.start()
    thread.join()


class Stop(Exception):
    """Stops a copy."""


def stop_at(step: str, done: int = 0) -> Callable[[OperationProgress], None]:
    has_stopped = False

    def on_progress(progress: OperationProgress) -> None:
        nonlocal has_stopped
        assert not has_stopped, "the copy went on"
        if progress.step == step and progress.done >= done:
            has_stopped = True
            raise Stop

    return on_progress


UNFINISHED_ON_SQLITE = pytest.mark.parametrize("unfinished", ["sqlite"], indirect=True)


@pytest.fixture(params=[SQLITE, POSTGRES])
async def unfinished(request: pytest.FixtureRequest, make_url: MakeURL, full: str, chunks: Chunks) -> str:
    """The URL of the target of a copy that was stopped."""
    chunks(10)
    target = make_url(request.param)
    with pytest.raises(Stop):
        await copy_store(full, target, on_progress=stop_at("copying the log", 30))
    return target


async def test_a_copy_that_was_stopped_is_continued(unfinished: str, full: str) -> None:
    for stop in (stop_at("copying the log", 50), stop_at("computing the tables"), stop_at("checking the log")):
        with pytest.raises(Stop):
            await copy_store(full, unfinished, on_progress=stop)
        async with await open_store(full) as store:
            await store.enqueue_rollout("meanwhile")
            await store.get_next_span_sequence_id("a rollout that does not exist", "x")
    report = await copy_store(full, unfinished)
    assert report.events_before >= 50
    await assert_equal(full, unfinished)
    await _assert_no_unfinished_files(unfinished)


async def test_an_unfinished_copy_is_no_store(unfinished: str) -> None:
    with pytest.raises(NotFound):
        await open_store(unfinished, create=False)
    path = parse(unfinished).path
    if path is None:
        assert parse(unfinished).partition not in await names(unfinished)
    else:
        with pytest.raises(Incompatible, match=r"is an unfinished copy of a store; finish it: repeat the command"):
            await open_store(f"sqlite:///{path}.partial")


@UNFINISHED_ON_SQLITE
async def test_an_unfinished_copy_of_another_store_is_refused(unfinished: str, make_url: MakeURL, full: str) -> None:
    other = make_url("sqlite")
    await (await open_store(other)).close()
    with pytest.raises(Incompatible, match=r"is an unfinished copy of the store [0-9a-f]{16}, not of [0-9a-f]{16}; "):
        await copy_store(other, unfinished)
    await copy_store(full, unfinished)
    await assert_equal(full, unfinished)


@UNFINISHED_ON_SQLITE
async def test_an_unfinished_copy_of_another_log_is_refused(unfinished: str, full: str, chunks: Chunks) -> None:
    chain_hash = await ask(full, "SELECT hex(chain_hash) FROM commits WHERE commit_id = 3")
    path = parse(full).path
    assert path is not None
    before = path.read_bytes()
    await tamper(full, "UPDATE commits SET chain_hash = X'11'")
    with pytest.raises(Incompatible, match=r"the source does not contain commit \d+ of the unfinished copy"):
        await copy_store(full, unfinished)
    path.write_bytes(before)
    assert await ask(full, "SELECT hex(chain_hash) FROM commits WHERE commit_id = 3") == chain_hash
    report = await copy_store(full, unfinished)
    assert report.events_before >= 30


async def _assert_no_unfinished_files(url: str) -> None:
    path = parse(url).path
    if path is None:
        schema = f"partial_rollbook_{parse(url).partition}"
        assert postgres.execute(url, f"SELECT nspname FROM pg_namespace WHERE nspname = '{schema}'") == ""
    else:
        assert list(path.parent.glob(f"{path.name}.partial*")) == []


def _path(url: str) -> Path:
    path = parse(url).path
    assert path is not None
    return path


def is_there(url: str) -> bool:
    return _path(url).exists()


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_of_two_copies_at_once_one_is_made(kind: str, make_url: MakeURL, full: str, chunks: Chunks) -> None:
    chunks(10)
    target = make_url(kind)
    ended = await asyncio.gather(*(copy_store(full, target) for _ in range(2)), return_exceptions=True)
    errors = [result for result in ended if isinstance(result, BaseException)]
    assert all(isinstance(error, StoreError) for error in errors), errors
    assert len(errors) < 2, errors
    await assert_equal(full, target)


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_second_copy_leaves_the_tables_of_the_first_unchanged(
    kind: str, make_url: MakeURL, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second copy stops after it has emptied a table of the same unfinished copy, if it gets that far.
    target = make_url(kind)
    monkeypatch.setattr(sqlite_copies, "_COPY_LOCK_SECONDS", 0)
    monkeypatch.setattr(postgres_schema, "_COPY_LOCK_SECONDS", 0)
    all_rows, errors = beside_log.scan.all_rows, list[BaseException]()

    def stop(*_: Any) -> Any:
        raise Stop

    async def copy_again() -> None:
        try:
            await copy_store(full, target)
        except (Stop, StoreError) as error:
            errors.append(error)

    def on_progress(progress: OperationProgress) -> None:
        if progress.step == "copying the log" and not errors:
            monkeypatch.setattr(beside_log.scan, "all_rows", stop)
            _elsewhere(copy_again())
            monkeypatch.setattr(beside_log.scan, "all_rows", all_rows)

    await copy_store(full, target, on_progress=on_progress)
    await assert_equal(full, target)
    (error,) = errors
    assert isinstance(error, Unavailable)
    assert "another process makes the copy" in str(error)


async def test_copy_is_not_published_after_its_lock_was_lost(make_url: MakeURL, full: str) -> None:
    target = make_url("postgres")
    locks = "state = 'idle' AND query = 'SELECT pg_try_advisory_lock($1)'"
    ended: list[str] = []

    def on_progress(progress: OperationProgress) -> None:
        if progress.step == "checking the log" and progress.total is None and not ended:
            ended.append(
                postgres.execute(target, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {locks}")
            )

    with pytest.raises(Unavailable, match="cannot"):
        await copy_store(full, target, on_progress=on_progress)
    assert ended == ["t"]
    await copy_store(full, target)
    await assert_equal(full, target)


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_the_processes_that_verify_can_open_an_unfinished_copy(kind: str, make_url: MakeURL, full: str) -> None:
    target = make_url(kind)
    opened: list[str] = []

    async def open_it() -> None:
        # A process that helps to verify gets the name of the class and the URL.
        place = type(database(target).unfinished())(parse(target), None, read_only=True)
        opened.append(await place.open(create=False))
        await place.close()

    def on_progress(progress: OperationProgress) -> None:
        if progress.step == "checking the log" and progress.total is None:
            _elsewhere(open_it())

    report = await copy_store(full, target, on_progress=on_progress)
    assert opened == [report.store_id]


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_an_existing_target_is_refused_and_unchanged(kind: str, make_url: MakeURL, full: str) -> None:
    target = make_url(kind)
    async with await open_store(target) as store:
        await store.enqueue_rollout("mine")
    before = await verified(target)
    with pytest.raises(AlreadyExists, match=r"already exists; a copy never overwrites anything"):
        await copy_store(full, target)
    assert (await verified(target)).chain_head == before.chain_head
    await _assert_no_unfinished_files(target)


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_a_target_that_appears_meanwhile_is_kept(kind: str, make_url: MakeURL, full: str) -> None:
    target = make_url(kind)

    def on_progress(progress: OperationProgress) -> None:
        if progress.step == "checking the log" and progress.total is None:
            _elsewhere(_create(target))

    with pytest.raises(AlreadyExists):
        await copy_store(full, target, on_progress=on_progress)
    assert (await verified(target)).events == 0


async def _create(url: str) -> None:
    await (await open_store(url)).close()


async def test_invalid_sources_and_targets_of_a_copy_are_refused(make_url: MakeURL, full: str, tmp_path: Path) -> None:
    target = make_url("sqlite")
    with pytest.raises(NotFound, match="there is no store at"):
        await copy_store(make_url("sqlite"), target)
    with pytest.raises(NotFound, match="there is no store at"):
        await copy_store(make_url("postgres"), target)
    with pytest.raises(NotFound, match=r"the directory .* does not exist"):
        await copy_store(full, f"sqlite:///{tmp_path / 'none' / 'copy.db'}")
    with pytest.raises(Invalid, match="is the source itself"):
        await copy_store(full, full)
    for url in ("memory://", "http://localhost:4747"):
        with pytest.raises(Invalid, match="give the URL of a SQLite file or a Postgres database"):
            await copy_store(url, target)
        with pytest.raises(Invalid, match="give the URL of a SQLite file or a Postgres database"):
            await copy_store(full, url)
    assert not is_there(target)


@pytest.mark.parametrize(
    "change,message",
    [
        ("UPDATE alembic_version SET version_num = '0001'", "run: rollbook migrate --db"),
        (f"UPDATE store_info SET log_format = {history.LOG_FORMAT + 1}", "upgrade Rollbook"),
    ],
)
async def test_a_source_of_another_version_is_refused(change: str, message: str, make_url: MakeURL, full: str) -> None:
    await run_sql(full, change)
    target = make_url("sqlite")
    with pytest.raises(Incompatible, match=message):
        await copy_store(full, target)
    await _assert_no_unfinished_files(target)


async def test_a_damaged_source_is_not_copied(make_url: MakeURL, full: str) -> None:
    await tamper(full, "UPDATE events SET at = at + 1 WHERE position = 5")
    target = make_url("sqlite")
    with pytest.raises(Corrupt, match=r"the copy has \d+ differences, the first in chain, "):
        await copy_store(full, target)
    with pytest.raises(NotFound):
        await open_store(target, create=False)
    await _assert_no_unfinished_files(target)
