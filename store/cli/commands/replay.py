"""`rollbook replay`: past rollouts are enqueued again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db
from store.cli.output.printing import json_document, line, note, printable
from store.cli.output.progress import progress_shown
from store.cli.output.tables import Column, print_table
from store.cli.output.times import duration
from store.cli.query_options import with_conditions
from store.cli.store_context import check_server, run_reading, run_writing
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.replaying import ReplayReport
    from store.replaying.queueing import ReplayedRollout

app = typer.Typer()

_INPUT_LENGTH = 60


@app.command(rich_help_panel="Work")
@with_conditions("Replay")
def replay(
    *,
    query: RolloutQuery,
    db: Db = DEFAULT_DB,
    as_queue: Annotated[bool, typer.Option("--as-queue", help="Enqueue the rollouts again. Required.")] = False,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the replay, which enqueues each rollout once.")
    ],
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Enqueue in this store, which is created if needed, instead of the same one."),
    ] = None,
    as_at: AsAt = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rollouts only.")] = False,
    json: AsJson = False,
) -> None:
    """Enqueue past rollouts again, with their inputs, resources and seeds; the same command continues after a stop."""
    from store.replaying import replay_as_queue
    from store.runtime import context

    if not as_queue:
        raise typer.BadParameter(
            "give --as-queue; ReplayStore, in Python, gives recorded rollouts to an algorithm", param_hint="--as-queue"
        )
    query = query.model_copy(update={"as_at": as_at})

    async def enqueue(source: Store, target: Store | None = None) -> ReplayReport:
        context.actor.set("cli")
        options: dict[str, Any] = {"query": query, "target": target, "dry_run": dry_run, "on_progress": show}
        return await replay_as_queue(source, name, **options)

    async def enqueue_elsewhere(source: Store) -> ReplayReport:
        from store import open_store

        assert to is not None
        await check_server(to)
        async with await open_store(to) as target:
            return await enqueue(source, target)

    with progress_shown(is_quiet=json) as show:
        if to is not None:
            report = run_reading(db, enqueue_elsewhere)
        else:
            report = run_reading(db, enqueue) if dry_run else run_writing(db, enqueue)
    if json:
        json_document(report.model_dump())
    else:
        _print(report)


def _print(report: ReplayReport) -> None:
    verb = "to enqueue" if report.is_dry_run else "enqueued"
    counts = [f"{report.enqueued:,} {verb}"]
    if report.enqueued_before:
        counts.append(f"{report.enqueued_before:,} enqueued before")
    if report.payload_removed:
        counts.append(f"{report.payload_removed:,} left out, because their input was removed")
    line(f"replay      {printable(report.name)}")
    line(f"rollouts    {report.selected:,}: {', '.join(counts)}; {duration(report.seconds)}")
    if report.by_mode:
        line(f"modes       {', '.join(f'{mode} {count:,}' for mode, count in report.by_mode.items())}")
    if report.published:
        rest = f" and {len(report.published) - 1:,} more" if len(report.published) > 1 else ""
        verb = "to publish as" if report.is_dry_run else "published as"
        line(f"resources   {verb} {printable(report.published[0])}{rest}")
    columns: list[Column[ReplayedRollout]] = [
        Column("rollout", lambda pair: pair.rollout_id),
        Column("replay", lambda pair: pair.replay_id or "-"),
        Column("mode", lambda pair: pair.mode or "-"),
        Column("resources", lambda pair: pair.resources_id or "-"),
        Column("input", lambda pair: _shortened(orjson.dumps(pair.input).decode())),
    ]
    if report.examples:
        print_table(columns, report.examples)
        if len(report.examples) < report.enqueued + report.enqueued_before:
            note(f"the first {len(report.examples)} of {report.enqueued + report.enqueued_before:,}")


def _shortened(text: str) -> str:
    return text if len(text) <= _INPUT_LENGTH else f"{text[: _INPUT_LENGTH - 1]}…"
