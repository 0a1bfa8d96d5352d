"""Report of a benchmark: each figure beside its goal, as a table, as JSON and as Markdown for the documentation."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from tests.benchmarks.protocol import ROOT
from tests.benchmarks.publish import markdown_file, publish

TIMES = "\N{MULTIPLICATION SIGN}"

Verdict = Literal["aim", "must", "below", "—"]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and what is asked of it."""

    title: str
    unit: str
    must: float
    aim: float
    is_limit: bool = False
    """Whether less is better."""

    def verdict(self, value: float) -> Verdict:
        sign = -1 if self.is_limit else 1
        if value * sign >= self.aim * sign:
            return "aim"
        return "must" if value * sign >= self.must * sign else "below"


def at_most(title: str, unit: str, must: float, aim: float) -> Target:
    return Target(title, unit, must, aim, is_limit=True)


TARGETS = {
    "sqlite.lifecycle.1": Target("SQLite: lifecycle ÷ in-memory peer, 1 caller", TIMES, 0.4, 0.6),
    "sqlite.lifecycle.8": Target("SQLite: lifecycle ÷ in-memory peer, 8 callers", TIMES, 1.2, 2),
    "sqlite.lifecycle.32": Target("SQLite: lifecycle ÷ in-memory peer, 32 callers", TIMES, 1.5, 2.6),
    "sqlite.lifecycle.128": Target("SQLite: lifecycle ÷ in-memory peer, 128 callers", TIMES, 1.8, 3.5),
    "sqlite.spans": Target("SQLite: spans in calls of 100 ÷ bare executemany", TIMES, 0.6, 0.9),
    "sqlite.grouping": Target("SQLite: calls per COMMIT ÷ callers, saturated", TIMES, 0.8, 0.95),
    "sqlite.disk": at_most("SQLite: disk ÷ JSON, spans only", TIMES, 1.5, 1.0),
    "sqlite.open.dequeue.p50": at_most("SQLite: 200 lifecycles/s, dequeue p50", "ms", 1, 0.3),
    "sqlite.open.dequeue.p99": at_most("SQLite: 200 lifecycles/s, dequeue p99", "ms", 5, 2),
    "sqlite.open.add_span.p99": at_most("SQLite: 200 lifecycles/s, add_span p99", "ms", 5, 2),
    "sqlite.wake.inside": at_most("SQLite: wake-up in the same process, p99", "ms", 5, 1),
    "sqlite.wake.outside": at_most("SQLite: wake-up in another process, p99", "ms", 100, 20),
    "sqlite.rebuild.spans": Target("SQLite: rebuild, with spans", "k events/s", 60, 150),
    "sqlite.rebuild.bare": Target("SQLite: rebuild, without spans", "k events/s", 150, 400),
    "sqlite.verify": Target("SQLite: verify, with spans", "k events/s", 60, 150),
    "postgres.lifecycle.32": Target("Postgres: lifecycle ÷ in-memory peer, 32 callers", TIMES, 0.8, 1.5),
    "postgres.lifecycle.128": Target("Postgres: lifecycle ÷ in-memory peer, 128 callers", TIMES, 1.4, 2.5),
    "postgres.grouping": Target("Postgres: lifecycle ÷ one transaction per call, 32 callers", TIMES, 3, 6),
    "postgres.spans": Target("Postgres: spans in calls of 100 ÷ COPY", TIMES, 0.5, 0.7),
    "postgres.wake.inside": at_most("Postgres: wake-up in the same process, p99", "ms", 5, 1),
    "postgres.wake.outside": at_most("Postgres: wake-up in another process, p99", "ms", 100, 20),
    "postgres.rebuild.spans": Target("Postgres: rebuild, with spans", "k events/s", 60, 120),
    "proxy.whole.1": at_most("LLM proxy ÷ bare aiohttp proxy: call, 1 caller", TIMES, 1.5, 1.0),
    "proxy.whole.16": at_most("LLM proxy ÷ bare aiohttp proxy: call, 16 callers", TIMES, 1.5, 1.0),
    "proxy.stream.1": at_most("LLM proxy ÷ bare aiohttp proxy: stream, 1 caller", TIMES, 1.5, 1.0),
    "proxy.stream.16": at_most("LLM proxy ÷ bare aiohttp proxy: stream, 16 callers", TIMES, 1.5, 1.0),
}


