"""`rollbook rescore` runs a version of a reward function over past rollouts, and compares it with recorded rewards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli.errors import FAILED
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import heading, json_document, line, note, printable
from store.cli.output.progress import progress_shown
from store.cli.output.tables import Column, print_table
from store.cli.output.times import duration
from store.cli.query_options import with_conditions
from store.cli.store_context import check_server
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.rescoring import RescoreReport
    from store.rescoring.report import ChangedScore, CurvePoint

_LISTED: Final = 10

app = typer.Typer()


@app.command(rich_help_panel="Work")
@with_conditions("Score")
def rescore(
    *,
    query: RolloutQuery,
    db: Db = DEFAULT_DB,
    reward: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION@VERSION",
            help="The function and the version of its values, for example rewards:helpful@v2.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the reward; by default that of the function.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The number of processes; by default one per core.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, help="The calls of an async function that run at once per process.")
    ] = 8,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="The longest time of a call; a longer one is a failure.")
    ] = 60.0,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=-1, help="Look at N rollouts at most.")] = -1,
    sample_twice: Annotated[
        int, typer.Option(metavar="N", min=0, help="Score N rollouts twice, to see whether the function is random.")
    ] = 20,
    retry_failures: Annotated[
        bool, typer.Option("--retry-failures", help="Call the function again where it failed before.")
    ] = False,
    changed_code: Annotated[
        bool, typer.Option("--changed-code", help="Continue a version although its code has changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rollouts only.")] = False,
    json: AsJson = False,
) -> None:
    """Run a reward function over past rollouts; the values are recorded under a version, and compared."""
    from store.rescoring import rescore
    from store.runtime import context

    async def work() -> RescoreReport:
        await check_server(db)
        context.actor.set("cli")
        return await rescore(
            db,
            reward,
            query=query.model_copy(update={"limit": limit}),
            name=name,
            processes=processes,
            concurrency=concurrency,
            timeout=timeout,
            sample_twice=sample_twice,
            retry_failures=retry_failures,
            allow_changed_code=changed_code,
            dry_run=dry_run,
            on_progress=show,
        )

    with progress_shown(is_quiet=json) as show:
        report = asyncio.run(work())
    if json:
        json_document(report.model_dump())
    else:
        _print(report)
    if report.failed or report.conflicts:
        note(f"{report.failed + report.conflicts:,} rollouts got no value; --retry-failures calls the function again")
        raise typer.Exit(FAILED)


def _print(report: RescoreReport) -> None:
    code = "" if report.code_sha256 is None else f", code {report.code_sha256[:12]}"
    line(f"reward      {printable(report.reward)}{code}")
    verb = "to score" if report.is_dry_run else "scored"
    counts = [
        f"{report.scored:,} {verb}",
        *_counted(report.failed, "failed"),
        *_counted(report.conflicts, "with another value from another process"),
        *_counted(report.scored_before, "scored before"),
        *_counted(report.failed_before, "failed before (--retry-failures calls the function again)"),
        *_counted(report.not_ended, "not ended"),
    ]
    line(f"rollouts    {report.selected:,}: {', '.join(counts)}; {duration(report.seconds)}")
    for kind, count in report.failures_by_type.items():
        example = next(failure for failure in report.failures if failure.type == kind)
        line(f"failed      {count:,} {printable(kind)}, {example.rollout_id}: {printable(example.message)}")
    checked = report.determinism
    if checked.different:
        line(f"random      {checked.different} of {checked.rollouts} rollouts got another value the second time")
        _print_changes(checked.examples, checked.different, "first", "second")
    elif checked.rollouts:
        line(f"random      no: {checked.rollouts} rollouts got the same value twice")
    _print_comparison(report)


def _counted(count: int, what: str) -> list[str]:
    return [f"{count:,} {what}"] if count else []


def _print_comparison(report: RescoreReport) -> None:
    difference = report.difference
    if difference is None:
        return
    interval = "" if difference.low is None else f", 95 % interval {difference.low:+.4g} to {difference.high:+.4g}"
    line(f"mean        {difference.recorded:.4g} before, {difference.scored:.4g} now, {difference.rollouts:,} rollouts")
    line(f"difference  {difference.mean:+.4g}{interval}")
    heading("By step" if report.by_step else "In the order of creation")
    print_table(_curve("step" if report.by_step else "part"), report.curve)
    if report.sign_changes:
        heading(f"Another sign: {report.sign_changes:,} rollouts")
        _print_changes(report.sign_changed, report.sign_changes, "before", "now")


def _print_changes(changes: list[ChangedScore], count: int, before: str, after: str) -> None:
    columns: list[Column[ChangedScore]] = [
        Column("rollout", lambda change: change.rollout_id),
        Column(before, lambda change: _number(change.before)),
        Column(after, lambda change: _number(change.after)),
    ]
    print_table(columns, changes[:_LISTED])
    if count > _LISTED:
        note(f"{_LISTED} of {count:,}; --json lists up to 1,000")


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:g}"


def _curve(title: str) -> list[Column[CurvePoint]]:
    return [
        Column(title, _point),
        Column("rollouts", lambda point: f"{point.rollouts}", right=True),
        Column("before", lambda point: f"{point.recorded:.4g}", right=True),
        Column("now", lambda point: f"{point.scored:.4g}", right=True),
        Column("difference", lambda point: f"{point.scored - point.recorded:+.4g}", right=True),
    ]


def _point(point: CurvePoint) -> str:
    return f"{point.step}" if point.mode is None else f"{point.mode} {point.step}"
