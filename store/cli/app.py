"""What a user may type: every command, its options and its help. What each does lies in the module it calls.

Those modules import the store, which takes longer than to print help or to refuse a mistyped option; so they are
imported by the commands, not here.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from store.cli import annotation_commands, example_commands, folder_commands, run_commands, train_commands
from store.cli.errors import Commands
from store.cli.key_commands import keys
from store.cli.options import (
    DEFAULT_DB,
    AnyOf,
    AsAt,
    AsJson,
    Db,
    Descending,
    IdContains,
    Limit,
    Offset,
    OfRollout,
    RolloutId,
    RolloutStatuses,
    Sort,
    WorkerStatuses,
)

_LOOK, _RUNS, _PROVE, _MAKE, _SERVE, _TRAIN = "Look", "Runs", "Prove", "Make", "Serve", "Train"

app = typer.Typer(
    cls=Commands,
    help="The rollout store of a training run: see what is in it and how it came to be, and prove it.",
    epilog="Exit codes: 0 ok, 1 error, 2 usage, 3 the database is not what its log says, 4 unavailable, 5 not found.",
    no_args_is_help=True,
    add_completion=False,
    # A bug's traceback is shown as Python writes it, without the values of all variables.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ls = typer.Typer(help="List what the store holds, one kind at a time.", no_args_is_help=True)
app.add_typer(ls, name="ls", rich_help_panel=_LOOK)
partitions = typer.Typer(help="The partitions of a database, which never mix.", no_args_is_help=True)
app.add_typer(partitions, name="partitions", rich_help_panel=_SERVE)
app.add_typer(keys, name="keys", rich_help_panel=_SERVE)


class LogLevel(Enum):
    """How much a server tells."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _print_version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        typer.echo(f"rollbook {metadata.version('rollbook')}")
        raise typer.Exit


@app.callback()
def rollbook(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    del version


# -- look ------------------------------------------------------------------------------------------------------------


@ls.command("rollouts")
def ls_rollouts(
    *,
    db: Db = DEFAULT_DB,
    status: RolloutStatuses = None,
    id_in: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="With exactly this id; may be repeated.")
    ] = None,
    id_contains: IdContains = None,
    any_of: AnyOf = False,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """Rollouts, each with its latest attempt, in the order they were created."""
    from store.cli.commands import ls as listing

    page = listing.Page(sort, desc, limit, offset, as_at, json)
    listing.rollouts(db, page, status_in=status, id_in=id_in, id_contains=id_contains, any_of=any_of)


@ls.command("attempts")
def ls_attempts(
    *,
    rollout: OfRollout,
    db: Db = DEFAULT_DB,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """The attempts of a rollout."""
    from store.cli.commands import ls as listing

    listing.attempts(db, listing.Page(sort, desc, limit, offset, as_at, json), rollout)


@ls.command("spans")
def ls_spans(
    *,
    rollout: OfRollout,
    db: Db = DEFAULT_DB,
    attempt: Annotated[
        str | None, typer.Option(metavar="ID", help="Of this attempt: its id or the beginning, its number, or latest.")
    ] = None,
    trace_id: Annotated[str | None, typer.Option(metavar="ID", help="Of this trace.")] = None,
    trace_id_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    span_id: Annotated[str | None, typer.Option(metavar="ID", help="With this id.")] = None,
    span_id_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    parent_id: Annotated[str | None, typer.Option(metavar="ID", help="Right below this span.")] = None,
    parent_id_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="With this name.")] = None,
    name_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    any_of: AnyOf = False,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """The spans of a rollout, by the numbers the store gave them."""
    from store.cli.commands import ls as listing

    conditions = {
        "trace_id": trace_id,
        "trace_id_contains": trace_id_contains,
        "span_id": span_id,
        "span_id_contains": span_id_contains,
        "parent_id": parent_id,
        "parent_id_contains": parent_id_contains,
        "name": name,
        "name_contains": name_contains,
    }
    page = listing.Page(sort, desc, limit, offset, as_at, json)
    listing.spans(db, page, rollout, attempt, conditions, any_of=any_of)


@ls.command("resources")
def ls_resources(
    *,
    db: Db = DEFAULT_DB,
    resources_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="With exactly this id.")] = None,
    id_contains: IdContains = None,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """The current version of every set of resources, in the order the sets were first published."""
    from store.cli.commands import ls as listing

    listing.resources(
        db, listing.Page(sort, desc, limit, offset, as_at, json), resources_id=resources_id, id_contains=id_contains
    )


@ls.command("workers")
def ls_workers(
    *,
    db: Db = DEFAULT_DB,
    status: WorkerStatuses = None,
    id_contains: IdContains = None,
    any_of: AnyOf = False,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """Whoever claimed rollouts, in the order they were first seen."""
    from store.cli.commands import ls as listing

    page = listing.Page(sort, desc, limit, offset, as_at, json)
    listing.workers(db, page, status_in=status, id_contains=id_contains, any_of=any_of)


@app.command(rich_help_panel=_LOOK)
def show(
    *,
    given: Annotated[
        str, typer.Argument(metavar="ID", help="A rollout, resources or a worker: its id, or the beginning.")
    ],
    db: Db = DEFAULT_DB,
    at: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="As it stood after its own event number N, as `history` counts."),
    ] = None,
    as_at: AsAt = None,
    full: Annotated[bool, typer.Option("--full", help="Leave nothing out on a terminal either.")] = False,
    json: AsJson = False,
) -> None:
    """Show a rollout with its attempts, spans and rewards; or resources, or a worker."""
    if at is not None and as_at is not None:
        raise typer.BadParameter("give --at or --as-at, not both")
    from store.cli.commands import show as showing

    showing.show(db, given, at=at, as_at=as_at, full=full, json=json)


