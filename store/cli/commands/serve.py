"""`rollbook serve`: the HTTP server of a database."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from store.cli.option_groups import with_option_groups
from store.cli.options import DEFAULT_DB, Db
from store.cli.serve_options import RunOptions, ScheduleOptions, ServerOptions, ServeSettings
from store.db.url import parse
from store.errors import Invalid

if TYPE_CHECKING:
    from store.server.process.workers import Seat

logger = logging.getLogger("store.server")

app = typer.Typer()


@app.command("store", hidden=True)
@app.command(rich_help_panel="Serve")
@with_option_groups
def serve(
    *,
    db: Db = DEFAULT_DB,
    server: ServerOptions,
    runs: RunOptions,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Refuse every change; the database may be a replica that accepts only reads."),
    ] = False,
    schedule: ScheduleOptions,
) -> None:
    """Serve a database over HTTP, in the protocol of Agent-lightning 0.3, until Ctrl+C."""
    from store.cli.server_log import log_as_json
    from store.models.prices import PriceTable
    from store.server.process.systemd import inherited_listener
    from store.wire.listener import bind

    has_operations = not read_only and parse(db).scheme != "memory"
    certificate = server.certificate
    server.quotas()
    server.base_url(port=0)
    PriceTable.read(server.prices)
    settings = ServeSettings(db, server, runs, schedule.schedule(has_operations=has_operations), read_only)
    if read_only and (runs.pipeline is not None or runs.fallback is not None):
        raise typer.BadParameter("--read-only executes no runs; leave --pipeline and --fallback out")
    # This call raises an error if the pipeline or the phase graph cannot be imported, before the server listens.
    runs.front_end()
    log_as_json(server.log_level.value)
    listener = inherited_listener()
    if listener is not None:
        settings = replace(settings, server=replace(server, host=listener.getsockname()[0]))
    _check_host(settings)
    if certificate is not None:
        certificate.check()
    url = parse(db)
    if server.workers > 1 and url.dsn is None:
        raise Invalid(
            "--workers",
            f"several processes need a Postgres database, and {url.shown} is a file, on which several processes would"
            " only wait for each other; omit the option",
        )
    _run(settings, listener or bind(settings.server.host, server.port))
    logger.info("stopped")


def _check_host(settings: ServeSettings) -> None:
    """Refuse to serve other machines while the database has no keys, unless `--insecure` is given.

    Log a warning if keys would be sent unencrypted.
    """
    from store.wire.listener import is_loopback

    server = settings.server
    if is_loopback(server.host):
        return
    if not server.insecure and not asyncio.run(_has_keys(settings.db)):
        raise Invalid(
            "--host",
            f"{server.host} is reachable from other machines, and without keys every client may read and write;"
            " create keys first (rollbook keys create), listen on 127.0.0.1, or give --insecure",
        )
    if server.certificate is None and not server.insecure:
        logger.warning("keys are sent unencrypted to %s: give --tls-cert and --tls-key", server.host)


async def _has_keys(db: str) -> bool:
    if parse(db).scheme == "memory":
        return False
    from store.server.auth.keyring import KeyRing

    ring = await KeyRing.open(db)
    await ring.close()
    return len(ring) > 0


def _run(settings: ServeSettings, listener: socket.socket) -> None:
    """Serve until the server is stopped, in this process or in several workers."""
    from store.server.process.workers import Workers

    announce_start = _announcement(settings, listener)
    if settings.server.workers > 1:
        Workers(partial(_work, settings), settings.server.workers, listener, announce_start).run()
    else:
        from store.cli.server_process import run

        run(settings, listener, on_started=announce_start)


def _announcement(settings: ServeSettings, listener: socket.socket) -> Callable[[], None]:
    """Return the function that announces that the server is ready, to people and to systemd."""
    from store.cli.server_log import announce
    from store.server.process.systemd import notify_ready
    from store.wire.listener import url_of

    endpoint = url_of(settings.server.host, listener.getsockname()[1])
    if settings.server.certificate is not None:
        endpoint = endpoint.replace("http://", "https://", 1)
    workers = f" with {settings.server.workers} workers" if settings.server.workers > 1 else ""

    def announce_start() -> None:
        announce(
            f"rollbook serves {parse(settings.db).shown} at {endpoint}{workers}\nthe dashboard is at {endpoint}/ui/"
        )
        notify_ready()

    return announce_start


def _work(settings: ServeSettings, seat: Seat) -> None:
    """Serve requests in one of several server processes."""
    from store.cli.server_log import log_as_json

    log_as_json(settings.server.log_level.value)
    # The module is imported here, because the parent process does not need it and starts its workers sooner without it.
    from store.cli.server_process import run

    run(settings, seat.listener, seat)
