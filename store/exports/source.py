"""Source of an export: the rollouts that a query matches at one position of the log, with their parts. Decision 93.

Rollouts come in the order of their creation. The store first lists the rollouts in their present state, because a list
of any length can be paged in this order. Each page is then read again as it was at the position. A query of a past
state fails if too many rollouts have changed since. Because each query names one page, this limit does not apply to the
whole export.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from store.exports.records import RolloutRecord
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, Rollout, Score
from store.models.flat_spans import FlatSpan
from store.models.missing_rewards import AS_RECORDED, MissingReward
from store.models.queries import AttemptQuery, RolloutQuery, SpanQuery

_LISTED_AT_ONCE: Final = 500
_ROLLOUTS_AT_ONCE: Final = 250
"""The most rollouts whose spans one query reads."""
_SPANS_AT_ONCE: Final = 2000
"""The most spans of a long rollout that one query reads."""
BYTES_AT_ONCE: Final = 8_000_000
"""The most bytes of payload of spans that are read at once, unless a single span has more."""
_CALLS_AT_ONCE: Final = 8
"""The most rollouts whose events are read at the same time."""
_FIXED: Final = ("rollout_id_in", "rollout_id_contains", "group_in", "step_in", "plan_key_in")
"""The conditions on fields of a rollout that never change."""

SPANS: Final = "spans"
ATTEMPTS: Final = "attempts"
EVENTS: Final = "events"
SCORES: Final = "scores"
LABELS: Final = "labels"
ERRORS: Final = "errors"
"""The events of rollouts with an attempt that did not succeed, because only events contain the error of an attempt."""


@dataclass
class ExportSource:
    """Reader of the records of an export.

    Args:
        store: the store.
        query: the conditions. The order, the limit and the offset are ignored.
        position: the position of the log at which everything is read.
        reads: the parts of the records that are needed: `SPANS`, `ATTEMPTS`, `EVENTS`, `ERRORS`, `SCORES`, `LABELS`.
        needs_whole_rollouts: whether all spans of a rollout must be in one record.
        missing: how ended rollouts without a reward count.
    """

    store: Store
    query: RolloutQuery
    position: int
    reads: frozenset[str] = frozenset()
    needs_whole_rollouts: bool = False
    missing: MissingReward = AS_RECORDED
    listed: int = 0
    """The number of rollouts in the list from which the query selects; 0 before the first page is read."""
    _group_size: int = field(default=16, init=False)
    """The number of rollouts whose spans are read at once. It is adapted to the sizes of the earlier groups."""

    async def records(self, offset: int = 0) -> AsyncIterator[list[RolloutRecord]]:
        """Yield records, a few megabytes at a time.

        Args:
            offset: the number of listed rollouts to skip, from the `offset` of the last record of an earlier call.
        """
        while page := await self._list(offset):
            chosen = await self._at_position(page)
            places = {rollout.rollout_id: place for place, rollout in enumerate(page, start=offset + 1)}
            version = self.query.reward_version
            records = [RolloutRecord(rollout, places[rollout.rollout_id], version) for rollout in chosen]
            for record in records:
                record.count_missing(self.missing)
            async for batch in self._with_parts(records):
                yield batch
            offset += len(page)

    async def _list(self, offset: int) -> Sequence[Rollout]:
        """Return the next rollouts in their present state, selected by the conditions in `_FIXED`."""
        # Rollouts are never deleted. So the total of the first page is an upper bound of their number at the position.
        if offset and offset >= self.listed > 0:
            return ()
        names = _FIXED if self.query.filter_logic == "and" else ()
        conditions = {name: value for name in names if (value := getattr(self.query, name)) is not None}
        query = RolloutQuery.of(
            **conditions, reward_version=self.query.reward_version, limit=_LISTED_AT_ONCE, offset=offset
        )
        page = await self.store.find_rollouts(query)
        self.listed = self.listed or page.total
        return page.items

    async def _at_position(self, listed: Sequence[Rollout]) -> Sequence[Rollout]:
        """Return the listed rollouts that match the query, as they were at the position, in the order of the list."""
        conditions = {
            name: value for name in self.query.conditions() if (value := getattr(self.query, name)) is not None
        }
        is_listed_by_all = self.query.filter_logic == "and" and conditions.keys() <= {*_FIXED}
        if is_listed_by_all or not conditions:
            # If the log has no event after the position, the present state is the state at the position.
            moment = await self.store.log.position()
            if moment.position == self.position:
                return listed
        ids = [rollout.rollout_id for rollout in listed]
        alternatives = [conditions]
        if self.query.filter_logic == "or" and conditions:
            alternatives = [{name: value} for name, value in conditions.items()]
        matches: dict[str, Rollout] = {}
        for alternative in alternatives:
            listed_ids = ids
            if "rollout_id_in" in alternative:
                names = frozenset(alternative["rollout_id_in"])
                listed_ids = [rollout_id for rollout_id in ids if rollout_id in names]
            query = RolloutQuery.of(
                **{**alternative, "rollout_id_in": listed_ids},
                reward_version=self.query.reward_version,
                as_at=self.position,
            )
            matches |= {rollout.rollout_id: rollout for rollout in await self.store.find_rollouts(query)}
        return [matches[rollout_id] for rollout_id in ids if rollout_id in matches]

    async def _with_parts(self, records: list[RolloutRecord]) -> AsyncIterator[list[RolloutRecord]]:
        """Yield records of some rollouts with the parts that are needed."""
        if ATTEMPTS in self.reads:
            for record in records:
                record.attempts = await self._attempts(record.rollout)
        if SCORES in self.reads:
            await self._read_scores(records)
        if LABELS in self.reads and records:
            labels = await self.store.annotations.query_labels(
                [record.rollout.rollout_id for record in records], as_at=self.position
            )
            for record in records:
                record.labels = labels.get(record.rollout.rollout_id, [])
        async for batch in self._with_spans(records):
            if EVENTS in self.reads:
                await self._read_events([record for record in batch if record.is_first])
            elif ERRORS in self.reads:
                await self._read_events([record for record in batch if record.is_first and record.may_have_errors])
            yield batch

    async def _with_spans(self, records: list[RolloutRecord]) -> AsyncIterator[list[RolloutRecord]]:
        if SPANS not in self.reads:
            at_once = _CALLS_AT_ONCE if EVENTS in self.reads else _LISTED_AT_ONCE
            for start in range(0, len(records), at_once):
                yield records[start : start + at_once]
            return
        start = 0
        while start < len(records):
            group = records[start : start + self._group_size]
            page = await self._spans(group)
            if page is None and len(group) > 1:
                self._group_size = len(group) // 2
                continue
            if page is None:
                async for part in self._parts_of_long(group[0]):
                    yield [part]
            else:
                by_rollout: dict[str, list[FlatSpan]] = {record.rollout.rollout_id: record.spans for record in group}
                for row in page.rows:
                    by_rollout[row.rollout_id].append(row)
                yield group
                if page.size < BYTES_AT_ONCE // 4:
                    self._group_size = min(2 * self._group_size, _ROLLOUTS_AT_ONCE)
            start += len(group)

    async def _parts_of_long(self, record: RolloutRecord) -> AsyncIterator[RolloutRecord]:
        """Yield the record of a rollout with many bytes of spans, divided unless whole rollouts are needed."""
        if self.needs_whole_rollouts:
            page = await self._spans([record], is_bounded=False)
            assert page is not None  # `is_bounded` is False
            yield replace(record, spans=page.rows)
            return
        offset, limit = 0, _SPANS_AT_ONCE
        while True:
            page = await self._spans([record], limit=limit, offset=offset)
            if page is None:
                limit = max(1, limit // 2)
                continue
            is_last = offset + len(page.rows) >= page.total
            yield replace(record, spans=page.rows, is_first=offset == 0, is_last=is_last)
            if is_last:
                return
            offset += len(page.rows)

    async def _spans(
        self, records: Sequence[RolloutRecord], *, limit: int = -1, offset: int = 0, is_bounded: bool = True
    ) -> _SpanPage | None:
        """Return spans of some rollouts; None if the spans have more bytes than may be read at once."""
        page = _SpanPage(is_bounded=is_bounded and (len(records) > 1 or limit != 1))
        ids = [record.rollout.rollout_id for record in records]
        query = SpanQuery.of(rollout_id=ids, as_at=self.position, limit=limit, offset=offset)
        try:
            page.total = await self.store.log.take_spans(query, page.take)
        except _TooManyBytes:
            return None
        return page

    async def _attempts(self, rollout: Rollout) -> list[Attempt]:
        latest = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        if latest is not None and latest.sequence_id == 1:
            return [latest]
        if latest is None and rollout.status == "queuing":
            return []
        return list(await self.store.find_attempts(rollout.rollout_id, AttemptQuery.of(as_at=self.position)))

    async def _read_scores(self, records: Sequence[RolloutRecord]) -> None:
        scores: dict[str, list[Score]] = {record.rollout.rollout_id: record.scores for record in records}
        if scores:
            for score in await self.store.annotations.query_scores([*scores], as_at=self.position):
                scores[score.rollout_id].append(score)

    async def _read_events(self, records: Sequence[RolloutRecord]) -> None:
        for start in range(0, len(records), _CALLS_AT_ONCE):
            some = records[start : start + _CALLS_AT_ONCE]
            histories = await asyncio.gather(
                *(self.store.log.history(record.rollout.rollout_id, as_at=self.position) for record in some)
            )
            for record, history in zip(some, histories, strict=True):
                record.events = history


class _TooManyBytes(Exception):
    """A read has more bytes of spans than may be in memory at once."""


@dataclass
class _SpanPage:
    """Spans that a read returned."""

    is_bounded: bool
    rows: list[FlatSpan] = field(default_factory=list[FlatSpan])
    size: int = 0
    total: int = 0

    def take(self, rows: Sequence[FlatSpan]) -> None:
        self.rows += rows
        self.size += sum([len(row.attributes) + len(row.events) + len(row.links) for row in rows])
        if self.is_bounded and self.size > BYTES_AT_ONCE:
            raise _TooManyBytes
