"""Conversion of stored bodies and data of events to the form in which they were written."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy.sql import ClauseElement

from store.db.data_blocks import Database, DataBlocks, DataPlaces, data_places
from store.db.dictionaries import BodyPlaces, Dictionaries, Rows, Session, Statement, body_places


class Places(NamedTuple):
    """The columns of a statement whose values may be stored in another form."""

    bodies: BodyPlaces
    """See `store.db.dictionaries`."""
    data: DataPlaces
    """See `store.db.data_blocks`."""


def places_in(statement: ClauseElement) -> Places | None:
    """Return the columns of a statement whose values may be stored in another form; None if there are none.

    Raises:
        ValueError: the statement reads the data of an event without its position.
    """
    places = Places(body_places(statement), data_places(statement))
    return places if any(places) else None


class StoredForms:
    """Converts stored values of a partition to the values that were written.

    Args:
        database: the database of the partition.
    """

    def __init__(self, database: Database) -> None:
        self._dictionaries = Dictionaries(database.sql)
        self._blocks = DataBlocks(database)

    def forget(self) -> None:
        """Remove blocks from memory. A verification calls this, because it must read the blocks from the database."""
        self._blocks.forget()

    async def converted(
        self,
        session: Session,
        sql: Statement,
        places: Places,
        params: Any,
        rows: Rows,
        *,
        can_repeat: bool = False,
    ) -> Rows:
        """Return the rows of a statement with the values that were written.

        Args:
            session: the session that read the rows.
            sql: the statement.
            places: the columns of the statement whose values may be stored in another form.
            params: the parameters of the statement.
            rows: the rows of the statement.
            can_repeat: whether to execute the statement again if a dictionary is missing. See
                `Dictionaries.decompressed`.
        """
        if places.bodies:
            rows = await self._dictionaries.decompressed(
                session, sql, places.bodies, params, rows, can_repeat=can_repeat
            )
        return await self._blocks.restored(session, rows, places.data) if places.data else rows
