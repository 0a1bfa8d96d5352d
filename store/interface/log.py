"""The log of a store: its facts, and the proof that the tables are what it says."""
# ruff: noqa: ARG002 - a default that only refuses uses no argument.

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence

from store.errors import Unsupported
from store.interface.runs import AsAt
from store.models import HistoryEvent, LoggedEvent, RebuildReport, Seal, VerifyReport
from store.runtime.blocking import Blocking, blocking, blocking_iterator


class StoreLog:
    """The log of a store. This class is the default of a store without one: every method raises `Unsupported`.

    Args:
        backend: the name of the store's class, for the error.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    async def history(
        self, rollout_id: str, *, as_at: AsAt | None = None, after: int = 0, limit: int = -1
    ) -> list[HistoryEvent]:
        """Return the facts of a rollout, its attempts and spans, oldest first, numbered 1, 2, 3 … without holes.

        Args:
            rollout_id: whose facts.
            as_at: only what was there then.
            after: only those beyond this number.
            limit: at most so many; -1 for all.

        Raises:
            NotFound: no such rollout.
            Unsupported: this store keeps no log.
        """
        raise Unsupported("log.history", self.backend)

    def tail(
        self,
        after: str | None = None,
        *,
        follow: bool = False,
        types: Sequence[str] | None = None,
        rollout_id: str | None = None,
    ) -> AsyncIterator[LoggedEvent]:
        """Yield the facts of the log in the order they were committed, none skipped and none twice.

        Args:
            after: the cursor of the last event that was dealt with; None starts at the beginning.
            follow: at the end of the log, wait for more instead of stopping.
            types: only these event types; None for all.
            rollout_id: only the facts of this rollout.

        Raises:
            Invalid: `after` is not a cursor.
            Incompatible: `after` is of another store, or of a part of the log this database does not have.
            Unsupported: this store keeps no log.
        """
        raise Unsupported("log.tail", self.backend)

    async def verify(self, seal: Seal | str | os.PathLike[str] | None = None) -> VerifyReport:
        """Prove that the log is whole and that every table is what the log says; return what was found.

        Checks, in one snapshot: the hash chain over all commits, the guards that make the log append-only, running
        totals and counters, and every projected row against the fold of its stream. Changes nothing.

        Args:
            seal: a seal, or the path of one; then also proves that nothing before it changed or was cut off.

        Raises:
            Unsupported: this store keeps no log.
        """
        raise Unsupported("log.verify", self.backend)

    async def rebuild(self) -> RebuildReport:
        """Fold the whole log anew and write the projected rows that differ, while readers and writers go on.

        Raises:
            Corrupt: the log itself is damaged; restore it first.
            Unsupported: this store keeps no log.
        """
        raise Unsupported("log.rebuild", self.backend)

    async def seal(self, path: str | os.PathLike[str]) -> Seal:
        """Write the head of the log to a new file, as JSON, and return it. Keep it where this database is not.

        Raises:
            FileExistsError: there is such a file; a seal is never overwritten.
            Unsupported: this store keeps no log.
        """
        raise Unsupported("log.seal", self.backend)


class SyncLog(Blocking[StoreLog]):
    """The log of a store; see `StoreLog`."""

    history = blocking(StoreLog.history)
    tail = blocking_iterator(StoreLog.tail)
    verify = blocking(StoreLog.verify)
    rebuild = blocking(StoreLog.rebuild)
    seal = blocking(StoreLog.seal)
