"""`rollbook verify`, `rebuild` and `seal`: verification of the log and the tables, and repair of the tables.

With a seal, a later verification finds out whether the log up to the position of the seal was changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from store.cli.errors import NOT_INTACT
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line, note
from store.cli.output.progress import progress_shown
from store.cli.output.tables import DIFFERENCES, print_table
from store.cli.output.times import duration
from store.cli.store_context import dialect_of, run_reading, run_writing
from store.errors import Invalid
from store.runtime.urls import scheme_of

if TYPE_CHECKING:
    from store.models import Difference, VerifyReport

app = typer.Typer()

_PRINTED = 10
"""The maximum number of differences that are printed for each check."""
# The checks that find damage of the log itself, which `rollbook rebuild` cannot repair.
_OF_THE_LOG = frozenset(
    {
        *("chain", "totals", "events", "commits", "data_blocks", "bodies", "dictionaries", "blobs", "dropped"),
        *("store_info", "seal"),
    }
)
# The checks of tables that do not belong to the log and are not computed from it.
_BESIDE_THE_LOG = frozenset(
    {
        *("keys", "key_policy", "idempotency", "batches", "operation_runs", "saved_views", "verifications"),
        *("webhooks", "webhook_deliveries"),
    }
)


@app.command(rich_help_panel="Prove")
def verify(
    db: Db = DEFAULT_DB,
    seal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Also verify that no part of the log that this seal covers was changed.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Verify that the log is intact and that every table matches the log; exit with 3 if not."""
    with progress_shown(is_quiet=json) as on_progress:
        report = run_reading(db, lambda store: store.log.verify(seal, on_progress=on_progress))
    _store_result(db, report)
    if json:
        json_document(report.model_dump())
    else:
        _print_differences(report.differences)
        line(
            f"{'intact' if report.ok else 'NOT INTACT'}: {report.events:,} events in {report.commits:,} commits, "
            f"{sum(report.rows.values()):,} rows of {report.streams:,} streams compared"
            + (", and the seal" if report.seal_checked else "")
            + f", in {duration(report.seconds)}"
        )
        line(f"chain head  {report.chain_head}")
        line(f"state hash  {report.state_hash}")
    if not report.ok:
        note(_advice(report.differences, report.difference_count))
        raise typer.Exit(NOT_INTACT)


@app.command(rich_help_panel="Prove")
def rebuild(
    db: Db = DEFAULT_DB,
    index: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only make this index again from the whole log, for example search."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Replay the whole log, and repair table rows that differ from it; other clients can read and write meanwhile."""
    if index is not None:
        _make_index(db, index)
        return
    with progress_shown(is_quiet=json) as on_progress:
        report = run_writing(db, lambda store: store.log.rebuild(on_progress=on_progress))
    if json:
        json_document(report.model_dump())
        return
    _print_differences(report.differences)
    written = sum(report.written.values())
    repaired = ", ".join(f"{count:,} of {table}" for table, count in report.written.items() if count)
    line(
        f"{report.events:,} events of {report.streams:,} streams replayed in {duration(report.seconds)}: "
        + (f"{written:,} rows were repaired ({repaired})" if written else "every row was correct")
    )
    line(f"state hash  {report.state_hash}")


def _make_index(db: str, name: str) -> None:
    from store.indexing.checking import make_again
    from store.indexing.registry import all_indexes

    if scheme_of(db) in {"http", "https"}:
        raise Invalid("db", "a server makes its indexes itself; give the URL of the database")
    by_name = {index.name: index for index in all_indexes()}
    if name not in by_name:
        raise Invalid("index", f"{name!r} is no index; write one of {', '.join(by_name)}")
    lag = asyncio.run(make_again(dialect_of(db), by_name[name]))
    line(f"the index {name} was made again up to event {lag.position:,}")


@app.command(rich_help_panel="Prove")
def seal(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; keep it apart from the database.")],
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Write a seal of the log to a file. `verify --seal FILE` later shows whether the sealed part was changed."""
    sealed = run_reading(db, lambda store: store.log.seal(file))
    if json:
        json_document(sealed.model_dump())
        return
    line(f"sealed up to position {sealed.position}, commit {sealed.commit_id}, in {file}")
    line(f"chain head  {sealed.chain_head}")
    note(f"keep the file apart from this database; to check it later: rollbook verify --seal {file}")


def _store_result(db: str, report: VerifyReport) -> None:
    """Store the result in the database for the metrics of servers. A server does this for its own store."""
    if scheme_of(db) in {"http", "https"}:
        return
    from store.verification.last import record_at

    try:
        asyncio.run(record_at(db, report))
    except Exception as error:  # noqa: BLE001 (a damaged database may raise any error, and the report must be printed)
        note(f"the result was not stored for metrics: {error}")


def _print_differences(differences: Sequence[Difference]) -> None:
    """Print the first differences of each check, and the number of the remaining differences."""
    if not differences:
        return
    by_check: dict[str, list[Difference]] = {}
    for difference in differences:
        by_check.setdefault(difference.check, []).append(difference)
    print_table(DIFFERENCES, [difference for group in by_check.values() for difference in group[:_PRINTED]])
    for check, group in by_check.items():
        if len(group) > _PRINTED:
            line(f"… and {len(group) - _PRINTED:,} more of {check}; --json shows them")
    line()


def _advice(differences: Sequence[Difference], count: int) -> str:
    summary = f"{count:,} difference{'' if count == 1 else 's'}"
    if count > len(differences):
        summary += f", the first {len(differences):,} of them described"
    if any(difference.check in _OF_THE_LOG for difference in differences):
        return f"{summary}; the log itself is damaged: restore a backup of the database"
    if behind := [difference for difference in differences if difference.check == "sequences"]:
        from store.verification.sequences import remedy

        names = " and ".join(difference.key for difference in behind)
        return f"{summary}; the log is intact, and {names} is behind the log: {remedy(behind)}, then verify again"
    if any(difference.check == "guards" for difference in differences):
        return (
            f"{summary}; triggers or indexes are missing, or not part of the store: create or drop them as in a new"
            " store, then verify again"
        )
    if beside := sorted({difference.check for difference in differences} & _BESIDE_THE_LOG):
        advice = f"{summary}; the log is intact: delete the rows that differ from {', '.join(beside)}"
        return f"{advice}, then run `rollbook keys enforce`" if "key_policy" in beside else advice
    return f"{summary}; the log is intact: `rollbook rebuild` repairs the tables"
