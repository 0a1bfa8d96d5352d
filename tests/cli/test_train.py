"""`rollbook train` and `rollbook runner` with modules in the working directory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from store import open_store
from store.models import PromptTemplate
from store.testing import ManualClock
from tests.cli.conftest import COMMAND, Printed, environment, runner
from tests.postgres import free_port
from tests.server.fleet import ForkedCommand
from tests.server.keyed import keyed_server
from tests.server.test_metrics import families, table
from tests.server.test_monitoring import promtool

HANG = 250
"""Seconds after which a test fails instead of waiting for a program. It is far more than a loaded machine needs."""

MODULE = """
import asyncio

from store import PromptTemplate
from store.training import Baseline, Trainer, rollout


@rollout
def echo(task, prompt_template):
    return float(task)


@rollout
def lost(task, prompt_template):
    raise LookupError("the key is gone")


@rollout
def choosy(task):
    return 1 / task


resources = {"prompt": PromptTemplate(template="x", engine="f-string")}
trainer = Trainer(algorithm=Baseline(), strategy="shm", initial_resources=resources)
own = Trainer(algorithm=Baseline(), strategy="shm", initial_resources=resources, store="sqlite:///own.db")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a module and tasks."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "tasks.jsonl").write_text("1\n\n3\n")
    (tmp_path / "val.jsonl").write_text("5\n")
    (tmp_path / "broken.jsonl").write_text("1\n{\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "many.jsonl").write_text("1\n" * 50)
    return tmp_path


def rollbook(place: Path, *arguments: str, **variables: str) -> tuple[int | None, str, str]:
    """Run the command in that directory, in a process of its own; return its exit code, output and errors."""
    variables = environment("sqlite:///unused.db") | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    command = ForkedCommand(*arguments, environment=variables, directory=place, leads=True)
    try:
        output, errors = command.communicate(HANG)
        return command.returncode, output, errors
    finally:
        command.end()


class Inside(Protocol):
    """A function that runs the command in this process; `variable` is ROLLBOOK_DB."""

    def __call__(self, *arguments: str, variable: str = "sqlite:///unused.db") -> Printed: ...


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """The command in this process, in that directory."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path[:])

    def run(*arguments: str, variable: str = "sqlite:///unused.db") -> Printed:
        return runner(variable, monkeypatch)(*arguments)

    yield run
    # The module of the next test has the same name.
    sys.modules.pop("mine", None)


@pytest.mark.slow
def test_a_trainer_of_a_module_is_run_and_its_report_printed(place: Path) -> None:
    code, output, errors = rollbook(
        place,
        *("train", "mine:trainer", "--agent", "mine:echo", "--db", "sqlite:///run.db", "--runners", "2"),
        *("--train", "tasks.jsonl", "--val", "val.jsonl", "--seed", "1"),
    )
    assert code == 0, errors
    rows = [line.split() for line in output.splitlines()[1:3]]
    assert [(row[0], row[-2], row[-1]) for row in rows] == [("train", "2", "2.0000"), ("val", "1", "5.0000")]
    assert (place / "run.db").exists()


@pytest.mark.slow
def test_a_training_that_fails_says_why_in_one_message(inside: Inside) -> None:
    done = inside("train", "mine:trainer", "--agent", "mine:lost", "--train", "many.jsonl")
    assert done.code == 1
    assert "rollbook: the first 10 attempts all failed, 10 of them with LookupError: the key is gone" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, said",
    [
        (("train", "mine:trainer"), "--agent: choose one: the agents of mine are choosy, echo, lost"),
        (("train", "mine"), "MODULE:TRAINER: 'mine' is not of the form package.module:NAME"),
        (("train", "yours:trainer"), "MODULE:TRAINER: 'yours' cannot be imported from"),
        (("train", "mine:nobody"), "MODULE:TRAINER: 'mine:nobody' is missing"),
        (("train", "mine:echo"), "MODULE:TRAINER: 'mine:echo' is not a Trainer"),
        (("runner", "mine:trainer", "--store", "sqlite:///x.db"), "MODULE:AGENT: 'mine:trainer' is not a LitAgent"),
        (
            ("runner", "mine:echo", "--store", "sqlite:///x.db", "--fallback", "x"),
            "--fallback: it is only for runs of a pipeline",
        ),
        (("runner", "mine:choosy", "--min", "2"), "--max: --min and --per-runner need --max N"),
        (("runner", "mine:choosy", "-n", "2", "--max", "4"), "--runners: give either a fixed number of processes, or"),
        (("runner", "mine:choosy", "--min", "5", "--max", "4"), "--min: 5 is above --max 4"),
        (("runner", "mine:choosy", "--ray", "auto"), "--db: the nodes of a cluster cannot open sqlite:///unused.db"),
        (("runner", "mine:choosy", "--ray-options", "{}"), "--ray-options: they need --ray ADDRESS"),
        (
            ("runner", "mine:choosy", "--ray", "auto", "--db", "http://far", "--ray-options", '{"cpus": 1}'),
            "--ray-options: they do not fit RayExecutionStrategy: got an unexpected keyword argument 'cpus'",
        ),
        (
            ("train", "mine:trainer", "--agent", "mine:echo", "--train", "broken.jsonl"),
            "--train: line 2 of broken.jsonl is not JSON",
        ),
        (
            ("train", "mine:trainer", "--agent", "mine:echo", "--val", "empty.jsonl"),
            "--val: empty.jsonl contains no tasks",
        ),
    ],
    ids=[
        "agent",
        "form",
        "import",
        "name",
        "kind",
        "no-agent",
        "fallback",
        "minimum",
        "runners",
        "limits",
        "ray",
        "local",
        "ray-options",
        "json",
        "empty",
    ],
)
def test_invalid_training_arguments_are_usage_errors(inside: Inside, arguments: tuple[str, ...], said: str) -> None:
    done = inside(*arguments)
    assert (done.code, said in done.err) == (2, True), done.err


def _scraped(port: int) -> Counter[str]:
    end = time.monotonic() + HANG
    while True:
        # One runner may have done everything before the other has started.
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
            break
        except urllib.error.URLError:
            assert time.monotonic() < end
            time.sleep(0.1)
    assert promtool("check", "metrics", stdin=text) == ""
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    described = table(page.partition("### Metrics of proxies")[2])
    names = {name for name in families(text) if not name.startswith("process_")}
    assert names == {name for name in described if "_runner_" in name}
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return Counter({name: int(float(value)) for name, _, value in lines})


@pytest.fixture
def metrics_port() -> int:
    """A port that is free, as the next one is."""
    return free_port()


@pytest.fixture
def runners(place: Path, metrics_port: int) -> Iterator[psutil.Popen]:
    """Two runners of an agent on a store that exists."""

    async def fill() -> None:
        async with await open_store(f"sqlite:///{place}/run.db") as store:
            await store.add_resources({"prompt": PromptTemplate(template="x", engine="f-string")})

    asyncio.run(fill())
    with psutil.Popen(
        [
            *(*COMMAND, "runner", "mine:echo", "--store", f"sqlite:///{place}/run.db", "-n", "2"),
            *("--metrics-port", str(metrics_port)),
        ],
        cwd=place,
        env=environment("sqlite:///unused.db") | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        if process.is_running():
            for member in (*process.children(recursive=True), process):
                member.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "signal_, code", [("SIGTERM", 143), pytest.param("SIGINT", 130, marks=pytest.mark.torture_only)]
)
async def test_runners_work_on_the_queue_until_a_signal(
    place: Path, runners: psutil.Popen, metrics_port: int, signal_: str, code: int
) -> None:
    async with await open_store(f"sqlite:///{place}/run.db") as store:
        rollouts = [await store.enqueue_rollout(task) for task in range(4)]
        ended = await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts], timeout=HANG)
        assert Counter(rollout.status for rollout in ended) == {"succeeded": 4}
        scrapes = [await asyncio.to_thread(_scraped, metrics_port + number) for number in range(2)]
        assert sum(scrape['rollbook_runner_attempts_total{status="succeeded"}'] for scrape in scrapes) == 4
        assert sum(scrape["rollbook_runner_attempt_seconds_count"] for scrape in scrapes) == 4
        assert [scrape["rollbook_runner_active_attempts"] for scrape in scrapes] == [0, 0]
        children = runners.children(recursive=True)
        runners.send_signal(signal.Signals[signal_])
        assert await asyncio.to_thread(runners.wait, HANG) == code
        assert psutil.wait_procs(children, HANG)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer, option, variable, used",
    [
        ("trainer", (), "sqlite:///variable.db", "variable.db"),
        ("trainer", ("--db", "sqlite:///option.db"), "sqlite:///variable.db", "option.db"),
        ("own", (), "sqlite:///variable.db", "own.db"),
        ("own", ("--db", "sqlite:///option.db"), "", "option.db"),
        ("trainer", (), "", None),
    ],
)
def test_a_training_uses_the_option_then_the_code_then_the_variable(
    *, place: Path, inside: Inside, trainer: str, option: tuple[str, ...], variable: str, used: str | None
) -> None:
    command = ("train", f"mine:{trainer}", "--agent", "mine:echo", "--train", "tasks.jsonl", *option)
    done = inside(*command, variable=variable)
    assert done.code == 0, done.err
    assert [path.name for path in place.glob("*.db")] == ([] if used is None else [used])


@pytest.mark.slow
def test_a_runner_prints_its_attempts_until_ctrl_c(place: Path) -> None:
    url = f"sqlite:///{place}/run.db"

    async def fill() -> list[str]:
        async with await open_store(url) as store:
            return [(await store.enqueue_rollout(task)).rollout_id for task in (2, 0)]

    good, bad = asyncio.run(fill())
    with subprocess.Popen(
        [*COMMAND, "runner", "mine:choosy", "--db", url, "--name", "night"],
        cwd=place,
        env=environment("sqlite:///unused.db") | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG) == 130
    lines[3], lines[5] = (re.sub(r"[0-9.]+ s", "N s", line) for line in (lines[3], lines[5]))
    assert lines == [
        f"runner of mine:choosy on {url}, one process",
        "night-0: waits for rollouts",
        f"night-0: claimed {good}, attempt 1",
        f"night-0: finished {good} in N s, reward 0.5",
        f"night-0: claimed {bad}, attempt 1",
        f"night-0: failed {bad} after N s: ZeroDivisionError: division by zero",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "role, partition, count, said",
    [
        pytest.param("reader", "", "1", "has the role reader", marks=pytest.mark.torture_only, id="forbidden"),
        pytest.param("reader", "", "2", "has the role reader", id="forbidden-to-all"),
        pytest.param(None, "", "1", "key", id="unauthorized"),
        pytest.param("runner", "/p/none", "1", "partition", marks=pytest.mark.torture_only, id="partition"),
    ],
)
async def test_a_refused_runner_says_so_in_one_line(
    place: Path, role: Any, partition: str, count: str, said: str
) -> None:
    url = f"sqlite:///{place}/keyed.db"
    clock = ManualClock()
    async with await open_store(url, clock=clock) as store, keyed_server(store, url, clock, always=True) as keyed:
        key = "rbk_wrong" if role is None else await keyed.key(role)
        command = ("runner", "mine:choosy", "--db", f"{keyed.api.url}{partition}", "-n", count)
        code, _, errors = await asyncio.to_thread(rollbook, place, *command, ROLLBOOK_API_KEY=key)
    assert code not in {0, 130}
    assert errors.count("\n") == 1, errors
    assert errors.startswith("rollbook: ")
    assert said in errors
