"""Execution of a scanner over rollouts that have ended. The results in the store are its progress. Decision 118."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from store.errors import Conflict, Invalid, StoreError, TooLarge
from store.interface.store import Store
from store.models import AttemptedRollout
from store.models.enums import Frozen
from store.models.queries import RolloutQuery
from store.models.scanners import NewScan, NewScanner, ScanError
from store.opening import open_store
from store.rescoring.pool import RolloutResult, WorkerPool
from store.rescoring.worker import WorkerOrder
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.scanning.detector import KEY_VARIABLE, Detector
from store.validation import arguments
from store.validation.scores import version_key

logger = logging.getLogger("store.scanning")

_PAGE: Final = 1000
_CHUNK: Final = 50
_COMMIT: Final = 1000
_COMMIT_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 0.1
_LONGEST_WAIT: Final = 30.0
_IDLE_SECONDS: Final = 60.0
"""The time without changes after which a following scan ends its processes, which use memory."""


class ScanReport(Frozen):
    """The result of a scan."""

    scanner: str
    """The name and the version, such as `hacks@v1`."""
    is_dry_run: bool
    scanned: int
    """The number of rollouts that got a result in this run; in a dry run, those that would be scanned."""
    matches: int
    """The number of rollouts that matched in this run."""
    errors: int
    """The number of rollouts for which this run recorded an error."""
    conflicts: int
    """The number of rollouts for which another process recorded another result meanwhile."""
    errors_by_type: dict[str, int]
    error_examples: dict[str, str]
    """For each type of error, the message of one."""
    precision: float | None
    """The precision of all results of the version; see `ScanValidation`."""
    recall: float | None
    labelled: int
    """The number of rollouts that count in the precision and the recall."""
    seconds: float


async def scan(
    url: str,
    scanner: NewScanner,
    *,
    query: RolloutQuery | None = None,
    follow: bool = False,
    processes: int | None = None,
    concurrency: int = 8,
    timeout: float = 60.0,  # noqa: ASYNC109 - the timeout of each call
    limit: int = -1,
    retry_errors: bool = False,
    dry_run: bool = False,
    key_variable: str = KEY_VARIABLE,
    stopped: asyncio.Event | None = None,
    poll_seconds: float = 1.0,
    on_progress: OnProgress = ignore,
) -> ScanReport:
    """Run a scanner over the latest attempts of rollouts that have ended and have no result of its version.

    A call that raises an error, takes too long or ends its process is recorded as an error of its rollout. A scan that
    was killed is continued by the same call.

    Args:
        url: the store: a database or a server. Each process opens it.
        scanner: the scanner. It is added to the store if it does not exist.
        query: which rollouts to scan; None for all. Sorting and pages of the query are ignored.
        follow: whether to scan rollouts that end later, until `stopped` is set or `limit` is reached.
        processes: the number of processes; None for the number of cores.
        concurrency: the number of calls of an async function or of a model that run at once in each process.
        timeout: the maximum time of a call in seconds.
        limit: the maximum number of rollouts; -1 for all.
        retry_errors: whether to scan again rollouts whose last result is an error.
        dry_run: whether to count the rollouts only.
        key_variable: the environment variable with the key of the model server. The key is not stored.
        stopped: ends the scan when it is set; results that have arrived are recorded.
        poll_seconds: with `follow`, how often to look for rollouts that have ended.
        on_progress: called with the number of rollouts that are done.

    Raises:
        Invalid: an argument, or the definition of the scanner, is invalid.
        Conflict: the version exists with another definition, or with other code.
        NotFound, Incompatible, Unavailable: the store cannot be opened; see `open_store`.
        ReadOnly: the store cannot be written.
    """
    key = version_key(f"{scanner.name}@{scanner.version}", "scanner")
    detector = Detector(key, scanner.kind, scanner.definition, key_variable)
    detector.load()
    at_once = arguments.whole(concurrency, "concurrency", "a number of calls", 1)
    number = arguments.whole(
        os.cpu_count() or 1 if processes is None else processes, "processes", "a number of processes", 1
    )
    if arguments.finite(timeout, "timeout") <= 0:
        raise Invalid("timeout", f"{timeout} is not a time; give seconds above 0")
    query = query or RolloutQuery()
    if query.as_at is not None or query.filter_logic == "or":
        raise Invalid("query", "has `as_at` or `filter_logic='or'`, which a scan does not support; leave it out")
    if url.startswith("memory:"):
        raise Invalid("url", "a memory:// store exists only inside its program; name a file, a database or a server")
    async with open_store(url, create=False, read_only=dry_run) as store:
        run = _Run(store, detector.key.name, detector.key.version, query, limit, retry_errors, on_progress)
        if stopped is not None:
            run.stopped = stopped
        if dry_run:
            await run.count()
        else:
            await store.scanners.add(scanner)
            order = WorkerOrder(url, detector, timeout, at_once)
            try:
                await (run.follow(order, number, poll_seconds) if follow else run.walk(order, number))
            finally:
                run.close()
        return await run.report(is_dry_run=dry_run)


@dataclass(slots=True)
class _Run:
    """One run of a scanner."""

    store: Store
    name: str
    version: str
    query: RolloutQuery
    limit: int
    retry_errors: bool
    on_progress: OnProgress
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    pool: WorkerPool | None = None
    changed_after: int | None = None
    """The next walk reads rollouts with an event after this position; None before the first walk, which reads all."""
    submitted: int = 0
    scanned: int = 0
    matches: int = 0
    conflicts: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    error_examples: dict[str, str] = field(default_factory=dict[str, str])
    results: list[RolloutResult] = field(default_factory=list[RolloutResult])
    """Results that are not recorded yet."""
    recorded_at: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)

    async def count(self) -> None:
        """Count the rollouts that would be scanned."""
        if any(
            (scanner.name, scanner.version) == (self.name, self.version)
            for scanner in await self.store.scanners.query()
        ):
            async for rollouts in self._unscanned():
                self.scanned += len(rollouts)
            return
        ended = [
            status for status in ("succeeded", "failed", "cancelled") if status in (self.query.status_in or [status])
        ]
        update = {"status_in": ended, "limit": 1, "offset": 0}
        total = (await self.store.find_rollouts(self.query.model_copy(update=update))).total
        self.scanned = total if self.limit == -1 else min(total, self.limit)

    async def follow(self, order: WorkerOrder, processes: int, poll_seconds: float) -> None:
        """Scan rollouts as they end, until `stopped` is set. While the store cannot be reached, try again.

        The first walk is over all rollouts, a later one over those that have changed (decision 123). Processes end
        after `_IDLE_SECONDS` without a change.
        """
        wait, walked_at = poll_seconds, time.monotonic()
        while not self.stopped.is_set() and self.submitted != self.limit:
            try:
                latest = (await self.store.log.position()).position
                if latest != self.changed_after:
                    await self.walk(order, processes)
                    self.retry_errors, walked_at = False, time.monotonic()
                elif time.monotonic() - walked_at > _IDLE_SECONDS:
                    self.close()
                self.changed_after, wait = latest, poll_seconds
            except StoreError as error:
                if not error.retryable:
                    raise
                wait = min(max(_WAIT_SECONDS, 2 * wait), _LONGEST_WAIT)
                logger.warning("the scan was interrupted and continues in %g s: %s", wait, error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), wait)

    async def walk(self, order: WorkerOrder, processes: int) -> None:
        """Scan all rollouts without a result, and record the results."""
        # Results that were lost with an earlier walk do not count.
        self.submitted = self.scanned + self.conflicts
        try:
            async for rollouts in self._unscanned():
                # If every rollout has a result already, no process is started.
                self.pool = self.pool or await asyncio.to_thread(WorkerPool, order, processes)
                for start in range(0, len(rollouts), _CHUNK):
                    while not self.pool.has_room and not self.stopped.is_set():
                        await self._collect(self.pool)
                    if self.stopped.is_set():
                        break
                    self.pool.submit(rollouts[start : start + _CHUNK])
            while self.pool is not None and not self.pool.is_idle and not self.stopped.is_set():
                await self._collect(self.pool)
            await self._record()
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """End the processes. Results that are not recorded are lost."""
        pool, self.pool, self.results = self.pool, None, []
        if pool is not None:
            pool.close()

    async def _collect(self, pool: WorkerPool) -> None:
        self.results += await asyncio.to_thread(pool.wait, _WAIT_SECONDS)
        if len(self.results) >= _COMMIT or time.monotonic() - self.recorded_at > _COMMIT_SECONDS:
            await self._record()

    async def _record(self) -> None:
        outcomes, self.results, self.recorded_at = self.results, [], time.monotonic()
        if outcomes:
            await self._record_in_parts(outcomes)
            self.on_progress(OperationProgress("scanning rollouts", self.scanned, self.submitted, "rollouts"))

    async def _record_in_parts(self, outcomes: Sequence[RolloutResult]) -> None:
        """Record outcomes. If one call is too large or has a conflict, record the halves in separate calls."""
        try:
            await self.store.scanners.record(self.name, self.version, [_scan_of(outcome) for outcome in outcomes])
        except (Conflict, TooLarge) as error:
            if len(outcomes) > 1:
                middle = len(outcomes) // 2
                await self._record_in_parts(outcomes[:middle])
                await self._record_in_parts(outcomes[middle:])
            elif isinstance(error, Conflict):
                self.conflicts += 1
            else:
                raise
            return
        self.scanned += len(outcomes)
        for outcome in outcomes:
            self.matches += outcome.result.value == 1
            if outcome.result.error is not None:
                kind, message = outcome.result.error
                self.errors[kind] += 1
                self.error_examples.setdefault(kind, message)

    async def _unscanned(self) -> AsyncIterator[list[AttemptedRollout]]:
        """Yield the rollouts of the query whose latest attempt has no result, a page at a time."""
        after: str | None = None
        while not self.stopped.is_set() and self.submitted != self.limit:
            page = await self.store.scanners.unscanned(
                self.name,
                self.version,
                limit=_PAGE,
                after=after,
                retry_errors=self.retry_errors,
                changed_after=self.changed_after,
            )
            attempts = {attempt.rollout_id: attempt.attempt_id for attempt in page}
            if not attempts:
                return
            after = list(attempts)[-1]
            selected = set(self.query.rollout_id_in or attempts)
            ids = [rollout_id for rollout_id in attempts if rollout_id in selected]
            update = {"rollout_id_in": ids, "limit": len(ids), "offset": 0}
            items = (await self.store.find_rollouts(self.query.model_copy(update=update))).items if ids else ()
            rollouts = [
                rollout
                for rollout in items
                if isinstance(rollout, AttemptedRollout) and rollout.attempt.attempt_id == attempts[rollout.rollout_id]
            ]
            if self.limit != -1:
                rollouts = rollouts[: self.limit - self.submitted]
            self.submitted += len(rollouts)
            if rollouts:
                yield rollouts

    async def report(self, *, is_dry_run: bool) -> ScanReport:
        """Return the report of the run, with precision and recall on rollouts that people labelled."""
        versions = [] if is_dry_run else await self.store.scanners.query()
        of_version = [scanner for scanner in versions if (scanner.name, scanner.version) == (self.name, self.version)]
        judged = of_version[0].validation if of_version else None
        return ScanReport(
            scanner=f"{self.name}@{self.version}",
            is_dry_run=is_dry_run,
            scanned=self.scanned,
            matches=self.matches,
            errors=self.errors.total(),
            conflicts=self.conflicts,
            errors_by_type=dict(self.errors.most_common()),
            error_examples=self.error_examples,
            precision=judged and judged.precision,
            recall=judged and judged.recall,
            labelled=judged.labelled if judged else 0,
            seconds=time.monotonic() - self.began,
        )


def _scan_of(outcome: RolloutResult) -> NewScan:
    result, rollout = outcome.result, outcome.rollout
    return NewScan(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        is_match=None if result.value is None else result.value == 1,
        error=None if result.error is None else ScanError(type=result.error[0], message=result.error[1]),
        explanation=result.explanation,
    )
