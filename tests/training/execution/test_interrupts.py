"""Ctrl+C, SIGTERM and SIGKILL of a training: the exit status tells them apart, and no process remains."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from store import open_store
from store.interface.store import Store
from tests.training.execution.interrupted import main
from tests.training.execution.programs import Program, running
from tests.training.training_helpers import until

pytestmark = [pytest.mark.slow]


def training(kind: str, url: str, directory: Path) -> AbstractContextManager[Program]:
    """Run the program; whatever happens, none of its processes is left."""
    return running(main, kind, url, log=directory / "log")


async def both_at_work(store: Store) -> bool:
    """Whether both runners have a rollout, and know of it: a claim that nobody took is given back at the end."""
    return (await store.query_rollouts(status_in=["running"])).total == 2


# The strategies end their parts in different ways, however they are asked to.
@pytest.mark.parametrize(
    "kind, told, code",
    [
        ("cs", "SIGINT", 130),
        ("shm", "SIGTERM", 143),
        pytest.param("shm", "SIGINT", 130, marks=pytest.mark.torture_only),
        pytest.param("cs", "SIGTERM", 143, marks=pytest.mark.torture_only),
    ],
)
async def test_ctrl_c_and_sigterm_end_both_sides_and_leave_nothing_at_work(
    kind: str, told: str, code: int, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/run.db"
    async with await open_store(url) as store:
        with training(kind, url, tmp_path) as process:
            await until(lambda: both_at_work(store))
            children = process.children(recursive=True)
            process.send_signal(signal.Signals[told])
            assert process.exit_code() == code
            psutil.wait_procs(children)
        attempts = [(await store.query_attempts(rollout.rollout_id))[0] for rollout in await store.query_rollouts()]
        assert [(attempt.status, (attempt.metadata or {}).get("reason")) for attempt in attempts] == 2 * [
            ("failed", "interrupted")
        ]


async def test_runners_leave_when_the_algorithm_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/run.db"
    async with await open_store(url) as store:
        with training("cs", url, tmp_path) as process:
            await until(lambda: both_at_work(store))
            children = process.children(recursive=True)
            for rollout in await store.query_rollouts():
                await store.update_rollout(rollout.rollout_id, status="cancelled")
            process.kill()
            psutil.wait_procs(children)
