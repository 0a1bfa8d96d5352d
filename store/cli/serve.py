"""`rollbook serve`, and the partitions it serves."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from store import open_store
from store.cli.printing import json_document, line
from store.db.schema import postgres, sqlite
from store.db.url import DEFAULT_PARTITION, PARTITION, StoreURL, parse
from store.errors import Invalid
from store.interface import Store
from store.journal.home import new_loop
from store.server.app import build_app
from store.server.listening import bind, is_loopback, url_of
from store.server.middleware import request_id
from store.server.partitions import Partitions, with_partition
from store.server.serving import Server

logger = logging.getLogger("store.server")

_FILES: Final = 65_536
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


def serve(settings: Settings) -> None:
    """Serve a database until Ctrl+C or SIGTERM.

    Raises:
        Invalid: the host is beyond this machine, or none of its addresses.
        PortTaken: something listens there; the text names it.
    """
    if not settings.insecure and not is_loopback(settings.host):
        raise Invalid(
            "--host",
            f"{settings.host} is reached from other machines, and whoever reaches the server may read and write; "
            "listen on 127.0.0.1, or say --insecure",
        )
    _log_as_json(settings.log_level)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    listener = bind(settings.host, settings.port)
    debounce = settings.scan_debounce_seconds

    async def open_partition(url: str) -> Store:
        return await open_store(url, scan_debounce_seconds=debounce, create=False)

    url = parse(settings.db)
    is_private = url.scheme == "memory"
    try:
        root = await open_store(settings.db, scan_debounce_seconds=debounce)
    except BaseException:
        listener.close()
        raise
    partitions = Partitions(root, None if is_private else settings.db, open_partition)
    try:
        app = build_app(partitions, cors_origins=settings.cors_origins, max_body_bytes=settings.max_body_bytes)
        endpoint = url_of(settings.host, listener.getsockname()[1])
        _allow_many_sockets()
        _tune_collector()
        told = f"rollbook serves {url.shown} at {endpoint}"
        await Server(app, lambda: line(told), takes_signals=True).serve([listener])
    finally:
        await partitions.close()
        await root.close()
    logger.info("stopped")


def _allow_many_sockets() -> None:
    # Systems give a program 1,024 files unless it asks for more, and every runner holds a connection or two.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tune_collector() -> None:
    # What is there now stays; and a full collection in the middle of a request is what its client notices.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


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


def _log_as_json(level: str) -> None:
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

    async def create() -> None:
        await (await open_store(url)).close()

    asyncio.run(create())
    line(parse(url).shown)


def list_partitions(db: str, *, json: bool) -> None:
    """Print the names of a database's partitions."""
    names = asyncio.run(_names(parse(db)))
    if json:
        json_document(names)
        return
    for name in names:
        line(name)


async def _names(url: StoreURL) -> list[str]:
    if url.dsn is not None:
        async with postgres.connected(url.options.get("direct", url.dsn)) as connection:
            return sorted(schema.removeprefix(postgres.PREFIX) for schema in await postgres.partitions(connection))
    if url.path is None:
        raise Invalid("--db", "a memory:// store has no partitions; name a file or a Postgres database")
    return await asyncio.to_thread(_names_of_files, parse(with_partition(url.text, DEFAULT_PARTITION)))


def _names_of_files(main: StoreURL) -> list[str]:
    assert main.path is not None  # a file's
    candidates = {DEFAULT_PARTITION: main.path}
    for path in main.path.parent.glob(f"{main.path.stem}.*.db"):
        name = path.name.removeprefix(f"{main.path.stem}.").removesuffix(".db")
        if PARTITION.fullmatch(name):
            candidates[name] = path
    return sorted(name for name, path in candidates.items() if path.is_file() and sqlite.holds_store(path))
