"""Puts the figures of the last `make bench` into a document: `python -m tests.benchmarks.publish README.md`.

They replace what stands between two lines of the document, `<!-- bench -->` and `<!-- /bench -->`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmarks.report import MARKDOWN_FILE

BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->\n"


def publish(document: Path) -> None:
    """Replace the figures in a document by those measured last."""
    before, begun, rest = document.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        sys.exit(f"{document} has no place for figures: it needs the lines {BEGIN.strip()} and {END.strip()}")
    document.write_text(f"{before}{BEGIN}\n{MARKDOWN_FILE.read_text()}\n{END}{after}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        publish(Path(name))
