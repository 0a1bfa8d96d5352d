"""Verification by several processes has the findings of one, and continues when processes end."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import defaultdict
from typing import Any

import psutil
import pytest

from store.errors import Corrupt
from store.runtime.progress import OperationProgress
from store.verification import pool
from store.verification.compare import STRETCHES
from store.verification.log_scan import Bounds
from store.verification.pool import CheckRest, Compare, ProofJob, Walk
from tests.journal.database_helpers import blob, run_sql, tamper
from tests.torture import Rounds
from tests.verification.filled import ON_SQLITE, Filled
from tests.verification.forked_helpers import forked_helpers

__all__ = ["forked_helpers"]

FORKED = pytest.mark.usefixtures("forked_helpers")
"""Its processes are forked. One test starts interpreters on each database, as the product does."""


@pytest.mark.slow
async def test_a_long_log_is_proven_by_other_processes(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    here = await filled.report()
    done = _elsewhere(monkeypatch)
    seen: list[OperationProgress] = []
    there = await filled.store.log.verify(on_progress=seen.append)
    assert there.model_copy(update={"seconds": here.seconds}) == here
    assert len(done[Walk]) > 1
    assert all(done.pop(Walk))
    assert done.pop(CheckRest) == [True]
    assert done.pop(Compare) == [True] * (len(STRETCHES) + 4)
    # The progress of the other processes is reported too.
    counts = [progress.done for progress in seen if progress.step == "comparing the tables"]
    assert counts == sorted(counts)
    assert counts[-1] == there.events
    counts = [progress.done for progress in seen if progress.step == "checking the log"]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert seen[-1] == OperationProgress("checking the log", there.events, there.events)


@FORKED
@ON_SQLITE
@pytest.mark.slow
async def test_a_long_log_is_rebuilt_by_other_processes(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    here = await filled.report()
    done = _elsewhere(monkeypatch)
    rebuilt = await filled.store.log.rebuild()
    assert (rebuilt.written, rebuilt.state_hash, rebuilt.rows) == ({}, here.state_hash, here.rows)
    assert done.pop(Compare) == [True] * (len(STRETCHES) + 4)


@FORKED
@pytest.mark.slow
@ON_SQLITE
async def test_differences_from_other_processes_are_in_the_report(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await filled.report()
    await tamper(filled.url, "UPDATE events SET actor = 'somebody' WHERE position = 3")
    await run_sql(
        filled.url,
        "UPDATE spans SET name = 'renamed'",
        "UPDATE rollouts SET status = 'cancelled'",
        "INSERT INTO workers VALUES ('zz', 'idle', NULL, NULL, NULL, NULL, 1, 1, 1)",
        "DELETE FROM queue",
    )
    here = await filled.report()
    done = _elsewhere(monkeypatch)
    there = await filled.report()
    assert there.model_copy(update={"seconds": here.seconds}) == here
    assert False in done[Walk]
    assert False in done[Compare]
    rebuilt = await filled.store.log.rebuild()
    assert rebuilt.written == {"rollouts": 5, "spans": 4, "workers": 1, "queue": 3}
    assert rebuilt.state_hash == before.state_hash


@FORKED
@pytest.mark.slow
@ON_SQLITE
@pytest.mark.parametrize("damage", ["body", "blob"])
async def test_payload_without_an_event_is_reported_beside_other_processes(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    value = blob(b"{}", filled.url)
    statements = {
        "body": f"INSERT INTO bodies VALUES (20000, 0, 2, {value})",
        "blob": f"INSERT INTO blobs VALUES ('{hashlib.sha256(b'{}').hexdigest()}', 0, 2, {value})",
    }
    await tamper(filled.url, statements[damage])
    here = await filled.report()
    assert here.difference_count == 1
    done = _elsewhere(monkeypatch)
    there = await filled.report()
    assert there.model_copy(update={"seconds": here.seconds}) == here
    assert all(done[Walk])
    # Of the two, the job for the rest of the log finds only the blob.
    assert done[CheckRest] == [damage == "body"]


@FORKED
@pytest.mark.slow
@ON_SQLITE
async def test_an_event_that_does_not_follow_stops_a_rebuild_by_several_processes(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = f"rollout/{filled.first.rollout_id}"
    await tamper(filled.url, f"UPDATE events SET type = 'rollout.enqueued' WHERE stream = '{stream}' AND version = 3")
    _elsewhere(monkeypatch)
    with pytest.raises(Corrupt, match=stream):
        await filled.store.log.rebuild()


def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> dict[type[Any], list[bool]]:
    """Have every proof done by two processes; return for each kind of job whether they had an answer."""
    done: dict[type[Any], list[bool]] = defaultdict(list)

    class Watched(pool.Team):
        def begin(self, job: ProofJob[Any]) -> asyncio.Task[Any]:
            task = super().begin(job)
            # An error of another job cancels this one.
            task.add_done_callback(
                lambda task: None if task.cancelled() else done[type(job)].append(task.result() is not None)
            )
            return task

    monkeypatch.setattr(pool, "Team", Watched)
    monkeypatch.setattr(pool, "WORTHWHILE", 0)
    return done


@pytest.mark.parametrize("executable", ["/bin/false", "/bin/cat", "/does/not/exist"])
@ON_SQLITE
async def test_without_another_process_the_proof_is_made_here(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    here = await filled.report()
    monkeypatch.setattr(pool, "WORTHWHILE", 0)
    monkeypatch.setattr(pool.sys, "executable", executable)
    assert (await filled.report()).model_copy(update={"seconds": here.seconds}) == here
    await tamper(filled.url, "UPDATE events SET actor = 'somebody' WHERE position = 3")
    assert (await filled.only("chain")).field == "chain_hash"


@FORKED
@pytest.mark.parametrize("survivors", [0, 1])
@pytest.mark.slow
@ON_SQLITE
async def test_work_of_a_killed_process_is_done_by_the_parent(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    here = await filled.report()
    started: list[Any] = []
    start, sees = pool.start, pool.Team.sees

    def noted() -> Any:
        started.append(start())
        return started[-1]

    async def seen(team: pool.Team, state: Bounds) -> bool:
        agreed = await sees(team, state)
        for process in started[survivors:]:
            process.kill()
        return agreed

    done = _elsewhere(monkeypatch)
    monkeypatch.setattr(pool, "start", noted)
    monkeypatch.setattr(pool.Team, "sees", seen)
    there = await filled.report()
    assert there.model_copy(update={"seconds": here.seconds}) == here
    assert len(started) > 1
    assert (True in done[Compare]) == bool(survivors)
    assert False in [*done[Compare], *done[Walk]]


@FORKED
@pytest.mark.slow
@ON_SQLITE
async def test_processes_end_when_a_proof_is_given_up(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start, sees = pool.start, pool.Team.sees
    given_up = threading.Event()

    def noted() -> Any:
        started.append(start())
        return started[-1]

    async def never_seen(team: pool.Team, state: Bounds) -> bool:
        await sees(team, state)
        given_up.set()
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(pool, "WORTHWHILE", 0)
    monkeypatch.setattr(pool, "start", noted)
    monkeypatch.setattr(pool.Team, "sees", never_seen)
    verifying = asyncio.create_task(filled.store.log.verify())
    await asyncio.to_thread(given_up.wait)
    processes = [psutil.Process(process.pid) for process in started]
    verifying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await verifying
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 30)
    assert len(processes) > 1
    assert not alive
    monkeypatch.undo()
    assert (await filled.report()).ok


@FORKED
@pytest.mark.slow
@pytest.mark.torture
async def test_several_processes_see_one_state_while_others_write(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, rounds: Rounds
) -> None:
    done = _elsewhere(monkeypatch)
    # On a loaded machine, the processes need many attempts until their snapshots have the same state.
    monkeypatch.setattr(pool, "_TRIES", 1_000_000)
    ended = asyncio.Event()

    async def write() -> None:
        while not ended.is_set():
            await filled.store.enqueue_rollout({"more": True})
            # With this pause, the processes sooner get a snapshot with the same state.
            await asyncio.sleep(0.005)

    writing = asyncio.create_task(write())
    for _ in range(rounds(10)):
        report = await filled.report()
        assert report.ok
        assert report.events == report.last_position
        assert report.rows["rollouts"] == report.streams - 4
    ended.set()
    await writing
    assert done[Walk]
