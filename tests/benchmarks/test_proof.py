"""Speed and memory of verifying and rebuilding a long log, on both databases, in dedicated processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.protocol import Side
from tests.benchmarks.report import Report
from tests.benchmarks.rounds import Scale
from tests.benchmarks.workload import SPANS_PER_LIFECYCLE

pytestmark = pytest.mark.benchmark

Start = Callable[[], Side]


@pytest.fixture(scope="module")
def long_log(directory: Path) -> Path:
    return directory / "long.db"


def test_sqlite_with_spans(long_log: Path, start_rollbook: Start, report: Report, scale: Scale) -> None:
    url = f"sqlite:///{long_log}"
    memory: list[str] = []
    short = scale.events // 8
    for more in (short, scale.events - short):
        _fill(start_rollbook, url, more, SPANS_PER_LIFECYCLE)
        verified, rebuilt = _alone(start_rollbook, url, "verify"), _alone(start_rollbook, url, "rebuild")
        highest = f"verify {verified['highest']:.0f}, rebuild {rebuilt['highest']:.0f} MiB"
        memory.append(f"{verified['events']:,} events: {highest}")
    report.figure("sqlite.rebuild.spans", _thousands(rebuilt), _summary(rebuilt))
    report.figure("sqlite.verify", _thousands(verified), _summary(verified))
    report.fact("SQLite, most memory of a process that does nothing else", "; ".join(memory))
    report.raw("sqlite.proof", {"verify": verified, "rebuild": rebuilt})


def test_postgres_with_spans(
    long_log: Path, start_rollbook: Start, limit: Side, report: Report, postgres_url: Callable[[], str]
) -> None:
    if not long_log.exists():
        pytest.skip("the log is written by the benchmark before this one")
    url = postgres_url()
    limit.ask("copy_store", path=str(long_log), url=url)
    rebuilt = _alone(start_rollbook, url, "rebuild")
    report.figure("postgres.rebuild.spans", _thousands(rebuilt), _summary(rebuilt))
    verified = _alone(start_rollbook, url, "verify")
    report.fact("Postgres, verify, with spans", f"{_thousands(verified):.0f} k events/s, {_summary(verified)}")
    report.raw("postgres.proof", {"verify": verified, "rebuild": rebuilt})
    long_log.unlink()


def test_sqlite_without_spans(directory: Path, start_rollbook: Start, report: Report, scale: Scale) -> None:
    url = f"sqlite:///{directory / 'bare.db'}"
    # Such a log takes longer to write than to read, and memory does not depend on its length.
    _fill(start_rollbook, url, scale.events // 2, 0)
    rebuilt = _alone(start_rollbook, url, "rebuild")
    report.figure("sqlite.rebuild.bare", _thousands(rebuilt), _summary(rebuilt))
    report.raw("sqlite.proof.bare", {"rebuild": rebuilt})


def _fill(start: Start, url: str, events: int, spans: int) -> None:
    """Write so many events more, or a few hundred beyond, by two processes."""
    with start() as one, start() as other:
        for name, side in (("a", one), ("b", other)):
            # What is measured is reading it; how durable the writing was makes no difference.
            side.ask("open", url=f"{url}?durability=normal")
            side.tell("fill", name=name, events=events // 2, spans=spans)
        for side in (one, other):
            side.answer()
            side.ask("close")


def _alone(start: Start, url: str, command: str) -> dict[str, float]:
    with start() as side:
        side.ask("open", url=url)
        return side.ask(command)


def _thousands(proved: dict[str, float]) -> float:
    return proved["events"] / proved["seconds"] / 1000


def _summary(proved: dict[str, float]) -> str:
    grown = proved["highest"] - proved["before"]
    per_cpu_second = proved["events"] / proved["cpu_seconds"] / 1000
    return (
        f"{proved['events']:,.0f} events in {proved['seconds']:.1f} s, {per_cpu_second:.0f} k per CPU second,"
        f" {grown:.0f} MiB more than before"
    )