@app.command(rich_help_panel=_LOOK)
def history(*, rollout: RolloutId, db: Db = DEFAULT_DB, as_at: AsAt = None, json: AsJson = False) -> None:
    """Tell what happened to a rollout: every event with its number, time, type, actor and cause."""
    from store.cli.commands import history as telling

    telling.history(db, rollout, as_at, json=json)


annotation_commands.add_to(app, _LOOK)


@app.command(rich_help_panel=_LOOK)
def tail(
    *,
    db: Db = DEFAULT_DB,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl+C.")] = False,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on after this event; --json shows the cursor of each.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", "-n", metavar="N", min=0, help="Begin with the last N events.")
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only events of this type, as attempt.started; may be repeated."),
    ] = None,
    rollout: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events of this rollout; the beginning of its id will do.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Print the log of the whole store, event by event, from its beginning. With --json, JSON lines."""
    from store.cli.commands import history as telling

    telling.tail(db, after=after, follow=follow, last=last, types=types, rollout=rollout, json=json)


@app.command(rich_help_panel=_LOOK)
def stats(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """Count what is there, what waits, and what it takes on disk; of a server's store all but its log and disk."""
    from store.cli.commands import stats as counting

    counting.stats(db, json=json)


# -- runs ------------------------------------------------------------------------------------------------------------


run_commands.add_to(app, _RUNS)


# -- prove -----------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel=_PROVE)
def verify(
    db: Db = DEFAULT_DB,
    seal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Also prove that nothing before this seal changed."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Prove that the log is whole and that every table is what the log says; exit with 3 if not."""
    from store.cli.commands import verify as proving

    proving.verify(db, seal, json=json)


@app.command(rich_help_panel=_PROVE)
def seal(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, to be kept where the database is not.")],
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Write the head of the log to a file, against which `verify --seal FILE` checks it later."""
    from store.cli.commands import verify as proving

    proving.seal(db, file, json=json)


@app.command(rich_help_panel=_PROVE)
def rebuild(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """Fold the whole log anew and mend the rows that differ, while others read and write."""
    from store.cli.commands import verify as proving

    proving.rebuild(db, json=json)


# -- make ------------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel=_MAKE)
def demo(
    *,
    db: Db = DEFAULT_DB,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the queries chosen and the rankings tried.")] = 0,
    runners: Annotated[int, typer.Option(metavar="N", min=2, help="How many processes work; one is killed.")] = 4,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Ask and learn without end, until Ctrl+C; nothing is killed.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tune a search engine over Python's own documentation, killing a runner on the way. Two minutes, no network.

    Stopped or killed before its end, it goes on where it was.
    """
    from store.cli.commands import demo as making

    raise typer.Exit(making.demo(db, seed=seed, runners=runners, continuous=continuous, quiet=quiet))


@app.command(rich_help_panel=_MAKE)
def migrate(
    db: Db = DEFAULT_DB,
    app_role: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let this Postgres role use the store, but not change its log.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Make an empty store, or bring an older one, with all its partitions, up to this version."""
    from store.cli.commands import demo as making

    making.migrate(db, app_role, json=json)


# -- serve -----------------------------------------------------------------------------------------------------------


@app.command("store", hidden=True)
@app.command(rich_help_panel=_SERVE)
def serve(
    *,
    db: Db = DEFAULT_DB,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 for any that is free.")] = 4747,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Pages of this origin may call it, * for all; may be repeated."),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="info tells of refused requests, debug of all.")
    ] = LogLevel.INFO,
    max_body_bytes: Annotated[int, typer.Option(metavar="BYTES", min=1024, help="The largest request body.")] = 32
    * 1024
    * 1024,
    scan_debounce: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="The least time between two looks of the watchdog.")
    ] = 10.0,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen beyond this machine without keys, for everybody who reaches the port."),
    ] = False,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="Processes that serve the port together; on Postgres.")
    ] = 1,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve https with this certificate (PEM); needs --tls-key.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (PEM), not encrypted.")] = None,
) -> None:
    """Serve a database over HTTP, in the protocol of Agent-lightning 0.3, until Ctrl+C."""
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("give --tls-cert and --tls-key, or neither")
    from store.cli import serve as serving
    from store.server.auth.tls import Certificate

    certificate = None if tls_cert is None or tls_key is None else Certificate(tls_cert, tls_key)

    serving.serve(
        serving.Settings(
            *(db, host, port, cors_origin or (), log_level.value, max_body_bytes, scan_debounce, insecure, workers),
            certificate,
        )
    )


@app.command(rich_help_panel=_LOOK)
def ui(
    *,
    db: Db = DEFAULT_DB,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 for any that is free.")] = 4748,
) -> None:
    """Show a database in the browser, as the dashboard of a server does, until Ctrl+C; it changes nothing."""
    from store.cli.commands import ui as looking

    looking.look(db, port)


@partitions.command("create")
def partitions_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and _; at most 40.")],
    db: Db = DEFAULT_DB,
) -> None:
    """Make a partition, if there is none of that name, and print its URL."""
    from store.cli import serve as serving

    serving.create_partition(db, name)


@partitions.command("ls")
def partitions_ls(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """List the partitions of a database."""
    from store.cli import serve as serving

    serving.list_partitions(db, json=json)


train_commands.add_to(app, _TRAIN)
example_commands.add_to(app, _TRAIN)
folder_commands.add_to(app, _RUNS)
