"""Printing of the progress and the results of the example's run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from store.examples.trading.feeds import TICKERS
from store.runtime.urls import without_passwords

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import AttemptDiff

_DEFAULT_DB = "sqlite:///rollbook.db"


class ReportPrinter:
    """Printer on standard output for headings, sentences and aligned columns."""

    def heading(self, text: str) -> None:
        """Print a heading after an empty line."""
        self.line(f"\n{text}")

    def line(self, text: str) -> None:
        """Print a sentence and flush it, because the process may be killed before the next sentence."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Print pairs of a label and a text."""
        self.table(list(facts))

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Print indented rows with aligned columns."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.line("  " + "  ".join(cells).rstrip())


async def progress(paper: ReportPrinter, store: Store, run_id: str) -> None:
    """Print the progress of each scope of a run."""
    graph = await store.runs.get_graph(run_id)
    rows = [("scope", "nodes done", "last")]
    for column in graph.columns:
        last = max(column.nodes, key=lambda node: node.last_version)
        rows.append((column.scope or "", f"{column.done} of {column.total}", f"{last.node_id}, {last.status}"))
    paper.table(rows)


async def decisions(paper: ReportPrinter, store: Store, run_id: str, attempts: Sequence[int]) -> None:
    """Print the decision about each ticker in the views of attempts."""
    rows = [("ticker", *(f"attempt {number}" for number in attempts))]
    for ticker in TICKERS:
        cells: list[str] = []
        for number in attempts:
            artifacts = await store.runs.query_artifacts(
                run_id, scope=ticker, name="final_trade_decision", view=f"attempt:{number}", limit=1
            )
            cells.append(f"{artifacts[-1].content['action']} {artifacts[-1].content['shares']}")
        rows.append((ticker, *cells))
    paper.line("Decided:")
    paper.table(rows)


def difference(paper: ReportPrinter, comparison: AttemptDiff) -> None:
    """Print the number of changes between two attempts, and the nodes that gave another answer."""
    counts = ", ".join(f"{count} {change}" for change, count in comparison.counts.items())
    paper.line(f"Of the nodes: {counts}. Another answer from:")
    other: dict[str, list[str]] = {}
    for node in comparison.nodes:
        if node.same_response is False:
            other.setdefault(node.scope or "", []).append(node.node_id)
    paper.table([(scope, ", ".join(nodes)) for scope, nodes in other.items()])


def next_steps(paper: ReportPrinter, db: str, run_id: str, attempt: int) -> None:
    """Print commands that show the stored data."""
    option = "" if db == _DEFAULT_DB else f" --db '{without_passwords(db)}'"
    paper.heading("Try next")
    for command in (
        "ui",
        "runs",
        f"lineage {run_id}",
        f"compare {run_id} {attempt} {attempt + 1}",
        f"undo {run_id} --to {attempt + 1}",
        f'rerun {run_id} --node "Portfolio Manager" --scope TSDD --plan',
        "runs --scope RIG",
    ):
        paper.line(f"  rollbook {command}{option}")
