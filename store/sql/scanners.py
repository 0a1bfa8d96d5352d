"""Scanners of a SQL store. Decision 117."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from store.db.queries import scanners as scanner_queries
from store.errors import NotFound
from store.interface.runs import AsAt
from store.interface.scanners import StoreScanners
from store.models.calls import AddScannerCall, ChangingCall, RecordScansCall
from store.models.scanners import Scan, Scanner, UnscannedAttempt
from store.sql.calls import CommandCall
from store.sql.commands import scanners as scanner_commands
from store.sql.core import SQLCore
from store.validation import arguments, scanners, scores

T = TypeVar("T")


class SQLScanners(StoreScanners):
    """Scanners in a SQL database."""

    def __init__(self, core: SQLCore) -> None:
        super().__init__("SQLStore")
        self.core = core

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return CALLS[type(call)](self, call)

    async def query(self, *, as_at: AsAt | None = None) -> list[Scanner]:
        return await self.core.view(
            lambda view: scanner_queries.scanners(view.session, view.until), as_at, sweeps=False, snapshot=True
        )

    async def query_scans(
        self, rollout_id: str | Sequence[str], *, scanner: str | None = None, as_at: AsAt | None = None
    ) -> list[Scan]:
        ids = scores.rollout_ids(rollout_id)
        version = None if scanner is None else scores.version_key(scanner, "scanner")
        return await self.core.view(
            lambda view: scanner_queries.scans(view.session, ids, version, view.until), as_at, sweeps=False
        )

    async def unscanned(
        self,
        name: str,
        version: str,
        *,
        limit: int = 1000,
        after: str | None = None,
        retry_errors: bool = False,
        changed_after: int | None = None,
    ) -> list[UnscannedAttempt]:
        key = scanners.scanner_key(name, version)
        number = scanners.check_limit(limit)
        rollout_id = None if after is None else arguments.text(after, "after")
        position = None if changed_after is None else arguments.whole(changed_after, "changed_after", "a position", 0)
        read = partial(
            scanner_queries.unscanned,
            key=key,
            limit=number,
            after=rollout_id,
            retry_errors=bool(retry_errors),
            changed_after=position,
        )
        attempts = await self.core.look(read)
        if attempts is None:
            raise NotFound.rollout(rollout_id or "")
        return attempts


CALLS: Final[dict[type[ChangingCall[Any]], Callable[[SQLScanners, Any], Coroutine[Any, Any, Any]]]] = {
    AddScannerCall: CommandCall(scanner_commands.add, bool, sweeps=False),
    RecordScansCall: CommandCall(scanner_commands.record, list[int | None], sweeps=False),
}
"""The functions that execute the calls of scanners, by the type of the call."""