class Report:
    """The figures of one run, as they come in.

    Args:
        targets: what is asked for, by the keys under which figures are noted.
        name: of the target of `make` that measures them.
    """

    def __init__(self, targets: Mapping[str, Target] = TARGETS, name: str = "bench") -> None:
        self._targets = targets
        self._name = name
        self._console = Console(width=150)
        self._figures: dict[str, float] = {}
        self._details: dict[str, str] = {}
        self._facts: dict[str, str] = {}
        self._raw: dict[str, Any] = {}

    def fact(self, name: str, text: str) -> None:
        """Note a circumstance, or something measured that has no target."""
        self._facts[name] = text
        self._console.print(f"  {name}: {text}", highlight=False)

    def figure(self, key: str, value: float, detail: str = "") -> None:
        """Note a figure that has a target."""
        self._figures[key] = value
        self._details[key] = detail
        target = self._targets[key]
        self._console.print(f"  {target.title}: {_number(value)} {target.unit}  {detail}", highlight=False)

    def raw(self, name: str, values: Any) -> None:
        """Keep every single measurement for the JSON file."""
        self._raw[name] = values

    def finish(self) -> None:
        """Print the table, write the files and publish the figures."""
        as_json, as_markdown = ROOT / ".cache" / f"{self._name}.json", markdown_file(self._name)
        as_json.parent.mkdir(exist_ok=True)
        as_json.write_text(json.dumps(self._machine_readable(), indent=1, ensure_ascii=False) + "\n")
        as_markdown.write_text(self.markdown())
        self._console.print(self._table())
        publish(self._name)
        self._console.print(f"written: {as_json.relative_to(ROOT)}, docs/benchmarks.md")

    def _machine_readable(self) -> dict[str, Any]:
        return {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "figures": {
                key: {
                    "title": target.title,
                    "unit": target.unit,
                    "must": target.must,
                    "aim": target.aim,
                    "measured": self._figures.get(key),
                    "reached": self._verdict(key),
                }
                for key, target in self._targets.items()
            },
            "facts": self._facts,
            "measurements": self._raw,
        }

    def _verdict(self, key: str) -> Verdict:
        return self._targets[key].verdict(self._figures[key]) if key in self._figures else "—"

    def _table(self) -> Table:
        table = Table(title=machine())
        for heading in ("", "must", "aim", "measured", "reached", ""):
            table.add_column(heading, justify="right" if heading in {"must", "aim", "measured"} else "left")
        colours = {"aim": "green", "must": "yellow", "below": "red", "—": "dim"}
        for key, target in self._targets.items():
            verdict = self._verdict(key)
            table.add_row(
                target.title,
                _bound(target, target.must),
                _bound(target, target.aim),
                self._measured(key),
                f"[{colours[verdict]}]{verdict}",
                self._details.get(key, ""),
            )
        return table

    def _measured(self, key: str) -> str:
        return f"{_number(self._figures[key])} {self._targets[key].unit}" if key in self._figures else "not measured"

    def markdown(self) -> str:
        """Return the figures as Markdown for docs/benchmarks.md."""
        lines = [f"Measured by `make {self._name}` on {machine()}.", ""]
        lines += ["| | goal | stretch | measured |", "|---|---|---|---|"]
        lines += [
            f"| {target.title} | {_bound(target, target.must)} | {_bound(target, target.aim)} | {self._measured(key)} |"
            for key, target in self._targets.items()
            if key in self._figures
        ]
        facts = (f"- {name}: {text}" for name, text in self._facts.items())
        lines += ["", *(fill(fact, 118, subsequent_indent="  ", break_on_hyphens=False) for fact in facts), ""]
        return "\n".join(lines)


def machine() -> str:
    """Return what ran this, in a line."""
    return (
        f"{os.cpu_count()} {TIMES} {_processor()}, {platform.system()}, Python {platform.python_version()},"
        f" SQLite {sqlite3.sqlite_version}"
    )


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _bound(target: Target, value: float) -> str:
    return f"{'≤' if target.is_limit else '≥'} {_number(value)}"


def _number(value: float) -> str:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
