"""Implementation of `rollbook migrate`, and the list of the partitions of a database."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from store.db.schema import history, partition_files, postgres, sqlite, sqlite_files
from store.db.schema.partition_files import PartitionPlace, StoreFile
from store.db.url import StoreURL, parse
from store.errors import Invalid
from store.runtime.urls import DEFAULT_PARTITION

__all__ = ["Migrated", "files", "migrate", "names"]


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of `migrate` for one partition."""

    partition: str
    before: str | None
    """The revision before the upgrade; None if this call created the partition."""
    after: str
    copy: Path | None = None
    """The copy of the file that was made before an upgrade. None if there was no upgrade, and on Postgres."""

    @property
    def is_changed(self) -> bool:
        """Whether the partition changed."""
        return self.before != self.after


async def migrate(url: str | StoreURL, *, app_role: str | None = None) -> list[Migrated]:
    """Upgrade all partitions of a database and return the results, the partition of the URL first.

    On Postgres, the partitions are the schemas `rollbook_…` of the database. On SQLite, they are the main file and the
    files `<main>.<name>.db` beside it, each of which states that it contains this partition. The partition of the URL
    is created if it is missing. Each partition is upgraded in its own transaction. If an upgrade fails, this partition
    is unchanged. The partitions before it are upgraded, and the partitions after it are not.

    Args:
        url: the URL, as for `open_store`. On Postgres, the role of the URL must own the partitions.
        app_role: a role of Postgres that gets the rights to use every partition and to append to its log. The role
            gets no right to change or delete events.

    Raises:
        Invalid: this kind of store has no migrations, or a role was given for SQLite.
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
    assert url.main is not None
    first = sqlite.prepare_for_writing(url.path, create=True, place=PartitionPlace(url.main, url.partition))
    results = [Migrated(url.partition, first.before, history.HEAD, first.copy)]
    for partition, path in files(url).items():
        if path != url.path:
            prepared = sqlite.prepare_for_writing(path, create=False, place=PartitionPlace(url.main, partition))
            results.append(Migrated(partition, prepared.before, history.HEAD, prepared.copy))
    return results


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
    return sorted(await asyncio.to_thread(files, parsed))


def files(url: StoreURL) -> dict[str, Path]:
    """Return the existing files that contain the partitions of a SQLite URL, by partition name.

    Raises:
        StoreError: a file cannot be read.
    """
    assert url.main is not None  # the URL of a file
    paths: dict[str, Path] = {}
    main: StoreFile | None = None
    for place in partition_files.candidates(url.main):
        with sqlite_files.store_errors(place.path):
            file = sqlite.store_file(place.path)
        main = file if place.partition == DEFAULT_PARTITION else main
        if file is not None and place.holds(file, main):
            paths[place.partition] = place.path
    return paths


async def _migrate_postgres(dsn: str, partition: str, app_role: str | None) -> list[Migrated]:
    async with postgres.connected(dsn) as connection:
        first = postgres.PREFIX + partition
        others = [schema for schema in await postgres.partitions(connection) if schema != first]
        results: list[Migrated] = []
        for schema in (first, *others):
            name = postgres.shown(dsn, schema)
            info = await postgres.inspect_postgres(connection, schema, name)
            before = None if info is None else info.revision
            if info is None:
                info, created = await postgres.create_postgres(connection, schema, name)
                before = None if created else info.revision
            if info.is_behind:
                await postgres.upgrade_postgres(dsn, schema)
            if app_role is not None:
                await postgres.grant(connection, schema, app_role)
            results.append(Migrated(schema.removeprefix(postgres.PREFIX), before, history.HEAD))
        return results
