"""`rollbook keys`: the API keys of a server's clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from store.cli.errors import Ambiguous
from store.cli.options import DEFAULT_DB, AsJson, Db, lifetime
from store.cli.output.printing import json_document, line, note
from store.cli.output.tables import Column, print_table
from store.cli.output.times import ago, local, utc
from store.db.url import parse, with_partition
from store.errors import NotFound
from store.runtime.clock import system_clock, to_seconds
from store.runtime.urls import DEFAULT_PARTITION

if TYPE_CHECKING:
    from store.sql.api_keys import Key, KeyRules, Keys

T = TypeVar("T")

_GRACE_SECONDS: Final = 3600.0

app = typer.Typer()
keys = typer.Typer(
    name="keys",
    help="Manage the API keys of a server's clients.",
    rich_help_panel="Serve",
    no_args_is_help=True,
)
app.add_typer(keys)


KeyId = Annotated[str, typer.Argument(metavar="ID", help="The id that `keys ls` shows, or the beginning of the id.")]


class Role(Enum):
    """The roles of keys, in ascending order. Each role has all permissions of the roles before it."""

    READER = "reader"
    RUNNER = "runner"
    ALGORITHM = "algorithm"
    ADMIN = "admin"


@keys.command("create")
def keys_create(
    *,
    role: Annotated[
        Role, typer.Option(help="The role of the key; each role also has the permissions of the roles before it.")
    ],
    db: Db = DEFAULT_DB,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Limit the key to this partition; the default is all partitions.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A name for `keys ls`, for example that of the owner.")
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(parser=lifetime, metavar="TIME", help="The lifetime of the key, for example 30d, 12h or 45m."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Create a key and print it once; the database stores only its hash."""

    async def make(keys: Keys) -> tuple[Key, str, int | None]:
        key, text = await keys.create(role.value, partition=partition, name=name, expires_seconds=expires)
        return key, text, (await keys.rules()).enforced_at

    key, text, enforced_at = _run(db, make, create=True)
    _print_new(key, text, json=json)
    if enforced_at is None:
        note("Servers do not require keys yet. When all clients have one, run: rollbook keys enforce --in 1h")


@keys.command("rotate")
def keys_rotate(
    key_id: KeyId,
    db: Db = DEFAULT_DB,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=lifetime,
            metavar="TIME",
            show_default="1h",
            help="For how long the old key stays valid, for example 1h or 7d.",
        ),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Revoke the old key at once.")] = False,
    json: AsJson = False,
) -> None:
    """Replace a key: print a new key with the same rights, and let the old key expire after a grace period.

    The new key has the role, the partition, the name and the lifetime of the old key.
    """
    from store.sql.api_keys import key_id_in

    if now and grace is not None:
        raise typer.BadParameter("give --grace or --now, not both")
    seconds = 0.0 if now else _GRACE_SECONDS if grace is None else grace

    async def replace(keys: Keys) -> tuple[Key, Key, str]:
        return await keys.rotate(_only(await keys.all(), key_id_in(key_id) or key_id), grace_seconds=seconds)

    old, new, text = _run(db, replace, create=False)
    _print_new(new, text, json=json)
    if old.revoked_at is None and old.expires_at is not None:
        note(f"The old key {old.key_id} stays valid until {local(to_seconds(old.expires_at))}.")
    else:
        note(f"The old key {old.key_id} is revoked; servers refuse it after at most five seconds.")


