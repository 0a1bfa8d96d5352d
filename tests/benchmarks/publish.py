"""Puts the figures measured last into a document: `python -m tests.benchmarks.publish README.md`.

Those of `make bench` replace what stands between two lines of the document, `<!-- bench -->` and `<!-- /bench -->`,
those of `make bench-http` what stands between `<!-- bench-http -->` and `<!-- /bench-http -->`, and so on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmarks.report import files

NAMES = ("bench", "bench-http", "bench-loop", "bench-runs", "bench-dashboard")


def publish(document: Path, names: tuple[str, ...] = NAMES) -> None:
    """Replace the figures in a document by those measured last; what was not measured here stays as it is."""
    for name in names:
        _, figures = files(name)
        if figures.exists():
            _replace(document, f"<!-- {name} -->\n", f"<!-- /{name} -->\n", figures.read_text())


def _replace(document: Path, begin: str, end: str, figures: str) -> None:
    before, begun, rest = document.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        sys.exit(f"{document} has no place for figures: it needs the lines {begin.strip()} and {end.strip()}")
    document.write_text(f"{before}{begin}\n{figures}\n{end}{after}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        publish(Path(name))
