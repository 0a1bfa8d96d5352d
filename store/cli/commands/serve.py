"""`rollbook serve`: the HTTP server of a database."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from datetime import time
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.options import DEFAULT_DB, ConfirmResumes, Db, Fallback, OrphanChoice, Orphans, lifetime, size
from store.db.url import parse
from store.domain.statuses import UNRESPONSIVE_SECONDS
from store.errors import Invalid
from store.runtime.urls import PARTITION
from store.server.streaming.slots import MAX_STREAMS, MAX_STREAMS_PER_KEY

if TYPE_CHECKING:
    from store.cli.server_settings import ServeSettings
    from store.server.process.workers import Seat

logger = logging.getLogger("store.server")

app = typer.Typer()

_TIME_OF_DAY: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


def _interval(text: str) -> float | None:
    return None if text == "never" else lifetime(text)


def _time_of_day(text: str) -> time | None:
    if text == "never":
        return None
    found = _TIME_OF_DAY.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time of day; write 03:00, 22:30 or never")
    return time(int(found[1]), int(found[2]))


def _quota(text: str) -> tuple[str | None, dict[str, int | None]]:
    """Return the name of a partition, or None for all partitions, and the limits that are given for it."""
    name, colon, rest = text.rpartition(":")
    if colon and not PARTITION.fullmatch(name):
        raise typer.BadParameter(f"no partition can be named {name!r}; write calls=50, or run_7:calls=50")
    limits: dict[str, int | None] = {}
    for part in rest.split(","):
        kind, _, value = (each.strip() for each in part.partition("="))
        if kind not in {"events", "bytes", "calls"}:
            raise typer.BadParameter(
                f"{part.strip()!r} is not a limit; write events=5000000,bytes=20GB,calls=500, or some of these"
            )
        if kind in limits:
            raise typer.BadParameter(f"{text!r} has two limits for {kind}; give one")
        limits[kind] = None if value == "none" else _limit(kind, value)
    return name if colon else None, limits


def _limit(kind: str, text: str) -> int:
    is_number = text.isascii() and text.isdecimal()
    limit = size(text) if kind == "bytes" else int(text) if is_number else 0
    if not limit:
        example = "20GB" if kind == "bytes" else "500"
        raise typer.BadParameter(f"{text!r} is not a limit for {kind}; write {kind}={example}, or {kind}=none")
    return limit


class LogLevel(Enum):
    """The levels of the server's log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@app.command("store", hidden=True)
