"""`rollbook ui`: the dashboard of a database, read-only, without a server."""

from __future__ import annotations

import asyncio
import socket
from typing import Annotated, Final

import typer

from store.cli.options import DEFAULT_DB, Db
from store.cli.server_settings import log_as_json, tell
from store.db.url import parse
from store.errors import Invalid
from store.interface.store import Store
from store.runtime.loop_thread import new_loop
from store.server.app import build_app
from store.server.auth.keyring import KeyRing
from store.server.partitions import Partitions
from store.server.process.listener import bind, url_of
from store.server.process.serve import Server
from store.sql.store import SQLStore

app = typer.Typer()

HOST: Final = "127.0.0.1"


@app.command(rich_help_panel="Look")
def ui(
    *,
    db: Db = DEFAULT_DB,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 for any that is free.")] = 4748,
) -> None:
    """Show a database in the browser, as the dashboard of a server does, until Ctrl+C; it changes nothing."""
    url = parse(db)
    if url.path is None and url.dsn is None:
        raise Invalid("--db", f"{url.shown} is no database that could be opened here; name a file or one of Postgres")
    log_as_json("warning")
    listener = bind(HOST, port)
    told = f"rollbook shows {url.shown}, read-only, at {url_of(HOST, listener.getsockname()[1])}/ui/"
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(db, listener, told))


async def _serve(db: str, listener: socket.socket, told: str) -> None:
    async def open_partition(url: str) -> Store:
        return await SQLStore.open(url, create=False, read_only=True, beside=root)

    try:
        root = await SQLStore.open(db, create=False, read_only=True)
    except BaseException:
        listener.close()
        raise
    partitions = Partitions(root, db, open_partition)
    ring: KeyRing | None = None
    try:
        # Others of this machine reach the port too: where the database has keys, they need one.
        ring = await KeyRing.open(db)
        app = build_app(partitions, ring=ring, is_local=True, is_read_only=True)
        await Server(app, lambda: tell(told), takes_signals=True).serve([listener])
    finally:
        if ring is not None:
            await ring.close()
        await partitions.close()
        await root.close()
