"""The database of a store, for servers and pages in the process that has opened it.

Calls through the interface work on every store. Other functions need the parts of a store on a SQL database: reads of
the tables, one reader of the log for all streams, the release of unread claims, and metrics of the writer.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from store.interface.store import Store

if TYPE_CHECKING:
    from store.sql.core import SQLCore
    from store.sql.log import SQLLog
    from store.sql.queue import SQLQueue
    from store.sql.runs import SQLRuns
    from store.sql.store import SQLStore


class StoreDatabase(Protocol):
    """The parts of a store on a SQL database."""

    @property
    def core(self) -> SQLCore: ...

    @property
    def queue(self) -> SQLQueue: ...

    @cached_property
    def log(self) -> SQLLog: ...

    @cached_property
    def runs(self) -> SQLRuns: ...

    @property
    def accepts_commands(self) -> bool:
        """Whether a server may submit the commands of calls itself. False for subclasses, which may override calls."""
        ...


def database_of(store: Store) -> SQLStore | None:
    """Return the database of a store; None if this process has not opened the database.

    A store offers its database as the attribute `database`.
    """
    return getattr(store, "database", None)