@app.command(rich_help_panel="Serve")
def serve(
    *,
    db: Db = DEFAULT_DB,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 chooses a free one.")] = 4747,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Allow requests from pages of this origin, * for all; may be repeated."),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(case_sensitive=False, help="With info, refused requests are logged; with debug, all requests."),
    ] = LogLevel.INFO,
    max_body_bytes: Annotated[
        int, typer.Option(metavar="BYTES", min=1024, help="The maximum size of a request body.")
    ] = 32 * 1024 * 1024,
    max_streams: Annotated[
        int, typer.Option(metavar="N", min=0, help="The maximum number of open streams of each server process.")
    ] = MAX_STREAMS,
    max_streams_per_key: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="The maximum number of open streams of one key in each process."),
    ] = MAX_STREAMS_PER_KEY,
    scan_debounce: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="The minimum time between two checks for overdue attempts.")
    ] = 10.0,
    quota: Annotated[
        list[Any] | None,
        typer.Option(
            parser=_quota,
            metavar="[NAME:]events=N,bytes=SIZE,calls=N",
            help="The limits of each partition, or of the partition NAME: events, size on disk, and calls per second of"
            " each process; may be repeated.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve other machines without requiring keys: every client has full access."),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=64, help="The number of server processes on this port; more than 1 needs Postgres."
        ),
    ] = 1,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve https with this certificate (PEM); needs --tls-key.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of the certificate (PEM, not encrypted).")
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:PIPELINE",
            help="Also execute runs in the server, with this Pipeline; meant for one machine.",
        ),
    ] = None,
    orphans: Orphans = OrphanChoice.RESUME,
    confirm_side_effects: ConfirmResumes = False,
    fallback: Fallback = None,
    phase_graph: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:GRAPH|none",
            help="The phase graph of posted runs; by default that of --pipeline, or else of the trading front end.",
        ),
    ] = None,
    unresponsive_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="The maximum time without a sign of life of a posted run."),
    ] = UNRESPONSIVE_SECONDS,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Refuse every change; the database may be a replica that accepts only reads."),
    ] = False,
    verify_sample_every: Annotated[
        Any,
        typer.Option(parser=_interval, metavar="TIME|never", help="The interval between verifications of a sample."),
    ] = "1h",
    verify_at: Annotated[
        Any,
        typer.Option(
            parser=_time_of_day, metavar="HH:MM|never", help="The local time of the daily verification of everything."
        ),
    ] = "03:00",
    backup_every: Annotated[
        Any,
        typer.Option(parser=_interval, metavar="TIME|never", help="The interval between backups; needs --backup-dir."),
    ] = "never",
    backup_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", exists=True, file_okay=False, writable=True, help="The directory of scheduled backups."
        ),
    ] = None,
    backup_keep: Annotated[
        int, typer.Option(metavar="N", min=1, help="The number of scheduled backups of each partition that are kept.")
    ] = 7,
    retention_every: Annotated[
        Any,
        typer.Option(
            parser=_interval, metavar="TIME|never", help="The interval between removals of payload; needs --retention."
        ),
    ] = "never",
    retention: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file with the conditions for the removal of payload; see docs/retention.md."
        ),
    ] = None,
    compress_every: Annotated[
        Any,
        typer.Option(parser=_interval, metavar="TIME|never", help="The interval between compressions of new events."),
    ] = "never",
    archive_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            writable=True,
            help="The directory in which the Admin page makes archives.",
        ),
    ] = None,
) -> None:
    """Serve a database over HTTP, in the protocol of Agent-lightning 0.3, until Ctrl+C."""
    from store.cli.server_settings import ServeSettings, announce, log_as_json, quotas_of, schedule_of
    from store.server.auth.tls import Certificate
    from store.server.process.systemd import inherited_listener, notify_ready
    from store.server.process.workers import Workers
    from store.wire.listener import bind, url_of

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("give --tls-cert and --tls-key, or neither")
    settings = ServeSettings(
        *(db, host, port, cors_origin or (), log_level.value, max_body_bytes, scan_debounce, insecure, workers),
        certificate=None if tls_cert is None or tls_key is None else Certificate(tls_cert, tls_key),
        pipeline=pipeline,
        pipeline_options={
            "orphans": orphans.value,
            "confirm_side_effects": confirm_side_effects,
            "fallback_dir": fallback,
        },
        fallback=fallback,
        phase_graph=phase_graph,
        unresponsive_seconds=unresponsive_seconds,
        max_streams=max_streams,
        max_streams_per_key=max_streams_per_key,
        read_only=read_only,
        quotas=quotas_of(quota or ()),
        schedule=schedule_of(
            sample_seconds=verify_sample_every,
            verify_at=verify_at,
            backup_seconds=backup_every,
            backup_dir=backup_dir,
            backup_keep=backup_keep,
            retention_seconds=retention_every,
            retention=retention,
            compress_seconds=compress_every,
            archive_dir=archive_dir,
            takes_options=not read_only and parse(db).scheme != "memory",
        ),
    )
    if read_only and (pipeline is not None or fallback is not None):
        raise typer.BadParameter("--read-only executes no runs; leave --pipeline and --fallback out")
    # This call raises an error if the pipeline or the phase graph cannot be imported, before the server listens.
    settings.front_end()
    log_as_json(settings.log_level)
    url = parse(settings.db)
    listener = inherited_listener()
    if listener is not None:
        settings = replace(settings, host=listener.getsockname()[0])
    _check_host(settings)
    if settings.certificate is not None:
        settings.certificate.check()
    if settings.workers > 1 and url.dsn is None:
        raise Invalid(
            "--workers",
            f"several processes need a Postgres database, and {url.shown} is a file, on which several processes would"
            " only wait for each other; omit the option",
        )
    listener = listener or bind(settings.host, settings.port)
    endpoint = url_of(settings.host, listener.getsockname()[1])
    if settings.certificate is not None:
        endpoint = endpoint.replace("http://", "https://", 1)
    text = f"rollbook serves {url.shown} at {endpoint}"
    if settings.workers > 1:
        text = f"{text} with {settings.workers} workers"

    def announced() -> None:
        announce(f"{text}\nthe dashboard is at {endpoint}/ui/")
        notify_ready()

    if settings.workers > 1:
        Workers(partial(_work, settings), settings.workers, listener, announced).run()
    else:
        from store.cli.server_process import run

        run(settings, listener, on_started=announced)
    logger.info("stopped")


def _check_host(settings: ServeSettings) -> None:
    """Refuse to serve other machines while the database has no keys, unless `--insecure` is given.

    Log a warning if keys would be sent unencrypted.
    """
    from store.wire.listener import is_loopback

    if is_loopback(settings.host):
        return
    if not settings.insecure and not asyncio.run(_has_keys(settings.db)):
        raise Invalid(
            "--host",
            f"{settings.host} is reachable from other machines, and without keys every client may read and write;"
            " create keys first (rollbook keys create), listen on 127.0.0.1, or give --insecure",
        )
    if settings.certificate is None and not settings.insecure:
        logger.warning("keys are sent unencrypted to %s: give --tls-cert and --tls-key", settings.host)


async def _has_keys(db: str) -> bool:
    if parse(db).scheme == "memory":
        return False
    from store.server.auth.keyring import KeyRing

    ring = await KeyRing.open(db)
    await ring.close()
    return len(ring) > 0


def _work(settings: ServeSettings, seat: Seat) -> None:
    """Serve requests in one of several server processes."""
    from store.cli.server_settings import log_as_json

    log_as_json(settings.log_level)
    # The module is imported here, because the parent process does not need it and starts its workers sooner without it.
    from store.cli.server_process import run

    run(settings, seat.listener, seat)
