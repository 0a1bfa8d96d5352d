"""Rescoring of past rollouts: a reward function runs over them in parallel, and each result is a score in the log."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from store.errors import Conflict, Invalid, TooLarge
from store.interface.store import Store
from store.models import AttemptedRollout, PaginatedResult, Rollout, Score
from store.models.queries import MAX_ROLLOUTS, RolloutQuery
from store.opening import open_store
from store.rescoring.pool import RolloutResult, WorkerPool
from store.rescoring.report import Failures, Pairs, RescoreReport, determinism, greatest
from store.rescoring.reward_function import RewardReference, ScoreResult, code_sha256
from store.rescoring.worker import WorkerOrder
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.validation import arguments

_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
_CHUNK: Final = 50
_COMMIT: Final = 1000
_COMMIT_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.1


async def rescore(
    url: str,
    reward: str,
    *,
    query: RolloutQuery | None = None,
    name: str | None = None,
    processes: int | None = None,
    concurrency: int = 8,
    timeout: float = 60.0,  # noqa: ASYNC109 - the timeout of each call of the function
    sample_twice: int = 20,
    retry_failures: bool = False,
    allow_changed_code: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress = ignore,
) -> RescoreReport:
    """Run a version of a reward function over past rollouts, and record each result as a score of the latest attempt.

    The function gets an `AttemptRecord`. It returns a number, or a mapping with the number as `value`, further numbers
    as `dimensions` and a text as `explanation`. It may be async. If a call raises an error, takes too long, ends its
    process, or gives no finite number, this is recorded as a failure of the rollout. Recorded rewards do not change.
    Rollouts that have a score of this version are not scored again. So the same call continues a run that was stopped.

    Args:
        url: the store: a database or a server. Each process opens it.
        reward: the function and its version, as `module:function@version`. The module may be in the current directory.
        query: which rollouts to score; None for all. Only rollouts that have ended are scored. If the query has a
            `reward_version`, the scores of this version take the place of the recorded rewards, in the record that the
            function gets and in the report.
        name: the name of the reward; None for the name of the function.
        processes: the number of processes; None for the number of cores.
        concurrency: the number of calls of an async function that run at once in each process.
        timeout: the maximum time of a call in seconds.
        sample_twice: the number of rollouts that are scored a second time, to find rewards that are not deterministic.
        retry_failures: whether to score again rollouts whose function failed before.
        allow_changed_code: whether to continue a version that was begun with other code.
        dry_run: whether to count the rollouts only.
        on_progress: called with the number of rollouts that are done.

    Raises:
        Invalid: an argument is invalid, or the function cannot be imported.
        Conflict: the version has scores of other code.
        NotFound, Incompatible, Unavailable: the store cannot be opened; see `open_store`.
        ReadOnly: the store cannot be written.
    """
    reference = RewardReference.of(reward, name)
    code = code_sha256(reference.load())
    at_once = arguments.whole(concurrency, "concurrency", "a number of calls", 1)
    order = WorkerOrder(url, reference, _checked_timeout(timeout), at_once)
    number = os.cpu_count() or 1 if processes is None else processes
    options = _Options(
        query=query or RolloutQuery(),
        retry_failures=retry_failures,
        sample=arguments.whole(sample_twice, "sample_twice", "a number of rollouts", 0),
        on_progress=on_progress,
    )
    arguments.whole(number, "processes", "a number of processes", 1)
    if options.query.as_at is not None:
        raise Invalid("query", "selects rollouts of the past; only present rollouts can be scored")
    if url.startswith("memory:"):
        raise Invalid("url", "a memory:// store exists only inside its program; name a file, a database or a server")
    async with open_store(url, create=False, read_only=dry_run) as store:
        if not allow_changed_code:
            await _check_code(store, reference, code)
        run = _Run(store, reference, code, options)
        if dry_run:
            await run.count()
        else:
            await run.score(order, number)
        return run.report(is_dry_run=dry_run)


def _checked_timeout(seconds: float) -> float:
    value = arguments.finite(seconds, "timeout")
    if value <= 0:
        raise Invalid("timeout", f"{seconds} is not a time; give seconds above 0")
    return value


async def _check_code(store: Store, reference: RewardReference, code: str | None) -> None:
    for version in await store.annotations.query_reward_versions():
        if (version.name, version.version) == reference.key and set(version.code_sha256) - {code}:
            raise Conflict(
                f"{reference.key} has scores of other code ({version.code_sha256[0][:12]}…); this code is"
                f" {'unknown' if code is None else f'{code[:12]}…'}",
                "choose a new version, or allow changed code (--changed-code) if the results are the same",
            )


@dataclass(frozen=True, slots=True)
class _Options:
    query: RolloutQuery
    retry_failures: bool
    sample: int
    on_progress: OnProgress


@dataclass(slots=True)
class _Run:
    """One run over the rollouts of a query."""

    store: Store
    reference: RewardReference
    code: str | None
    options: _Options
    total: int = 0
    selected: int = 0
    scored: int = 0
    scored_before: int = 0
    failed_before: int = 0
    not_ended: int = 0
    conflicts: int = 0
    failures: Failures = field(default_factory=Failures)
    pairs: Pairs = field(default_factory=Pairs)
    checks: dict[str, tuple[ScoreResult | None, ScoreResult | None]] = field(
        default_factory=dict[str, tuple[ScoreResult | None, ScoreResult | None]]
    )
    """For each rollout that is scored twice, the first and the second result."""
    results: list[RolloutResult] = field(default_factory=list[RolloutResult])
    """Results that are not recorded yet."""
    recorded_at: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)

    async def count(self) -> None:
        """Count the rollouts that would be scored."""
        async for rollouts in self._unscored():
            self.scored += len(rollouts)

    async def score(self, order: WorkerOrder, processes: int) -> None:
        """Score the rollouts."""
        pool: WorkerPool | None = None
        try:
            async for rollouts in self._unscored():
                # If every rollout has a score already, no process is started.
                pool = pool or await asyncio.to_thread(WorkerPool, order, processes)
                for start in range(0, len(rollouts), _CHUNK):
                    await self._submit(pool, rollouts[start : start + _CHUNK])
            while pool is not None and not pool.is_idle:
                await self._collect(pool)
            await self._record()
        finally:
            if pool is not None:
                pool.close()

    async def _submit(self, pool: WorkerPool, rollouts: list[AttemptedRollout]) -> None:
        while not pool.has_room:
            await self._collect(pool)
        pool.submit(rollouts)
        missing = self.options.sample - len(self.checks)
        if missing > 0:
            # The sample is spread over the chunks: each contributes at least one rollout, until the sample is complete.
            share = -(-self.options.sample * len(rollouts) // max(self.total, 1))
            again = rollouts[:: max(1, len(rollouts) // share)][: min(missing, share)]
            self.checks |= {rollout.rollout_id: (None, None) for rollout in again}
            pool.submit(again, is_check=True)

    async def _collect(self, pool: WorkerPool) -> None:
        for outcome in await asyncio.to_thread(pool.wait, _POLL_SECONDS):
            rollout_id = outcome.rollout.rollout_id
            if rollout_id in self.checks:
                first, second = self.checks[rollout_id]
                self.checks[rollout_id] = (first, outcome.result) if outcome.is_check else (outcome.result, second)
            if not outcome.is_check:
                self.results.append(outcome)
        if len(self.results) >= _COMMIT or time.monotonic() - self.recorded_at > _COMMIT_SECONDS:
            await self._record()

    async def _record(self) -> None:
        outcomes, self.results, self.recorded_at = self.results, [], time.monotonic()
        if not outcomes:
            return
        await self._record_in_parts(outcomes)
        self.options.on_progress(OperationProgress("scoring rollouts", self.selected_done, self.total, "rollouts"))

    async def _record_in_parts(self, outcomes: Sequence[RolloutResult]) -> None:
        """Record outcomes; in halves, if a call cannot have all of them."""
        try:
            await self._record_all(outcomes)
        except (Conflict, TooLarge) as error:
            if len(outcomes) > 1:
                middle = len(outcomes) // 2
                await self._record_in_parts(outcomes[:middle])
                await self._record_in_parts(outcomes[middle:])
            elif isinstance(error, Conflict):
                self.conflicts += 1
            else:
                raise

    async def _record_all(self, outcomes: Sequence[RolloutResult]) -> None:
        scores = [
            outcome.result.score(
                outcome.rollout.rollout_id, outcome.rollout.attempt.attempt_id, self.reference.key, self.code
            )
            for outcome in outcomes
        ]
        await self.store.annotations.record_scores(scores)
        for outcome in outcomes:
            if outcome.result.error is None:
                self.scored += 1
                self.pairs.add(outcome.rollout, outcome.result.value)
            else:
                self.failures.add(outcome.rollout.rollout_id, outcome.result)

    @property
    def selected_done(self) -> int:
        """The number of rollouts that need no more work."""
        failed = self.failures.by_type.total()
        return self.scored + failed + self.scored_before + self.failed_before + self.not_ended + self.conflicts

    async def _unscored(self) -> AsyncIterator[list[AttemptedRollout]]:
        """Yield the rollouts to score, a page at a time, and count the others."""
        async for page in _pages(self.store, self.options.query):
            self.total, rollouts = page.total, page.items
            self.selected += len(rollouts)
            last = await self._last_scores(rollouts)
            unscored: list[AttemptedRollout] = []
            for rollout in rollouts:
                if not isinstance(rollout, AttemptedRollout) or rollout.status not in _ENDED:
                    self.not_ended += 1
                    continue
                score = last.get((rollout.rollout_id, rollout.attempt.attempt_id))
                if score is None or (score.value is None and self.options.retry_failures):
                    unscored.append(rollout)
                elif score.value is None:
                    self.failed_before += 1
                else:
                    self.scored_before += 1
                    self.pairs.add(rollout, score.value)
            if unscored:
                yield unscored

    async def _last_scores(self, rollouts: Sequence[Rollout]) -> dict[tuple[str, str], Score]:
        ids = [rollout.rollout_id for rollout in rollouts]
        scores = await self.store.annotations.query_scores(ids, reward_version=str(self.reference.key))
        return {(score.rollout_id, score.attempt_id): score for score in scores}

    def report(self, *, is_dry_run: bool) -> RescoreReport:
        """Return the report of the run."""
        twice = [
            (rollout_id, first, second)
            for rollout_id, (first, second) in self.checks.items()
            if first is not None and second is not None
        ]
        return RescoreReport(
            reward=str(self.reference.key),
            code_sha256=self.code,
            is_dry_run=is_dry_run,
            selected=self.selected,
            scored=self.scored,
            failed=self.failures.by_type.total(),
            scored_before=self.scored_before,
            failed_before=self.failed_before,
            not_ended=self.not_ended,
            conflicts=self.conflicts,
            failures_by_type=dict(self.failures.by_type.most_common()),
            failures=self.failures.listed,
            determinism=determinism(twice),
            difference=self.pairs.difference(),
            curve=self.pairs.curve(),
            by_step=self.pairs.by_step,
            sign_changes=self.pairs.sign_changes,
            sign_changed=greatest(self.pairs.sign_changed),
            seconds=time.monotonic() - self.began,
        )


async def _pages(store: Store, query: RolloutQuery) -> AsyncIterator[PaginatedResult[Rollout | AttemptedRollout]]:
    """Yield the rollouts of a query in pages, each rollout once.

    If other callers change rollouts meanwhile so that fewer match, the next page would skip some. The query then begins
    again.
    """
    seen: set[str] = set()
    most = math.inf if query.limit == -1 else query.limit
    offset, total = query.offset, -1
    while len(seen) < most:
        limit = int(min(MAX_ROLLOUTS, most - len(seen)))
        page = await store.find_rollouts(query.model_copy(update={"limit": limit, "offset": offset}))
        fresh = [rollout for rollout in page if rollout.rollout_id not in seen]
        seen.update(rollout.rollout_id for rollout in fresh)
        if fresh:
            matching = page.total - query.offset
            yield PaginatedResult(items=fresh, limit=limit, offset=offset, total=int(min(matching, most)))
        offset += len(page)
        if page.total < total:
            offset = query.offset
        elif not page.items:
            return
        total = page.total
