"""What a user may type after `rollbook keys`; imports the store no earlier than `store.cli.app` does."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, lifetime

keys = typer.Typer(help="The keys of a server's clients, and what they may do.", no_args_is_help=True)


class Role(Enum):
    """What a key may do, the least first."""

    READER = "reader"
    RUNNER = "runner"
    ALGORITHM = "algorithm"
    ADMIN = "admin"


@keys.command("create")
def keys_create(
    *,
    role: Annotated[Role, typer.Option(help="What it may do; each may do what those before it may.")],
    db: Db = DEFAULT_DB,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Good for this partition alone; for all if not given.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="Whose it is, for `keys list`.")] = None,
    expires: Annotated[
        float | None, typer.Option(parser=lifetime, metavar="TIME", help="How long it counts, as 30d, 12h, 45m.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    from store.cli.commands import keys as making

    making.create(db, role.value, partition=partition, name=name, expires_seconds=expires, json=json)


@keys.command("list")
def keys_list(
    db: Db = DEFAULT_DB,
    every: Annotated[bool, typer.Option("--all", help="Those that were revoked, too.")] = False,
    json: AsJson = False,
) -> None:
    """List the keys of a database, never their secrets."""
    from store.cli.commands import keys as listing

    listing.show(db, every=every, json=json)


@keys.command("revoke")
def keys_revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `keys list` shows it, or the beginning.")],
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """End a key, within five seconds, for good."""
    from store.cli.commands import keys as ending

    ending.revoke(db, key_id, json=json)
