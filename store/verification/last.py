"""The result of the last verification of a store. It is stored in the database, and metrics report it.

It is not part of the log: a verification changes neither the log nor the tables that the log determines.
"""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, select

from store.db.dialect import Changes, Dialect, ReadSession, dialect_for
from store.db.queries.paging import compiled
from store.db.tables.core import verifications
from store.db.url import parse
from store.models import VerifyReport

_ONE: Final = 1


@dataclass(frozen=True, slots=True)
class LastVerification:
    """The result of the last verification."""

    verified_at: int
    """The time of the verification, in µs since the epoch."""
    commits: int
    """The number of commits that were verified."""
    differences: int
    """The number of differences that were found."""


def _query() -> Select[Any]:
    columns = verifications.c
    found: Any = select(columns.verified_at, columns.commits, columns.differences)
    return found


async def record(dialect: Dialect, report: VerifyReport) -> None:
    """Store the result of a verification in place of the last one. Run it in the dialect's event loop."""
    session = await dialect.writer()
    try:
        tail = await session.begin()
        row = (_ONE, tail.now, report.commits, report.difference_count)
        await session.write(Changes(inserts={}, upserts={verifications: [row]}, deletes={}))
        await session.commit()
    finally:
        # This rolls back an unfinished transaction.
        await session.close()


async def record_at(url: str, report: VerifyReport) -> None:
    """Store the result of a verification in the database at a URL. It must exist and have the current schema."""
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, None)
    await dialect.open(create=False)
    try:
        await record(dialect, report)
    finally:
        await dialect.close()


async def last(dialect: Dialect, session: ReadSession) -> LastVerification | None:
    """Return the result of the last verification, or None if the store was never verified."""
    rows = await session.fetch(compiled(dialect, "last verification", _query), {})
    return LastVerification(*rows[0]) if rows else None
