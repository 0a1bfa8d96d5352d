"""Output of the results of commands that copy a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.cli.output.printing import byte_size, json_document, line, note
from store.cli.output.times import duration
from store.db.url import parse

if TYPE_CHECKING:
    from store.operations import CopyReport, PartContents


def print_part(part: PartContents, *, as_json: bool) -> None:
    """Print what a copy of some rollouts contains."""
    if as_json:
        json_document(part.model_dump())
        return
    line(
        f"{part.rollouts:,} rollouts ({part.unfinished:,} not finished), {part.resources:,} resources,"
        f" {part.events:,} events: {part.conditions}"
    )
    origin = part.origin
    line(f"of          store {origin.store_id} at position {origin.position}, commit {origin.commit_id}")
    line(f"its head    {origin.chain_head}")


def print_report(report: CopyReport, action: str, *, as_json: bool) -> None:
    """Print the result of a copy. `action` describes the copy, for example `copied to sqlite:///b.db`."""
    if as_json:
        json_document(report.model_dump())
        return
    earlier = f", {report.events_before:,} of them by an earlier run" if report.events_before else ""
    line(
        f"{action}: {report.events:,} events up to position {report.position}, commit {report.commit_id}{earlier};"
        f" {byte_size(report.size_bytes)} in {duration(report.seconds)}"
    )
    line(f"store id    {report.store_id}")
    line(f"chain head  {report.chain_head}")
    line(f"state hash  {report.state_hash}")
    line("verified: the log is intact, and every table matches it" if report.is_verified else "not verified")


def note_name(url: str) -> None:
    """Print a note if a new file has a name that a partition of another store would have."""
    from store.db.schema.partition_files import place_like

    parsed = parse(url)
    if parsed.path is None or parsed.path != parsed.main:
        return
    if (partition_file := place_like(parsed.path)) is not None:
        note(
            f"{parsed.path.name} has the name of a partition {partition_file.partition} of {partition_file.main.name},"
            " but is a store of its own; another name avoids mistakes"
        )
