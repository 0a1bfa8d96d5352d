"""`rollbook train` and `rollbook runner`, on modules that lie where the user stands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from store import open_store
from store.models import PromptTemplate
from tests.cli.conftest import COMMAND, environment
from tests.server.test_metrics import families, table
from tests.server.test_monitoring import promtool

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


resources = {"prompt": PromptTemplate(template="x", engine="f-string")}
trainer = Trainer(algorithm=Baseline(), strategy="shm", initial_resources=resources)
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


def rollbook(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in that directory."""
    return subprocess.run(
        [*COMMAND, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=place,
        env=environment("sqlite:///unused.db") | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=100,
    )


@pytest.mark.slow
def test_a_trainer_of_a_module_is_run_and_its_report_printed(place: Path) -> None:
    done = rollbook(
        place,
        *("train", "mine:trainer", "--agent", "mine:echo", "--db", "sqlite:///run.db", "--runners", "2"),
        *("--train", "tasks.jsonl", "--val", "val.jsonl", "--seed", "1"),
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:3]]
    assert [(row[0], row[-2], row[-1]) for row in rows] == [("train", "2", "2.0000"), ("val", "1", "5.0000")]
    assert (place / "run.db").exists()


@pytest.mark.slow
def test_a_training_that_fails_says_why_in_one_message(place: Path) -> None:
    done = rollbook(place, "train", "mine:trainer", "--agent", "mine:lost", "--train", "many.jsonl")
    assert done.returncode == 1
    assert "rollbook: the first 10 attempts all failed, 10 of them with LookupError: the key is gone" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, said",
    [
        (("train", "mine:trainer"), "--agent: choose one: the agents of mine are echo, lost"),
        (("train", "mine"), "MODULE:TRAINER: 'mine' is not of the form package.module:NAME"),
        (("train", "yours:trainer"), "MODULE:TRAINER: 'yours' cannot be imported from"),
        (("train", "mine:nobody"), "MODULE:TRAINER: 'mine:nobody' is missing"),
        (("train", "mine:echo"), "MODULE:TRAINER: 'mine:echo' is not a Trainer"),
        (("runner", "mine:trainer", "--store", "sqlite:///x.db"), "MODULE:AGENT: 'mine:trainer' is not a LitAgent"),
        (
            ("runner", "mine:echo", "--store", "sqlite:///x.db", "--fallback", "x"),
            "--fallback: it is only for runs of a pipeline",
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
    ids=["agent", "form", "import", "name", "kind", "no-agent", "fallback", "json", "empty"],
)
def test_what_leads_nowhere_is_a_usage_error_by_name(place: Path, arguments: tuple[str, ...], said: str) -> None:
    done = rollbook(place, *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def _scraped(port: int) -> Counter[str]:
    end = time.monotonic() + 60
    while True:
        # One runner may have done everything before the other has started.
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
            break
        except urllib.error.URLError:
            assert time.monotonic() < end
            time.sleep(0.1)
    assert promtool("check", "metrics", given=text) == ""
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    described = table(page.partition("### Metrics of proxies")[2])
    shown = {name for name in families(text) if not name.startswith("process_")}
    assert shown == {name for name in described if "_runner_" in name}
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return Counter({name: int(float(value)) for name, _, value in lines})


@pytest.fixture
def metrics_port() -> int:
    """A port that is free, as the next one is."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


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
@pytest.mark.parametrize("signal_, code", [("SIGTERM", 143), ("SIGINT", 130)])
async def test_runners_do_what_is_enqueued_until_they_are_told_to_leave(
    place: Path, runners: psutil.Popen, metrics_port: int, signal_: str, code: int
) -> None:
    async with await open_store(f"sqlite:///{place}/run.db") as store:
        rollouts = [await store.enqueue_rollout(task) for task in range(4)]
        ended = await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts], timeout=60)
        assert Counter(rollout.status for rollout in ended) == {"succeeded": 4}
        scrapes = [await asyncio.to_thread(_scraped, metrics_port + number) for number in range(2)]
        assert sum(each['rollbook_runner_attempts_total{status="succeeded"}'] for each in scrapes) == 4
        assert sum(each["rollbook_runner_attempt_seconds_count"] for each in scrapes) == 4
        assert [each["rollbook_runner_active_attempts"] for each in scrapes] == [0, 0]
        children = runners.children(recursive=True)
        runners.send_signal(signal.Signals[signal_])
        assert await asyncio.to_thread(runners.wait, 60) == code
        assert psutil.wait_procs(children, 30)[1] == []
