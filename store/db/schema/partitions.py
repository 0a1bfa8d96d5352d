"""`rollbook migrate`: upgrade of all partitions of a database, and creation of the URL's partition if it is missing."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from store.db.schema import history, postgres, sqlite
from store.db.url import DEFAULT_PARTITION, PARTITION, StoreURL, parse, with_partition
from store.errors import Invalid

__all__ = ["Migrated", "migrate", "names"]


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of `migrate` for one partition."""

    partition: str
    before: str | None
    """The revision before the upgrade; None if the partition was created."""
    after: str
    copy: Path | None = None
    """The copy of the file before the upgrade, on SQLite."""

    @property
    def is_changed(self) -> bool:
        """Whether the partition changed."""
        return self.before != self.after


async def migrate(url: str | StoreURL, *, app_role: str | None = None) -> list[Migrated]:
    """Upgrade all partitions of a database and return the results, the partition of the URL first.

    On Postgres these are all schemas `rollbook_…` of the database; on SQLite the file and the `<stem>.<name>.db` beside
    it. The partition of the URL is created if it is missing. Each partition is upgraded in its own transaction: after
    an error the earlier partitions are upgraded, and the failed partition is unchanged.

    Args:
        url: the URL, as for `open_store`; on Postgres the role must own the partitions.
        app_role: a role that may then use every partition without changing its log (Postgres).

    Raises:
        Invalid: this kind of store has no migrations, or SQLite was given a role.
        StoreError: a partition cannot be opened.
    """
    parsed = parse(url) if isinstance(url, str) else url
    if parsed.dsn is not None:
        return await _migrate_postgres(parsed.options.get("direct", parsed.dsn), parsed.partition, app_role)
    if parsed.path is None:
        raise Invalid("url", f"{parsed.shown} has no schema to migrate; write sqlite:///… or postgresql://…")
    if app_role is not None:
        raise Invalid("app_role", "SQLite has no roles; set the permissions of the file instead")
    return await asyncio.to_thread(_migrate_sqlite, parsed)


def _migrate_sqlite(url: StoreURL) -> list[Migrated]:
    assert url.path is not None
    named = sqlite.prepare_for_writing(url.path, create=True)
    done = [Migrated(url.partition, named.before, history.HEAD, named.copy)]
    for partition, path in _siblings(url):
        prepared = sqlite.prepare_for_writing(path, create=False)
        done.append(Migrated(partition, prepared.before, history.HEAD, prepared.copy))
    return done


def _siblings(url: StoreURL) -> Iterator[tuple[str, Path]]:
    """Yield the other partitions of a file, by name; files of other programs are left out."""
    main = parse(url.text.partition("?")[0]).path
    assert main is not None
    named = {DEFAULT_PARTITION: main}
    for path in sorted(main.parent.iterdir()):
        name = path.name.removeprefix(f"{main.stem}.").removesuffix(".db")
        if path.name == f"{main.stem}.{name}.db" and PARTITION.fullmatch(name):
            named[name] = path
    for name, path in named.items():
        if path != url.path and path.is_file() and sqlite.holds_store(path):
            yield name, path


async def names(url: str | StoreURL) -> list[str]:
    """Return the sorted names of a database's partitions.

    Raises:
        Invalid: this kind of store has no partitions.
        StoreError: a partition cannot be opened.
    """
    parsed = parse(url) if isinstance(url, str) else url
    if parsed.dsn is not None:
        async with postgres.connected(parsed.options.get("direct", parsed.dsn)) as connection:
            return sorted(schema.removeprefix(postgres.PREFIX) for schema in await postgres.partitions(connection))
    if parsed.path is None:
        raise Invalid("--db", "a memory:// store has no partitions; give the URL of a file or of a Postgres database")
    return await asyncio.to_thread(_names_of_files, parse(with_partition(parsed.text, DEFAULT_PARTITION)))


def _names_of_files(main: StoreURL) -> list[str]:
    assert main.path is not None  # the URL of a file
    candidates = {DEFAULT_PARTITION: main.path}
    for path in main.path.parent.glob(f"{main.path.stem}.*.db"):
        name = path.name.removeprefix(f"{main.path.stem}.").removesuffix(".db")
        if PARTITION.fullmatch(name):
            candidates[name] = path
    return sorted(name for name, path in candidates.items() if path.is_file() and sqlite.holds_store(path))


async def _migrate_postgres(dsn: str, partition: str, app_role: str | None) -> list[Migrated]:
    async with postgres.connected(dsn) as connection:
        named = postgres.PREFIX + partition
        others = [schema for schema in await postgres.partitions(connection) if schema != named]
        done: list[Migrated] = []
        for schema in (named, *others):
            shown = postgres.shown(dsn, schema)
            info = await postgres.inspect_postgres(connection, schema, shown)
            before = None if info is None else info.revision
            if info is None:
                info, created = await postgres.create_postgres(connection, schema, shown)
                before = None if created else info.revision
            if info.is_behind:
                await postgres.upgrade_postgres(dsn, schema)
            if app_role is not None:
                await postgres.grant(connection, schema, app_role)
            done.append(Migrated(schema.removeprefix(postgres.PREFIX), before, history.HEAD))
        return done
