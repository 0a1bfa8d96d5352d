"""Removal of a whole partition, which is a separate store in a database. Decision 66."""

import asyncio

from store.db.schema import postgres, sqlite
from store.db.schema.sealed import refuse_sealed
from store.db.url import parse, with_partition
from store.errors import Invalid
from store.models.enums import Frozen
from store.runtime.urls import DEFAULT_PARTITION, PARTITION


class DropReport(Frozen):
    """The result of dropping a partition."""

    partition: str
    url: str
    """The URL of the partition that was dropped, without passwords."""
    size_bytes: int | None
    """The size of the deleted files in bytes; None on Postgres."""
    revoked_keys: list[str]
    """The ids of the keys that were valid only for the partition, and that this call revoked."""


async def drop_partition(url: str, name: str, *, confirm: str) -> DropReport:
    """Delete a partition with its log and all its data, for ever. Revoke the keys that are valid only for it.

    On Postgres, one transaction does everything. On SQLite, the keys are revoked first, then the files are deleted; if
    the call is stopped, the same call deletes the remaining files. The default partition is not dropped, because it
    stores the keys of all partitions.

    A partition in use is not dropped. On SQLite, a partition is in use while another process has its file open. On
    Postgres, a partition is in use while another process waits for its commits or has a transaction on its tables.
    Other processes that opened the partition on Postgres get an error at their next call.

    Args:
        url: the URL of any partition of the database.
        name: the name of the partition.
        confirm: the same name again.

    Raises:
        Invalid: the two names differ, the name is invalid or is the name of the default partition, or the URL does not
            name a SQLite file or a Postgres database.
        NotFound: there is no such partition.
        Conflict: another process uses the partition.
        Incompatible: the schema or the file is not a store, or the role does not own the schema.
        ReadOnly: the files cannot be written.
        Unavailable: the database does not answer.
    """
    if not PARTITION.fullmatch(name):
        raise Invalid("name", f"{name!r} must match {PARTITION.pattern}")
    if name == DEFAULT_PARTITION:
        raise Invalid(
            "name",
            "the default partition stores the keys of all partitions, so it is not dropped; to remove the whole"
            " database, stop its servers and delete the files, or run DROP DATABASE",
        )
    if confirm != name:
        raise Invalid("confirm", f"{confirm!r} is not {name!r}; give the name of the partition twice")
    database = parse(url)
    if database.path is None and database.dsn is None:
        reason = f"{database.shown} is not a database; give the URL of a SQLite file or a Postgres database"
        raise Invalid("url", reason)
    target = parse(with_partition(url, name))
    if target.dsn is not None:
        revoked = await postgres.drop(target.options.get("direct", target.dsn), postgres.PREFIX + name)
        return DropReport(partition=name, url=target.shown, size_bytes=None, revoked_keys=revoked)
    main = parse(with_partition(url, DEFAULT_PARTITION))
    assert target.path is not None  # the URL names a file
    assert main.path is not None
    # Keys are revoked in the default partition.
    await refuse_sealed(main)
    size, revoked = await asyncio.to_thread(sqlite.drop, target.path.absolute(), main.path.absolute(), name)
    return DropReport(partition=name, url=target.shown, size_bytes=size, revoked_keys=revoked)
