"""The processor time and the elapsed time of each test, and the budgets of folders: a plugin of pytest. Decision 73.

A test's processor time is that of its process of pytest, of the programs that it starts and waits for, and of the
Postgres of its process, from the start of its setup to the end of its teardown. A fixture that several tests share is
charged to the first of them, and the end of the fixtures of the session to no test. Both times are properties of the
test in the JUnit file (`cpu_s` and `wall_s`).

The table at the end compares each folder with `tests/budgets.toml`. Machines differ in speed and other programs slow
them down, so each process also measures a fixed piece of work again and again, and the folders' times are divided by
the slowdown that it shows against the machine on which the budgets were set. A budget never fails a run.
"""

from __future__ import annotations

import resource
import statistics
import time
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import postgres

_BUDGETS = Path(__file__).with_name("budgets.toml")
_HERE = Path(__file__).parent
_SHARED = "start and end"
"""The name of the work before the first and after the last test of each process of pytest: imports, collection, and the
end of what its tests share, such as a browser."""
_SAMPLE_EVERY_SECONDS = 5.0
_REFERENCE_SECONDS = 0.0040
"""The time of `_fixed_work` on the machine on which the budgets were set, beside a running suite."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("costs")
    group.addoption("--costs", action="store_true", help="print the most expensive tests, and the folders' budgets")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the processes that run tests, and report in the one that prints."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Meter(config), "costs-meter")
        return
    if config.getoption("--costs"):
        config.pluginmanager.register(Report(config), "costs-report")
    if not config.getoption("numprocesses", default=None):
        config.pluginmanager.register(Meter(config), "costs-meter")


def _processor_seconds() -> float:
    """Return the processor time of this process, of its children that ended, and of its Postgres and fork servers."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.process_time() + children.ru_utime + children.ru_stime + postgres.processor_seconds() + _forked_seconds()
    )


def _forked_seconds() -> float:
    """Return the processor time of the fork server and of the processes that it forked and that ended."""
    pid: int | None = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is None:
        return 0.0
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def _fixed_work() -> float:
    """Return the processor time that a fixed piece of work takes."""
    start = time.thread_time()
    table: dict[str, int] = {}
    for number in range(20_000):
        key = str(number % 997)
        table[key] = table.get(key, 0) + number
    return time.thread_time() - start


class Meter:
    """Measures the tests of one process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._shared = 0.0
        self._started = (0.0, 0.0)
        self._last_end = 0.0
        self._samples: list[float] = []
        self._next_sample = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Note when the test begins."""
        if time.monotonic() >= self._next_sample:
            self._samples.append(_fixed_work())
            self._next_sample = time.monotonic() + _SAMPLE_EVERY_SECONDS
        self._started = (_processor_seconds(), time.monotonic())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Add the times to the test's last report."""
        if call.when == "teardown":
            cpu, wall = self._started
            end = self._last_end or _processor_seconds()
            item.user_properties.append(("cpu_s", round(end - cpu, 4)))
            item.user_properties.append(("wall_s", round(time.monotonic() - wall, 4)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Note the end of the last test, whose teardown also ends the fixtures of the session."""
        if nextitem is None:
            self._last_end = _processor_seconds()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Note the cost of the start."""
        self._shared = _processor_seconds()

    def pytest_sessionfinish(self) -> None:
        """Hand over what the process measured as a whole."""
        shared = self._shared + (_processor_seconds() - self._last_end if self._last_end else 0.0)
        self._outputs().update(shared=shared, samples=self._samples)

    def _outputs(self) -> dict[str, Any]:
        """Return the values that xdist carries to the main process; without xdist, the report reads them itself."""
        outputs: dict[str, Any] = vars(self._config).setdefault("workeroutput", {})
        return outputs


@dataclass(slots=True)
class Cost:
    """Sums of some tests, in seconds."""

    tests: int = 0
    cpu: float = 0.0
    wall: float = 0.0

    def add(self, cpu: float, wall: float) -> None:
        """Add a test."""
        self.tests += 1
        self.cpu += cpu
        self.wall += wall


@dataclass(eq=False)
class Report:
    """Sums up the tests of all processes, and prints the table."""

    config: pytest.Config
    tests: dict[str, Cost] = field(default_factory=dict[str, Cost])
    samples: list[float] = field(default_factory=list[float])
    shared: Cost = field(default_factory=Cost)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the times of a test."""
        times = dict(report.user_properties)
        if report.when == "teardown" and "cpu_s" in times:
            self.tests.setdefault(report.nodeid, Cost()).add(times["cpu_s"], times["wall_s"])  # pyright: ignore[reportArgumentType]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a process measured as a whole."""
        self._take(getattr(node, "workeroutput", {}))

    def _take(self, output: dict[str, Any]) -> None:
        if "shared" in output:
            self.shared.add(output["shared"], 0.0)
        self.samples += output.get("samples", [])

    @property
    def slowdown(self) -> float:
        """How much slower this machine was than the one on which the budgets were set."""
        return statistics.median(self.samples) / _REFERENCE_SECONDS if self.samples else 1.0

    def folders(self) -> dict[str, Cost]:
        """Return the sums of each folder, with the modules directly below `tests` as one folder."""
        sums = defaultdict[str, Cost](Cost)
        for name, cost in self.tests.items():
            parts = Path(name.split("::", 1)[0]).parts
            folder = sums[parts[1] if len(parts) > 2 else "."]
            folder.tests += 1
            folder.cpu += cost.cpu
            folder.wall += cost.wall
        sums[_SHARED] = self.shared
        return dict(sums)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Take what a run without other processes measured."""
        self._take(getattr(self.config, "workeroutput", {}))

    def _over(self) -> list[str]:
        """Return the folders that take more than their budget, and those without one."""
        budgets = _budgets()
        return [
            folder for folder, cost in self.folders().items() if cost.cpu / self.slowdown > budgets.get(folder, 0.0)
        ]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the most expensive tests and the folders."""
        if not self.tests:
            return
        write = terminalreporter.write_line
        terminalreporter.section("processor time")
        most = sorted(self.tests.items(), key=lambda item: -item[1].cpu)[:40]
        write("cpu s  wall s  test")
        for name, cost in most:
            write(f"{cost.cpu:5.1f}  {cost.wall:6.1f}  {name}")
        budgets, slowdown = _budgets(), self.slowdown
        over = self._over()
        write("")
        write(f"This machine is {slowdown:.2f} times as slow as the one of the budgets; `cpu s` is divided by it.")
        write("cpu s  budget  wall s  tests  folder")
        folders = self.folders()
        for folder, cost in sorted(folders.items(), key=lambda item: -item[1].cpu):
            remark = "  over budget" if folder in over else ""
            budget = budgets.get(folder, 0.0)
            write(f"{cost.cpu / slowdown:5.0f}  {budget:6.0f}  {cost.wall:6.0f}  {cost.tests:5}  {folder}{remark}")
        total, allowed = sum(cost.cpu for cost in folders.values()) / slowdown, sum(budgets.values())
        write(f"{total:5.0f}  {allowed:6.0f}  {'':6}  {len(self.tests):5}  all, in {total / 60:.1f} core-minutes")
        if over:
            write(f"Over the budgets of tests/budgets.toml: {', '.join(over)}. Make these tests cheaper.")


def _budgets() -> dict[str, float]:
    """Return the processor seconds of each folder."""
    budgets: dict[str, float] = tomllib.loads(_BUDGETS.read_text())["processor_seconds"] if _BUDGETS.exists() else {}
    return budgets
