"""Runners on Ray, beside the client-server strategy and beside bare actors that import the same modules.

ROLLBOOK_BENCH_RUNNERS sets the number of runners of the start; a runner takes about 150 MB.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.benchmarks.conftest import IS_QUICK, load
from tests.benchmarks.protocol import ROOT
from tests.benchmarks.report import TIMES, Report, Target

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

RUNNERS = int(os.environ.get("ROLLBOOK_BENCH_RUNNERS", "8" if IS_QUICK else "64"))
ROLLOUTS = 500 if IS_QUICK else 3_000
ROUNDS = 1
AT_WORK = 8
"""The number of runners that execute rollouts."""

TARGETS = {
    "ray.rate": Target(f"Ray: rollouts/s ÷ the client-server strategy, {AT_WORK} runners", TIMES, 0.9, 1.0),
    "ray.start": Target(
        f"Ray: start of {RUNNERS} runners until the last one asks for work ÷ bare actors",
        TIMES,
        1.5,
        1.2,
        is_limit=True,
    ),
}


@pytest.fixture(scope="module")
def figures() -> Iterator[Report]:
    print()
    report = Report(TARGETS, "bench-ray")
    report.fact("load average before", load())
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


def test_rate(postgres_url: Callable[[], str], figures: Report) -> None:
    # A machine that changes its speed changes both sides of a round.
    rounds = [
        [_measured("rate", kind, postgres_url(), str(ROLLOUTS), str(AT_WORK)) for kind in ("ray", "cs")]
        for _ in range(ROUNDS)
    ]
    ray, processes = (statistics.median(side) for side in zip(*rounds, strict=True))
    figures.fact("rollouts/s on Postgres", f"{ray:,.0f} with Ray, {processes:,.0f} with processes")
    figures.figure("ray.rate", statistics.median(ours / theirs for ours, theirs in rounds))


def test_start(tmp_path: Path, figures: Report) -> None:
    modules = tmp_path / "modules.json"
    _output("modules", str(modules))
    environment = {"ROLLBOOK_BENCH_MODULES": str(modules)}
    rounds = [[_measured(kind, str(RUNNERS), **environment) for kind in ("runners", "actors")] for _ in range(ROUNDS)]
    runners, actors = (statistics.median(side) for side in zip(*rounds, strict=True))
    figures.fact(f"seconds until {RUNNERS} have started", f"{runners:.1f} runners, {actors:.1f} bare actors")
    figures.figure("ray.start", statistics.median(ours / theirs for ours, theirs in rounds))


def _measured(*arguments: str, **environment: str) -> float:
    # Ray prints lines of its own.
    (figure,) = re.findall(r"^measured: (\S+)$", _output(*arguments, environment=environment), re.MULTILINE)
    return float(figure)


def _output(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.ray_side", *arguments],
        cwd=ROOT,
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
