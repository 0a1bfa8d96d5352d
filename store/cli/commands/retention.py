"""`rollbook retention`: removal of the payload of finished rollouts by a policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, lifetime, size
from store.cli.output.printing import byte_size, json_document, line, note, working
from store.cli.output.times import duration

if TYPE_CHECKING:
    from store.operations import RetentionReport

app = typer.Typer()


def _several(given: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for text in given or () for part in text.split(","))


@app.command(rich_help_panel="Keep")
def retention(
    *,
    db: Db = DEFAULT_DB,
    older_than: Annotated[
        float | None,
        typer.Option(parser=lifetime, metavar="AGE", help="Only rollouts that ended at least this long ago: 30d, 12h."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help="Only rollouts with one of these statuses: succeeded,failed,cancelled."),
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(metavar="MODE", help="Only rollouts with one of these modes.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these groups; may be repeated.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Only rollouts with this label; may be repeated.")
    ] = None,
    without_label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Only rollouts without this label; may be repeated.")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the N rollouts of each group that were created last.")
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(
            parser=size,
            metavar="SIZE",
            help="Start with the rollouts that ended first; stop when all bodies together have this size: 10GB, 500MB.",
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Remove the payload; without it, it is only counted.")] = False,
    vacuum: Annotated[
        bool,
        typer.Option(
            "--vacuum",
            help="Free the space at the end: SQLite rewrites the file and blocks writers; Postgres runs VACUUM.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Remove inputs, prompts and other payload of finished rollouts by a policy; statuses, rewards and tokens stay.

    All conditions must be fulfilled. The log stays verifiable, and records the policy.
    """
    # The package imports the drivers of databases, which the help of this command does not need.
    from store.operations import RetentionPolicy, remove_payload

    if vacuum and not apply:
        raise typer.BadParameter("--vacuum needs --apply")
    policy = RetentionPolicy.of(
        older_than=older_than,
        statuses=_several(status),
        modes=_several(mode),
        groups=tuple(group or ()),
        labels=tuple(label or ()),
        without_labels=tuple(without_label or ()),
        keep_last=keep_last,
        max_bytes=max_size,
    )
    with working("removing payload" if apply else "counting payload"):
        report = asyncio.run(remove_payload(db, policy, apply=apply, vacuum=vacuum, actor="cli"))
    if json:
        json_document(report.model_dump())
        return
    _print(report)


def _print(report: RetentionReport) -> None:
    line(f"policy: {report.policy}")
    line(f"rollouts  {report.rollouts:>10,}")
    line(f"bodies    {report.bodies:>10,}  {byte_size(report.body_bytes)}")
    line(f"blobs     {report.blobs:>10,}  {byte_size(report.blob_bytes)}")
    if not report.is_applied:
        note("nothing was removed; --apply removes this payload")
        return
    line(
        f"removed in {duration(report.seconds)}, {report.transactions:,} transactions, the longest took"
        f" {duration(report.longest_seconds)}"
    )
    line(f"on disk   {byte_size(report.size_before)} before, {byte_size(report.size_after)} now")
    if report.events and report.size_after >= report.size_before:
        note("the database reuses the free space for new data; on SQLite, --vacuum returns it to the operating system")
