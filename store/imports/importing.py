"""Storing of foreign rollouts. A repeated import adds only what is missing.

The plan key of a rollout is made from the name of its format and from its key in the source. The rollout never waits in
the queue: it starts with its first attempt, and each attempt ends in the call that stores its last spans. If an import
was stopped, the next import finds an incomplete rollout by its plan key, and completes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterable, Collection, Iterable, Mapping, Sequence
from typing import Final, cast

from store.errors import Conflict, Invalid, NotFound, SpanConflict, StoreError
from store.imports.batches import Record, batches
from store.imports.report import ImportResult, Skipped
from store.imports.rollouts import UNENDED, ForeignAttempt, ForeignResources, ForeignRollout, parts_of, plan_key
from store.interface.store import Store
from store.models import UNSET, Attempt, AttemptedRollout, Rollout, Span
from store.models.queries import RolloutQuery
from store.otel.repair import fitting, repaired
from store.runtime import context
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.semconv import PLAN_KEY

_MOST_LISTED: Final = 1000
_LARGEST_SPAN: Final = 8_000_000
"""The size in bytes to which a span is shortened if it is too large for a call."""


async def import_rollouts(
    store: Store,
    records: Iterable[Record] | AsyncIterable[Record],
    *,
    source: str,
    is_dry_run: bool = False,
    on_progress: OnProgress = ignore,
) -> ImportResult:
    """Store the rollouts that a reader yields, and return a report.

    A rollout that is complete in the store gets only the late spans that it lacks. A rollout that an earlier import
    began is completed. So the same call continues an import that was stopped at any moment. A rollout that cannot be
    stored is skipped.

    Args:
        store: the store. It may be the client of a server.
        records: the rollouts, and the parts of the source that the reader skipped. A plain iterator is called in a
            thread. Only a few rollouts are in memory at a time.
        source: the name of the format.
        is_dry_run: whether to store nothing, and to report what would be imported.
        on_progress: called with the number of rollouts that are done.

    Raises:
        StoreError: the store cannot be reached or written; or the reader raised this error, and all rollouts that the
            reader yielded before are stored.
    """
    import_ = _Import(store, source, is_dry_run)
    begun = time.perf_counter()
    token = context.actor.set(context.actor.get() or f"import:{source}")
    done = 0
    try:
        async for batch in batches(records):
            await import_.store_batch(batch)
            done += len(batch)
            on_progress(OperationProgress("importing", done, None, "rollouts"))
    finally:
        context.actor.reset(token)
    return import_.report(time.perf_counter() - begun)


class _Import:
    """One import: the store, and the counts of its report."""

    def __init__(self, store: Store, source: str, is_dry_run: bool) -> None:  # noqa: FBT001 - private
        self._store = store
        self._source = source
        self._is_dry_run = is_dry_run
        self._counts: Counter[str] = Counter()
        self._skips: list[Skipped] = []
        self._seen: set[str] = set()
        """With a dry run, the keys of the rollouts that would have been created."""

    def report(self, seconds: float) -> ImportResult:
        return ImportResult(
            source=self._source, is_dry_run=self._is_dry_run, skips=self._skips, seconds=seconds, **self._counts
        )

    async def store_batch(self, batch: Sequence[Record]) -> None:
        """Store the rollouts of a batch at the same time."""
        rollouts: list[ForeignRollout] = []
        for record in batch:
            if isinstance(record, Skipped):
                self._skip(record.place, record.reason)
            elif isinstance(record, ForeignResources):
                await self._publish(record)
            else:
                rollouts.append(record)
        stored = await self._stored(rollouts) if rollouts else {}
        late = await self._late_spans(rollouts, stored)
        calls = [self._import_one(record, stored.get(record.key), late) for record in rollouts]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _publish(self, record: ForeignResources) -> None:
        """Publish resources, unless the store has them."""
        try:
            stored = await self._store.get_resources_by_id(record.resources_id)
            if stored is not None and stored.resources == record.resources:
                return
            if not self._is_dry_run:
                await self._store.update_resources(record.resources_id, record.resources)
            self._counts["resources"] += 1
        except Invalid as error:
            self._skip(record.place, str(error))

    async def _stored(self, records: Sequence[ForeignRollout]) -> dict[str, Rollout]:
        """Return the rollouts that earlier imports created, by their keys in the source."""
        keys = {plan_key(self._source, record.key): record.key for record in records}
        page = await self._store.find_rollouts(RolloutQuery.of(plan_key_in=list(keys)))
        stored: dict[str, Rollout] = {}
        for rollout in page:
            key = (rollout.metadata or {}).get(PLAN_KEY)
            if key in keys:
                stored[keys[cast("str", key)]] = rollout
        if len(stored) < len(page):
            # The metadata of a rollout may have been replaced, but its plan key never changes.
            for key in keys.values():
                if key not in stored and (rollout := await self._find(key)) is not None:
                    stored[key] = rollout
        return stored

    async def _late_spans(self, records: Sequence[ForeignRollout], stored: Mapping[str, Rollout]) -> set[str]:
        """Return the ids of the late spans that the store already has."""
        names_by_rollout = {
            stored[record.key].rollout_id: {span.name for span in record.late_spans}
            for record in records
            if record.late_spans and record.key in stored
        }
        late: set[str] = set()
        for name in set[str]().union(*names_by_rollout.values()):
            late.update(span.span_id for span in await self._store.query_spans(list(names_by_rollout), name=name))
        return late

    async def _find(self, key: str) -> Rollout | None:
        page = await self._store.find_rollouts(RolloutQuery.of(plan_key_in=[plan_key(self._source, key)]))
        return next(iter(page), None)

    async def _import_one(self, record: ForeignRollout, rollout: Rollout | None, late: Collection[str]) -> None:
        """Store a rollout, and count it.

        Args:
            record: the rollout in the source.
            rollout: the rollout that an earlier import created; None if there is none.
            late: the ids of late spans that are in the store.
        """
        try:
            record.check()
            outcome = "imported" if rollout is None else "continued"
            if rollout is None and not self._is_dry_run:
                arguments = record.input, record.mode, record.resources_id, None, record.stored_metadata(self._source)
                try:
                    rollout = await self._store.start_rollout(*arguments)
                except Conflict:
                    # Another import of the same source created the rollout meanwhile.
                    rollout, outcome = await self._find(record.key), "continued"
                    if rollout is None:
                        raise
            missing = [span for span in record.late_spans if span.span_id not in late]
            if record.key in self._seen or (rollout is not None and record.is_stored_in(rollout)):
                outcome = "extended" if missing else "unchanged"
            elif self._is_dry_run:
                self._seen.add(record.key)
                missing = list(record.spans)
            else:
                await self._complete(record, rollout)
            if self._is_dry_run:
                self._counts["spans"] += len(missing)
            elif missing and rollout is not None:
                await self._add_late_spans(record, missing, rollout.rollout_id)
            self._counts[outcome] += 1
        except (Invalid, Conflict, NotFound) as error:
            self._skip(record.place, str(error))

    async def _complete(self, record: ForeignRollout, rollout: Rollout | None) -> None:
        """Store the attempts that are missing, and the end of the attempt that an earlier import began.

        Raises:
            Conflict: no import created the rollout.
        """
        if not isinstance(rollout, AttemptedRollout):
            key = plan_key(self._source, record.key)
            raise Conflict(f"a rollout that no import created has the plan key {key!r}", "use another store")
        if rollout.resources_id != record.resources_id:
            # `start_rollout` gives a rollout without resources the latest ones. The rollout did not use these.
            await self._store.update_rollout(rollout.rollout_id, resources_id=record.resources_id)
        attempt = rollout.attempt
        for number, foreign in enumerate(record.attempts, 1):
            if number < attempt.sequence_id or (number == attempt.sequence_id and attempt.status not in UNENDED):
                continue
            if number > attempt.sequence_id:
                attempt = (await self._store.start_attempt(rollout.rollout_id)).attempt
            if record.is_cancelled and number == len(record.attempts):
                await self._store.update_rollout(rollout.rollout_id, status="cancelled")
            stored: set[str] = set()
            if attempt.status == "running":
                page = await self._store.query_spans(rollout.rollout_id, attempt.attempt_id)
                stored = {span.span_id for span in page}
            first = 1 + sum(len(earlier.spans) for earlier in record.attempts[: number - 1])
            spans = [span for span in _numbered(foreign.spans, attempt, first) if span.span_id not in stored]
            await self._finish(record, foreign, attempt, spans)

    async def _finish(
        self, record: ForeignRollout, foreign: ForeignAttempt, attempt: Attempt, spans: Sequence[Span]
    ) -> None:
        """Store the spans of an attempt, and end the attempt in the call that stores its last spans."""
        # That call must refuse no span that could be stored in another form.
        *parts, last = parts_of([repaired(span) for span in spans])
        for part in parts:
            await self._add_spans(record, part)
        finished = await self._store.finish_attempt(
            attempt.rollout_id,
            attempt.attempt_id,
            foreign.status,
            spans=last,
            metadata=UNSET if foreign.metadata is None else foreign.metadata,
            error=UNSET if foreign.error is None else foreign.error,
        )
        if isinstance(finished.attempt, StoreError):
            raise finished.attempt
        self._counts["spans"] += sum(isinstance(result, Span) for result in finished.spans)
        for span, result in zip(last, finished.spans, strict=True):
            if isinstance(result, StoreError):
                await self._add_spans(record, [span])

    async def _add_late_spans(self, record: ForeignRollout, spans: Sequence[Span], rollout_id: str) -> None:
        """Store spans that the source added after the end of the last attempt of a rollout."""
        attempts = await self._store.query_attempts(rollout_id, limit=1, offset=len(record.attempts) - 1)
        first = 1 + sum(len(attempt.spans) for attempt in record.attempts)
        for part in parts_of(_numbered(spans, attempts[0], first)):
            if part:
                await self._add_spans(record, part)

    async def _add_spans(self, record: ForeignRollout, spans: Sequence[Span]) -> None:
        """Store spans of an attempt. Values that no store accepts are changed and marked, like those of OTLP spans."""
        try:
            stored = await self._store.add_many_spans(spans)
            self._counts["spans"] += len(stored)
        except SpanConflict as error:
            self._counts["spans"] += len(error.recorded)
            self._skip(record.place, str(error))
        except Invalid as error:
            if len(spans) > 1:
                for span in spans:
                    await self._add_spans(record, [span])
                return
            changed = fitting(repaired(spans[0]), _LARGEST_SPAN)
            if changed is spans[0]:
                self._skip(record.place, f"span {spans[0].name!r}: {error}")
            else:
                await self._add_spans(record, [changed])

    def _skip(self, place: str, reason: str) -> None:
        self._counts["skipped"] += 1
        if len(self._skips) < _MOST_LISTED:
            self._skips.append(Skipped(place=place, reason=reason))


def _numbered(spans: Iterable[Span], attempt: Attempt, first: int) -> list[Span]:
    """Return spans with the ids of an attempt, and with numbers.

    The number of a span that has the number 0 becomes its place in the order of the spans, counted from `first`.
    """
    ids = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id}
    return [
        span.model_copy(update={**ids, "sequence_id": span.sequence_id or place})
        for place, span in enumerate(spans, first)
    ]
