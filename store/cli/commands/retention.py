"""`rollbook retention` and `archive`: removal of payload by a policy, and the same with a copy in a file."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from store.cli.option_groups import with_option_groups
from store.cli.options import DEFAULT_DB, AsJson, Db, lifetime, size
from store.cli.output.printing import byte_size, json_document, line, note, printable
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration
from store.db.url import parse

if TYPE_CHECKING:
    from store.operations import RetentionPolicy, RetentionReport

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The conditions of a policy."""

    older_than: Annotated[
        float | None,
        typer.Option(parser=lifetime, metavar="AGE", help="Only rollouts that ended at least this long ago: 30d, 12h."),
    ] = None
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help="Only rollouts with one of these statuses: succeeded,failed,cancelled."),
    ] = None
    mode: Annotated[list[str] | None, typer.Option(metavar="MODE", help="Only rollouts with one of these modes.")] = (
        None
    )
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these groups; may be repeated.")] = None
    label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Only rollouts with this label; may be repeated.")
    ] = None
    without_label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Only rollouts without this label; may be repeated.")
    ] = None
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the N rollouts of each group that were created last.")
    ] = None
    max_size: Annotated[
        int | None,
        typer.Option(
            parser=size,
            metavar="SIZE",
            help="Start with the rollouts that ended first; stop when all bodies together have this size: 10GB, 500MB.",
        ),
    ] = None

    def policy(self) -> RetentionPolicy:
        """Return the policy of these conditions."""
        # The package imports the drivers of databases, which the help of a command does not need.
        from store.operations import RetentionPolicy

        return RetentionPolicy.of(
            older_than=self.older_than,
            statuses=_words(self.status),
            modes=_words(self.mode),
            groups=tuple(self.group or ()),
            labels=tuple(self.label or ()),
            without_labels=tuple(self.without_label or ()),
            keep_last=self.keep_last,
            max_bytes=self.max_size,
        )


Vacuum = Annotated[
    bool,
    typer.Option(
        "--vacuum",
        help="Free the space at the end: SQLite rewrites the file and blocks writers; Postgres runs VACUUM.",
    ),
]

Apply = Annotated[bool, typer.Option("--apply", hidden=True, help="An older name of --yes.")]


@app.command(rich_help_panel="Keep")
@with_option_groups
def retention(
    *,
    db: Db = DEFAULT_DB,
    conditions: PolicyOptions,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the payload for ever; without it, it is only counted.")
    ] = False,
    apply: Apply = False,
    vacuum: Vacuum = False,
    json: AsJson = False,
) -> None:
    """Remove inputs, prompts and other payload of finished rollouts by a policy; statuses, rewards and tokens stay.

    All conditions must be fulfilled. The log stays verifiable, and records the policy.
    """
    from store.operations import remove_payload

    is_agreed = yes or apply
    _check(yes=is_agreed, vacuum=vacuum)
    policy = conditions.policy()
    with progress_shown(is_quiet=json) as show:
        report = asyncio.run(remove_payload(db, policy, apply=is_agreed, vacuum=vacuum, actor="cli", on_progress=show))
    if json:
        json_document(report.model_dump())
        return
    _print(report)
    if report.is_applied:
        _print_removal(db, report)
    else:
        note("nothing was removed; --yes removes this payload")


@app.command(rich_help_panel="Keep")
@with_option_groups
def archive(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new file, or the file of a stopped `archive` command.")
    ],
    db: Db = DEFAULT_DB,
    conditions: PolicyOptions,
    yes: Annotated[bool, typer.Option("--yes", help="Move the payload; without it, it is only counted.")] = False,
    apply: Apply = False,
    vacuum: Vacuum = False,
    json: AsJson = False,
) -> None:
    """Move inputs, prompts and other payload of finished rollouts into one file, which can be read as a store.

    The options select the same payload as in `rollbook retention`. The payload is removed only after the file is
    verified. The same command continues after a stop.
    """
    from store.operations import archive_payload

    is_agreed = yes or apply
    _check(yes=is_agreed, vacuum=vacuum)
    policy = conditions.policy()
    with progress_shown(is_quiet=json) as show:
        report = asyncio.run(
            archive_payload(db, file, policy, apply=is_agreed, vacuum=vacuum, actor="cli", on_progress=show)
        )
    if json:
        json_document(report.model_dump())
        return
    _print(report)
    path = printable(str(file))
    if report.seal is not None:
        _print_removal(db, report)
        line(f"archive   {path}, {byte_size(report.archive_bytes)}, verified")
        line(f"seal      {report.seal.model_dump_json()}")
        if report.rollouts_left:
            left = f"{report.rollouts_left:,} of the selected rollouts"
            note(f"{path} does not contain {left}; move them to another file")
        note(f"to read it: rollbook ui --db {printable(quote(f'sqlite:///{file}'))}")
    elif is_agreed:
        note(f"the policy selects no payload, so {path} was not written")
    else:
        note(f"nothing was moved; --yes moves this payload to {path}")


def _check(*, yes: bool, vacuum: bool) -> None:
    if vacuum and not yes:
        raise typer.BadParameter("--vacuum needs --yes")


def _words(texts: list[str] | None) -> tuple[str, ...]:
    return tuple(word.strip() for text in texts or () for word in text.split(","))


def _print(report: RetentionReport) -> None:
    line(f"policy: {report.policy}")
    line(f"rollouts  {report.rollouts:>10,}")
    line(f"bodies    {report.bodies:>10,}  {byte_size(report.body_bytes)}")
    line(f"blobs     {report.blobs:>10,}  {byte_size(report.blob_bytes)}")


def _print_removal(db: str, report: RetentionReport) -> None:
    line(
        f"removed in {duration(report.seconds)}, {report.transactions:,} transactions, the longest took"
        f" {duration(report.longest_seconds)}"
    )
    line(f"on disk   {byte_size(report.size_before)} before, {byte_size(report.size_after)} now")
    if report.events and report.size_after >= report.size_before:
        way = "`rollbook compact --full`" if parse(db).scheme == "postgresql" else "--vacuum"
        note(f"the database reuses the free space for new data; {way} returns it to the operating system")
