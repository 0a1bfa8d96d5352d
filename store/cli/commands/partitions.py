"""`rollbook partitions`: the partitions of a database, which are separate stores."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import byte_size, json_document, line, note
from store.cli.store_context import check_server
from store.db.url import parse, with_partition
from store.errors import Invalid
from store.runtime.urls import PARTITION

app = typer.Typer()
partitions = typer.Typer(
    name="partitions",
    help="Manage the partitions of a database, which are separate stores.",
    rich_help_panel="Serve",
    no_args_is_help=True,
)
app.add_typer(partitions)


@partitions.command("create")
def partitions_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name: at most 40 lower-case letters, digits and _.")],
    db: Db = DEFAULT_DB,
) -> None:
    """Create a partition, unless it exists, and print its URL."""
    if not PARTITION.fullmatch(name):
        raise Invalid("name", f"{name!r} must match {PARTITION.pattern}")
    url = with_partition(db, name)
    if parse(url).scheme == "memory":
        raise Invalid("--db", "a memory:// store has no partitions; name a file or a Postgres database")

    if parse(url).scheme in {"http", "https"}:
        from store.client import create_partition

        async def request() -> str:
            await check_server(db)
            return await create_partition(db, name)

        line(asyncio.run(request()))
        return

    from store import open_store

    async def create() -> None:
        await (await open_store(url)).close()

    asyncio.run(create())
    line(parse(url).shown)


@partitions.command("drop")
def partitions_drop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the partition.")],
    db: Db = DEFAULT_DB,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Delete the data. Without it, the command prompts for the name on a terminal."),
    ] = False,
    confirm: Annotated[
        str | None, typer.Option(metavar="NAME", hidden=True, help="An older form of --yes: the name again.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Delete a partition with all its data, for ever, and revoke the keys that are valid only for it."""
    # The package imports the drivers of databases, which the help of this command does not need.
    from store.operations import drop_partition

    if confirm is None and yes:
        confirm = name
    if confirm is None:
        if not sys.stdin.isatty():
            raise typer.BadParameter("add --yes; the data cannot be restored")
        confirm = str(typer.prompt("Type the name of the partition again to delete all its data", err=True))
    report = asyncio.run(drop_partition(db, name, confirm=confirm))
    if json:
        json_document(report.model_dump())
        return
    size = "" if report.size_bytes is None else f", {byte_size(report.size_bytes)}"
    line(f"dropped {report.url}{size}")
    if report.revoked_keys:
        note(f"revoked the keys of this partition: {', '.join(report.revoked_keys)}")


@partitions.command("ls")
def partitions_ls(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """List the partitions of a database."""
    from store.db.schema.partitions import names as names_of

    names = asyncio.run(names_of(db))
    if json:
        json_document(names)
        return
    for name in names:
        line(name)
