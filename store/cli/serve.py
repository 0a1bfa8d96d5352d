"""`rollbook serve`, and the partitions it serves."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import orjson

from store.cli.output.printing import json_document, line
from store.db.url import PARTITION, parse, with_partition
from store.errors import Invalid
from store.server.auth.tls import Certificate
from store.server.process.listener import bind, is_loopback, url_of
from store.server.process.workers import Seat, Workers
from store.server.request_ids import request_id

logger = logging.getLogger("store.server")

_PLAIN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server was told."""

    db: str
    host: str
    port: int
    cors_origins: Sequence[str]
    log_level: str
    max_body_bytes: int
    scan_debounce_seconds: float
    insecure: bool
    workers: int = 1
    certificate: Certificate | None = None


def serve(settings: Settings) -> None:
    """Serve a database until Ctrl+C or SIGTERM.

    Raises:
        Invalid: the host is beyond this machine, where keys are needed, or none of its addresses; or the certificate
            cannot be used.
        PortTaken: something listens there; the text names it.
    """
    log_as_json(settings.log_level)
    url = parse(settings.db)
    _check_host(settings)
    if settings.certificate is not None:
        settings.certificate.check()
    if settings.workers > 1 and url.dsn is None:
        raise Invalid(
            "--workers",
            f"several processes need a Postgres database, and {url.shown} is none: one process commits the calls of all"
            " clients of a file together, several would take turns; leave the option out",
        )
    listener = bind(settings.host, settings.port)
    endpoint = url_of(settings.host, listener.getsockname()[1])
    if settings.certificate is not None:
        endpoint = endpoint.replace("http://", "https://", 1)
    told = f"rollbook serves {url.shown} at {endpoint}"
    if settings.workers > 1:
        told = f"{told} with {settings.workers} workers"
        Workers(partial(_work, settings), settings.workers, listener, partial(tell, told)).run()
    else:
        from store.cli.commands import serve as serving

        serving.run(settings, listener, on_started=partial(tell, told))
    logger.info("stopped")


def _check_host(settings: Settings) -> None:
    """Refuse to be reached from other machines without keys, unless that is what was asked for."""
    if is_loopback(settings.host):
        return
    if not settings.insecure and not asyncio.run(_has_keys(settings.db)):
        raise Invalid(
            "--host",
            f"{settings.host} is reached from other machines, and whoever reaches the server may read and write; make"
            " keys first (rollbook keys create), listen on 127.0.0.1, or say --insecure",
        )
    if settings.certificate is None and not settings.insecure:
        logger.warning("keys are sent in the clear to %s: give --tls-cert and --tls-key", settings.host)


async def _has_keys(db: str) -> bool:
    if parse(db).scheme == "memory":
        return False
    from store.server.auth.keyring import KeyRing

    ring = await KeyRing.open(db)
    await ring.close()
    return len(ring) > 0


def tell(text: str) -> None:
    """Print a line that whoever started the server waits for."""
    line(text)
    # Whoever reads it through a pipe waits for it.
    sys.stdout.flush()


def _work(settings: Settings, seat: Seat) -> None:
    """Be one of several processes."""
    log_as_json(settings.log_level)
    # Not at the top: the parent needs none of it, and its workers begin when it has begun.
    from store.cli.commands import serve as serving

    serving.run(settings, seat.listener, seat)


# -- logs ------------------------------------------------------------------------------------------------------------


class _JsonLines(logging.Formatter):
    """One JSON document per record: when, how grave, what, for which request; never what users sent."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (own := request_id.get()) is not None:
            entry["request_id"] = own
        entry |= {name: value for name, value in vars(record).items() if name not in _PLAIN_FIELDS}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def log_as_json(level: str) -> None:
    """Log from this level on, each record as one line of JSON on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("store").setLevel(level.upper())


# -- partitions ------------------------------------------------------------------------------------------------------


def create_partition(db: str, name: str) -> None:
    """Make a partition of a database, if there is none of that name, and print its URL."""
    if not PARTITION.fullmatch(name):
        raise Invalid("name", f"{name!r} must match {PARTITION.pattern}")
    url = with_partition(db, name)
    if parse(url).scheme == "memory":
        raise Invalid("--db", "a memory:// store has no partitions; name a file or a Postgres database")

    from store import open_store

    async def create() -> None:
        await (await open_store(url)).close()

    asyncio.run(create())
    line(parse(url).shown)


def list_partitions(db: str, *, json: bool) -> None:
    """Print the names of a database's partitions."""
    from store.db.schema import partitions

    names = asyncio.run(partitions.names(db))
    if json:
        json_document(names)
        return
    for name in names:
        line(name)