@keys.command("enforce")
def keys_enforce(
    db: Db = DEFAULT_DB,
    delay: Annotated[
        float | None,
        typer.Option(
            "--in",
            parser=lifetime,
            metavar="TIME",
            show_default="now",
            help="When to begin, for example 1h; until then clients without a key get a warning.",
        ),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Stop requiring keys.")] = False,
) -> None:
    """Require a key for every request to a server of this database."""
    from store.sql.api_keys import Keys

    if off and delay is not None:
        raise typer.BadParameter("give --in or --off, not both")
    if off:
        _run(db, Keys.stop_enforcing, create=False)
        line("keys are no longer required")
        note("Servers apply this within five seconds. Keys that clients send are still checked.")
        return
    enforced_at = _run(db, lambda keys: keys.enforce(in_seconds=delay or 0.0), create=False)
    if delay is not None:
        line(f"keys are required from {local(to_seconds(enforced_at))}")
        note("Until then, clients without a key get a warning. To undo this: rollbook keys enforce --off")
    else:
        line("keys are required")
        note("Servers apply this within five seconds. To undo this: rollbook keys enforce --off")


def _print_new(key: Key, text: str, *, json: bool) -> None:
    if json:
        json_document({"key": text, **_as_json(key)})
    else:
        line(text)
    where = "every partition" if key.partition is None else f"partition {key.partition}"
    ends = "" if key.expires_at is None else f", until {local(to_seconds(key.expires_at))}"
    note(f"The key {key.key_id} has the role {key.role} in {where}{ends}.")
    note("The key is shown only once: the database stores only its hash.")


@keys.command("ls")
@keys.command("list", hidden=True)
def keys_list(
    db: Db = DEFAULT_DB,
    every: Annotated[bool, typer.Option("--all", help="Include revoked keys.")] = False,
    json: AsJson = False,
) -> None:
    """List the keys of a database, without their secrets."""
    from store.sql.api_keys import Keys

    try:
        rows = _run(db, Keys.all if every else _unrevoked, create=False, read_only=True)
    except NotFound:
        # Keys are stored in the default partition. If only that partition is missing, there are no keys yet.
        if parse(db).partition == DEFAULT_PARTITION:
            raise
        asyncio.run(_check_store(db))
        rows = []
    if json:
        json_document([_as_json(key) for key in rows])
    else:
        print_table(_COLUMNS, rows)


@keys.command("revoke")
def keys_revoke(
    key_id: KeyId,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Revoke a key permanently; servers refuse it after at most five seconds."""
    from store.sql.api_keys import key_id_in

    async def end(keys: Keys) -> tuple[Key, KeyRules]:
        key = await keys.revoke(_only(await keys.all(), key_id_in(key_id) or key_id))
        return key, await keys.rules()

    key, rules = _run(db, end, create=False)
    if json:
        json_document(_as_json(key))
    else:
        line(f"{key.key_id} revoked")
    if not rules.keys and rules.enforced_at is not None:
        note("No key is left, so servers refuse every request. Create a key, or run: rollbook keys enforce --off")


async def _unrevoked(keys: Keys) -> list[Key]:
    return sorted(await keys.unrevoked(), key=lambda key: (key.created_at, key.key_id))


def _only(keys: list[Key], prefix: str) -> str:
    """Return the only key id that begins with `prefix`.

    Raises:
        NotFound: no key id begins with `prefix`.
        Ambiguous: several key ids begin with `prefix`.
    """
    ids = [key.key_id for key in keys if prefix and key.key_id.startswith(prefix)]
    if not ids:
        raise NotFound("key", prefix, f"no key id begins with {prefix!r}; `rollbook keys ls --all` shows them")
    if len(ids) > 1:
        raise Ambiguous("key", prefix, ids[:10], are_all=len(ids) <= 10)
    return ids[0]


def _run(db: str, work: Callable[[Keys], Awaitable[T]], *, create: bool, read_only: bool = False) -> T:
    from store.sql.api_keys import Keys

    async def run() -> T:
        if create:
            # Keys are stored in the default partition, so the partition in the URL is created separately.
            from store import open_store

            if not db.startswith(("memory:", "http:", "https:")) and with_partition(db, DEFAULT_PARTITION) != db:
                await (await open_store(db)).close()
        keys = await Keys.open(db, create=create, read_only=read_only)
        try:
            return await work(keys)
        finally:
            await keys.close()

    return asyncio.run(run())


async def _check_store(db: str) -> None:
    from store import open_store

    await (await open_store(db, create=False, read_only=True)).close()


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else to_seconds(micros)


def _as_json(key: Key) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "role": key.role,
        "partition": key.partition,
        "name": key.name,
        "state": key.state(system_clock()),
        "created_at": _seconds(key.created_at),
        "expires_at": _seconds(key.expires_at),
        "revoked_at": _seconds(key.revoked_at),
        "used_at": _seconds(key.used_at),
    }


def _when(title: str, read: Callable[[Key], int | None]) -> Column[Key]:
    return Column(
        title,
        lambda key: utc(_seconds(read(key))),
        lambda key, now: ago(_seconds(read(key)), time.time() if now is None else now),
    )


_COLUMNS: Final[list[Column[Key]]] = [
    Column("id", lambda key: key.key_id),
    Column("role", lambda key: key.role),
    Column("partition", lambda key: key.partition or "all"),
    Column("state", lambda key: key.state(system_clock())),
    Column("name", lambda key: key.name or "", shrinks=True),
    _when("created", lambda key: key.created_at),
    _when("expires", lambda key: key.expires_at),
    _when("revoked", lambda key: key.revoked_at),
    _when("used", lambda key: key.used_at),
]
