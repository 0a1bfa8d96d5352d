"""`rollbook ui`: the read-only dashboard of a database."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli.options import DEFAULT_DB, Db, Prices
from store.db.url import parse
from store.errors import Invalid

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models.prices import PriceTable
    from store.server.auth.keyring import KeyRing

app = typer.Typer()

HOST: Final = "127.0.0.1"


@app.command(rich_help_panel="Look")
def ui(
    *,
    db: Db = DEFAULT_DB,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 chooses a free one.")] = 4749,
    prices: Prices = None,
) -> None:
    """Serve the read-only dashboard of a database on this machine, until Ctrl+C."""
    from store.cli.server_log import log_as_json
    from store.models.prices import PriceTable
    from store.runtime.loop_thread import new_loop
    from store.wire.listener import bind, url_of

    url = parse(db)
    if url.path is None and url.dsn is None:
        raise Invalid("--db", f"{url.shown} is not a local database; name a file or a Postgres database")
    table = PriceTable.read(prices)
    log_as_json("warning")
    listener = bind(HOST, port)
    text = f"rollbook shows {url.shown}, read-only, at {url_of(HOST, listener.getsockname()[1])}/ui/"
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(db, listener, text, table))


async def _serve(db: str, listener: socket.socket, text: str, prices: PriceTable) -> None:
    from store.cli.example_parts import front_end
    from store.cli.server_log import announce
    from store.server.app import build_app
    from store.server.auth.keyring import KeyRing
    from store.server.indexes import filled_indexes
    from store.server.partitions import Partitions
    from store.server.process.serve import Server
    from store.sql.store import SQLStore

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
        # Other users of this machine can reach the port, so the server requires a key if the database has keys.
        ring = await KeyRing.open(db, read_only=True)
        app = build_app(partitions, ring=ring, front_end=front_end(), is_local=True, is_read_only=True, prices=prices)
        async with filled_indexes(partitions):
            await Server(app, lambda: announce(text), takes_signals=True).serve([listener])
    finally:
        if ring is not None:
            await ring.close()
        await partitions.close()
        await root.close()
