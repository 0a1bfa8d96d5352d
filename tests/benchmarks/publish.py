"""Publication of figures: each run's table goes into docs/benchmarks.md, five of its rows into the README.

`Report.finish` calls `publish`. `python -m tests.benchmarks.publish` repeats it with the figures in `.cache`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.benchmarks.protocol import ROOT

NAMES = (
    "bench",
    "bench-http",
    "bench-loop",
    "bench-runs",
    "bench-dashboard",
    "bench-operations",
    "bench-exports",
    "bench-rescoring",
    "bench-replay",
    "bench-ray",
    "bench-search",
)
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"

IN_THE_README = (
    "lifecycles ÷ peer's server, 32 connections",
    "lifecycles ÷ peer's server, 32 connections, Postgres",
    "rollouts/s ÷ peer's trainer, 32 runners, SQLite",
    "SQLite: lifecycle ÷ in-memory peer, 32 callers",
    "SQLite: verify, with spans",
)
"""The titles of the figures in the README. One of them is the hardest goal of the store, met or missed."""


def markdown_file(name: str) -> Path:
    """Return the file with the figures of `make NAME` as Markdown."""
    return ROOT / ".cache" / f"{name}.md"


def publish(name: str) -> None:
    """Write the last figures of `make NAME` into the page and the README; without figures nothing changes."""
    figures = markdown_file(name)
    if figures.exists():
        replace(PAGE, name, figures.read_text())
        replace(README, "figures", readme_figures(PAGE.read_text()))


def readme_figures(page: str) -> str:
    """Return the table for the README: rows of the page, word for word."""
    rows = dict(re.findall(r"^(?=\| (.+?) \| [≥≤])(\|.*\|)$", page, re.MULTILINE))
    chosen = [rows[title] for title in IN_THE_README]
    return "\n".join(["| | goal | stretch | measured |", "|---|---|---|---|", *chosen, ""])


def replace(document: Path, name: str, text: str) -> None:
    """Replace what is between `<!-- NAME -->` and `<!-- /NAME -->`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, begun, rest = document.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        sys.exit(f"{document} needs the lines {begin.strip()} and {end.strip()}")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    for benchmark in NAMES:
        publish(benchmark)
