"""The arithmetic of docs/clusters.md: from measured costs to the machines for many trainers."""

from __future__ import annotations

import re
from math import ceil
from typing import NamedTuple

from store.db.drivers.postgres import pool
from store.server.partitions import MAX_OPEN
from tests.benchmarks.protocol import ROOT
from tests.benchmarks.publish import replace

SPANS_PER_ROLLOUT = 8
EVENTS_PER_ROLLOUT = SPANS_PER_ROLLOUT + 7
"""Enqueued, claimed (2), running (2), ended (2), and the spans."""
CORES_PER_MACHINE = 2
"""Processor cores of the machine that was measured."""
LOAD = 0.5
SHARED_CONNECTIONS = vars(pool)["_READERS"] + 2
"""Connections of a server process to Postgres besides those of the writers: for reads, for LISTEN, and for keys."""
SECONDS_PER_DAY = 86_400
TRAINERS = (10, 100, 1_000)

PAGE = ROOT / "docs" / "clusters.md"
PRODUCTION = ROOT / "docs" / "production.md"

ROWS = {
    "rollouts": "completed rollouts, 32 callers in one process",
    "spans": "spans of this kind, in calls of 100",
    "rollout": "disk for a rollout that was enqueued, claimed and completed",
    "span": "disk for a span with 1 KB of words",
    "compacted": "the same after `rollbook compact --full`",
    "verify": "`rollbook verify`, scaled to 1,000,000 events",
}
"""Rows of the sizing table."""
ALONE = "1 caller"


class Costs(NamedTuple):
    """Measured costs: KB of disk on Postgres, milliseconds of processor time of a rollout, seconds of `verify`."""

    rollout_kb: float
    span_kb: float
    compacted_span_kb: float
    verify_seconds: float
    server_ms: float
    postgres_ms: float


def _costs(production: str, page: str) -> Costs:
    disk = [_number(_cells(production, ROWS[name])[-1]) for name in ("rollout", "span", "compacted", "verify")]
    return Costs(*disk, *map(_number, _cells(page, ALONE)))


def _cells(page: str, title: str) -> list[str]:
    """Return the cells of a row after its title."""
    (row,) = re.findall(rf"^\| {re.escape(title)} \|(.*)\|$", page, re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


def _figure(cell: str) -> str:
    """Return a figure without its unit."""
    return cell.split(maxsplit=1)[0]


def _number(cell: str) -> float:
    return float(_figure(cell).replace(",", ""))


def one_partition(production: str) -> str:
    """Return a sentence with the figures of the sizing table for Postgres."""
    rate, span_rate, rollout, span, compacted, verify = (_cells(production, title)[-1] for title in ROWS.values())
    per_second = f"{_figure(rate)} completed rollouts or {_figure(span_rate)} spans per second"
    return (
        f"{per_second}. A rollout takes {rollout} on disk, a span with 1 KB of words\n"
        f"{span}, after compaction {compacted}. `verify` takes {verify} for 1,000,000 events.\n"
    )


def many_trainers(production: str, page: str) -> str:
    """Return the table for one rollout per second and trainer, each trainer with a partition of its own."""
    measured = _costs(production, page)
    columns = [_column(measured, trainers) for trainers in TRAINERS]
    head = " | ".join(f"{trainers:,} trainers" for trainers in TRAINERS)
    rows = [f"| {title} | {' | '.join(column[title] for column in columns)} |" for title in columns[0]]
    return "\n".join([f"| | {head} |", f"|---|{'---|' * len(TRAINERS)}", *rows, ""])


def _column(measured: Costs, trainers: int) -> dict[str, str]:
    postgres_cores = trainers * measured.postgres_ms / 1000
    machines = ceil(postgres_cores / CORES_PER_MACHINE / LOAD)
    here = ceil(trainers / machines)
    server_cores = here * measured.server_ms / 1000
    servers = max(ceil(server_cores / LOAD), ceil(here / MAX_OPEN))
    connections = servers * (SHARED_CONNECTIONS + ceil(here / servers))
    fresh_kb, compacted_kb = (
        measured.rollout_kb + SPANS_PER_ROLLOUT * span_kb for span_kb in (measured.span_kb, measured.compacted_span_kb)
    )
    events = here * SECONDS_PER_DAY * EVENTS_PER_ROLLOUT
    return {
        "rollouts per second": f"{trainers:,}",
        "spans per second": f"{trainers * SPANS_PER_ROLLOUT:,}",
        "processor cores busy, Postgres": f"{postgres_cores:.1f}",
        "machines with Postgres": f"{machines:,}",
        "server processes in total": f"{machines * servers:,}",
        "connections to each Postgres": f"{connections:,}",
        "disk per day": _disk(trainers * SECONDS_PER_DAY * fresh_kb),
        "the same after compaction": _disk(trainers * SECONDS_PER_DAY * compacted_kb),
        "`verify` of one day's events, per machine": f"{events / 1e6 * measured.verify_seconds / 60:.0f} min",
    }


def _disk(kilobytes: float) -> str:
    return f"{kilobytes / 1e6:,.0f} GB"


def publish() -> None:
    """Write both tables into docs/clusters.md."""
    replace(PAGE, "one partition", one_partition(PRODUCTION.read_text()))
    replace(PAGE, "many trainers", many_trainers(PRODUCTION.read_text(), PAGE.read_text()))


if __name__ == "__main__":
    publish()
