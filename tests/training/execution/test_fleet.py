"""The number of runners that follow a queue, and fleets of processes on one machine."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from store import open_store
from store.errors import Invalid
from store.interface.store import Store
from store.models import RolloutConfig
from store.training.bundle import RunnerBundle
from store.training.execution import ClientServerExecutionStrategy, RunnersGone
from store.training.execution.fleet import Fleet, run_beside
from store.training.execution.fleet_size import FleetLimits, FleetSize
from store.training.execution.parts import End, Part
from store.training.execution.processes import ProcessFailed
from store.training.execution.supervisor import Supervisor
from store.training.running.runner import Runner
from tests.conftest import SQLITE
from tests.training.execution.drained import Notes
from tests.training.execution.noted_work import work
from tests.training.execution.programs import running
from tests.training.stores import POSTGRES_IN_TORTURE
from tests.training.training_helpers import until


def test_fleet_grows_at_once_within_its_limits() -> None:
    size = FleetSize(FleetLimits(2, 10, 4))
    assert [size.measure(rollouts) for rollouts in (0, 8, 9, 17, 400)] == [2, 2, 3, 5, 10]


def test_fleet_shrinks_after_a_while_by_a_tenth_per_measurement() -> None:
    size = FleetSize(FleetLimits(0, 100))
    size.measure(50)
    assert {size.measure(20) for _ in range(29)} == {50}
    assert [size.measure(20) for _ in range(4)] == [45, 41, 37, 34]
    sizes = [size.measure(20) for _ in range(20)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 20
    assert [size.measure(0) for _ in range(60)][-1] == 0, "by one if a tenth is less"


def test_fleet_keeps_its_size_through_pauses_between_batches() -> None:
    size = FleetSize(FleetLimits(1, 64))
    assert {size.measure(64 if number % 25 == 0 else 0) for number in range(500)} == {64}


@pytest.mark.parametrize("limits", [(-1, 4, 1), (0, 0, 1), (5, 4, 1), (1, 4, 0)])
def test_limits_that_contradict_each_other_are_refused(limits: tuple[int, int, int]) -> None:
    with pytest.raises(Invalid):
        FleetLimits(*limits)


class HeldPart(Part):
    """Part that ends when a test lets it end, or when it is interrupted."""

    def __init__(self, number: int, parts: list[HeldPart]) -> None:
        super().__init__(f"runner {number}")
        self.calls: list[str] = []
        parts.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def drain(self) -> None:
        self.calls.append("drain")

    def interrupt(self) -> None:
        self.calls.append("interrupt")
        self.end(End(was_interrupted=True))

    def kill(self) -> None:
        self.calls.append("kill")

    def end(self, end: End) -> None:
        self._end(end)


class Watched:
    """An elastic supervisor of parts that a test ends."""

    def __init__(self, store: Store, count: int, replacements: int = 3, grace: float = 0.01) -> None:
        self.parts: list[HeldPart] = []
        self.drain = asyncio.Event()

        def create(number: int) -> Part:
            return HeldPart(number, self.parts)

        self.supervisor = Supervisor(
            None,
            [create(number) for number in range(count)],
            store,
            graceful_timeout=grace,
            terminate_timeout=1,
            create=create,
            replacements=replacements,
            drain=self.drain,
            is_elastic=True,
        )
        self.running = asyncio.create_task(self.supervisor.run())


LOST = End(ProcessFailed("it was killed"), was_killed=True)


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_retired_runner_is_never_interrupted_and_its_number_is_free_after_its_end(memory: Store) -> None:
    watched = Watched(memory, 2)
    await _turns()
    watched.supervisor.retire(0)
    assert watched.supervisor.add_runner().name == "runner 2"
    await asyncio.sleep(0.05)
    assert watched.parts[0].calls == ["start", "drain"]
    watched.parts[0].end(End())
    await _turns()
    assert watched.supervisor.add_runner().name == "runner 0"
    watched.drain.set()
    await watched.running
    assert [part.calls for part in watched.parts[1:]] == [["start", "drain", "interrupt"]] * 3
    assert watched.supervisor.report.crashed == []


async def test_runner_on_a_node_with_a_deadline_is_replaced_at_once_and_interrupted_in_time(memory: Store) -> None:
    watched = Watched(memory, 1)
    await _turns()
    watched.supervisor.move(0, 0.05, "its node is about to be shut down")
    assert watched.parts[1].calls == ["start"]
    await _turns()
    assert watched.parts[0].calls == ["start", "drain"]
    await asyncio.sleep(0.1)
    assert watched.parts[0].calls == ["start", "drain", "interrupt"]
    watched.running.cancel()
    await asyncio.wait({watched.running})
    assert (watched.supervisor.report.moved, watched.supervisor.report.replaced) == (1, 0)


async def test_fleet_that_ends_starts_no_runner_and_keeps_the_deadlines_of_nodes(memory: Store) -> None:
    watched = Watched(memory, 2, grace=20)
    await _turns()
    watched.supervisor.retire(0, 0.05)
    watched.drain.set()
    await _turns()
    assert not watched.supervisor.can_start_more
    watched.supervisor.move(1, None, "its node is about to be shut down")
    await asyncio.sleep(0.1)
    assert [part.calls[-1] for part in watched.parts] == ["interrupt", "drain"]
    watched.parts[1].end(End())
    await watched.running
    assert watched.supervisor.report.moved == 0


async def test_fleet_replaces_lost_runners_until_too_many_are_lost(memory: Store) -> None:
    watched = Watched(memory, 1, replacements=2)
    for _ in range(3):
        await _turns()
        watched.parts[-1].end(LOST)
    with pytest.raises(RunnersGone, match="it was killed"):
        await watched.running
    assert len(watched.parts) == 3


async def test_fleet_without_runners_goes_on_and_an_error_of_its_watch_ends_it(memory: Store) -> None:
    watched = Watched(memory, 1)
    await _turns()
    watched.parts[0].end(End())

    async def refuse() -> None:
        await asyncio.sleep(0.02)
        raise Invalid("key", "revoked")

    with pytest.raises(Invalid, match="revoked"):
        await run_beside(watched.supervisor.run(), refuse())  # pyright: ignore[reportArgumentType] - it never returns
    assert not watched.running.done()
    watched.drain.set()
    await watched.running


def main(url: str) -> None:
    """Run up to two processes that follow the queue quickly, until SIGTERM."""
    runner = {"type": Runner, "heartbeat_interval": 20.0, "poll_interval": 2.0}
    fleet = Fleet(FleetLimits(0, 2), announce=partial(print, flush=True), look_seconds=0.03)
    ClientServerExecutionStrategy("runner").run_runners(RunnerBundle(work, runner), url, fleet)


@pytest.mark.slow
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_processes_follow_the_queue_and_end_their_work(durable_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with await open_store(durable_url) as store:
        with running(main, durable_url, log=log) as program:

            async def has_processes(count: int) -> bool:
                return [*map(_is_runner, program.children())].count(True) == count

            short, long = (
                {"place": str(tmp_path), "seconds": 0.1},
                {"place": str(tmp_path), "seconds": 0, "file": "end"},
            )
            rollouts = [await store.enqueue_rollout(task, config=ONCE) for task in (long, *[short] * 5)]
            await until(partial(has_processes, 2))
            await until(partial(has_processes, 1))
            assert (await store.query_rollouts(status_in=["running"], limit=0)).total == 1, "the other one was idle"
            (tmp_path / "end").touch()
            await until(partial(has_processes, 0))
            program.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(program.exit_code, 30) == 143
        assert {rollout.status for rollout in await store.query_rollouts()} == {"succeeded"}
        assert Counter(Notes(str(tmp_path)).read("ends")) == Counter(rollout.rollout_id for rollout in rollouts)
    lines = log.read_text().splitlines()
    assert [line.partition(",")[0] for line in lines][-2:] == ["runners: 2 → 1", "runners: 1 → 0"]


ONCE = RolloutConfig(max_attempts=1)


def _is_runner(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any("spawn_main" in argument for argument in process.cmdline())
    return False
