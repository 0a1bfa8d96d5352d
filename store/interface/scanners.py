"""Scanners: versioned programs that decide which ended rollouts match. Decision 117."""
# ruff: noqa: ARG002 - the default methods only raise and use no arguments.

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from store.errors import Unsupported
from store.interface.runs import AsAt
from store.models.calls import AddScannerCall, ChangingCall, RecordScansCall
from store.models.scanners import NewScan, NewScanner, Scan, Scanner, UnscannedAttempt
from store.runtime.blocking import Blocking, blocking

T = TypeVar("T")


class StoreScanners:
    """Scanners and their results.

    This base class is used for stores without scanners: its methods raise `Unsupported`.

    A result is a match, no match, or an error. It belongs to one attempt and one version of a scanner. Match and no
    match are final: a different result needs a new version. An error may be followed by another result. A result is an
    event in the history of its rollout. It changes neither the status of the rollout nor its rewards.

    Args:
        backend: the name of the store's class, for error messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        """Execute a call that adds a scanner or records results; see `Store.call`."""
        raise Unsupported(call.method, self.backend)

    async def add(self, scanner: NewScanner) -> bool:
        """Add a version of a scanner. Return False, and record nothing, if the store has the same definition.

        Raises:
            Conflict: the version has another definition; choose a new version.
            Invalid: a field is malformed.
            TooLarge: a text or the definition is too long.
        """
        return await self.call(AddScannerCall(scanner))

    async def query(self, *, as_at: AsAt | None = None) -> list[Scanner]:
        """Return the versions of scanners, sorted by name and version, with the numbers of attempts by last result.

        Args:
            as_at: read the state at this moment of the log: the position of an event, or an aware datetime.
        """
        raise Unsupported("scanners.query", self.backend)

    async def record(self, name: str, version: str, scans: Sequence[NewScan]) -> list[int | None]:
        """Record results of a version of a scanner in one commit, all of them or none.

        A result that equals the last result of its attempt is not recorded again.

        Args:
            name: the name of the scanner.
            version: its version.
            scans: up to 10,000 results of any rollouts.

        Returns:
            For each result the number of its event in the rollout's history; None if nothing was recorded.

        Raises:
            NotFound: the scanner, a rollout or an attempt does not exist.
            Conflict: the version has a different result for an attempt.
            Invalid: a result has a malformed field, or has both or neither of `is_match` and `error`.
            TooLarge: a text is too long, or there are too many results.
        """
        return await self.call(RecordScansCall(name, version, scans))

    async def query_scans(
        self, rollout_id: str | Sequence[str], *, scanner: str | None = None, as_at: AsAt | None = None
    ) -> list[Scan]:
        """Return the last result of each attempt, scanner and version, in the order of rollout ids and of the log.

        Args:
            rollout_id: the id of a rollout, or a list of at most 1,000 ids. Rollouts that do not exist have no results.
            scanner: only results of this version of a scanner, such as `loops@v1`.
            as_at: read the state at this moment of the log: the position of an event, or an aware datetime.

        Raises:
            Invalid: `scanner` is not of the form `name@version`, or there are too many ids.
        """
        raise Unsupported("scanners.query_scans", self.backend)

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
        """Return the latest attempts of ended rollouts without a result of a version, in order of creation.

        Args:
            name: the name of the scanner, which need not exist.
            version: its version.
            limit: the maximum number of attempts, at most 10,000.
            after: only rollouts that were created after this rollout; None for the beginning.
            retry_errors: whether attempts with an error as the last result are returned again.
            changed_after: only rollouts with an event after this position of the log. The cost of the read then depends
                on the number of these events, and not on that of all rollouts. None for all rollouts.

        Raises:
            NotFound: the rollout `after` does not exist.
            Invalid: an argument is malformed.
        """
        raise Unsupported("scanners.unscanned", self.backend)


class SyncScanners(Blocking[StoreScanners]):
    """Blocking methods for scanners; see `StoreScanners`."""

    call = blocking(StoreScanners.call)
    add = blocking(StoreScanners.add)
    query = blocking(StoreScanners.query)
    record = blocking(StoreScanners.record)
    query_scans = blocking(StoreScanners.query_scans)
    unscanned = blocking(StoreScanners.unscanned)
