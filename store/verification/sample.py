"""Verification of a sample: the end of the log, and the tables of some streams, in one snapshot of the database.

Streams are chosen by random events, so a stream with many events is chosen more often. The time that a sample takes
does not grow with the log.
"""

import random
import time
from collections.abc import AsyncIterator

from store.db.dialect import Dialect, ReadSession
from store.db.queries import log as log_queries
from store.db.queries import scan
from store.models import Difference
from store.models.enums import Frozen
from store.verification import log_scan
from store.verification.compare import STRETCHES, Comparison, StreamRange, no_calls
from store.verification.differences import Differences
from store.verification.fold import PageResult
from store.verification.sequences import check_sequences
from store.verification.state_hash import StateHash
from store.verification.verify import check_store, differences_in

COMMITS = 1000
"""The number of commits at the end of the log that a sample contains."""
STREAMS = 100
"""The number of random events whose streams a sample contains."""

# After this many compared events, no further stream is compared.
_MOST_EVENTS = 50_000


class SampleReport(Frozen):
    """The result of the verification of a sample."""

    commit_id: int
    """The last commit of the log in the snapshot; 0 for an empty log."""
    commits: int
    """The number of checked commits at the end of the log."""
    streams: int
    """The number of streams whose rows were compared with their fold."""
    differences: list[Difference]
    """The first differences."""
    difference_count: int
    """The number of all differences."""
    seconds: float


async def verify_sample(
    dialect: Dialect, store_id: str, *, commits: int = COMMITS, streams: int = STREAMS
) -> SampleReport:
    """Check the last commits of the log, the triggers and indexes, and the tables of random streams.

    Args:
        dialect: the database.
        store_id: the id of the store.
        commits: the number of commits to check.
        streams: the number of random events whose streams are compared.
    """
    began = time.monotonic()
    differences = Differences()
    async with dialect.read(snapshot=True) as session:
        dialect.stored_forms.forget()
        await check_store(session, store_id, differences)
        bounds = await log_scan.bounds(session)
        walked = await log_scan.walk_end(session, bounds, commits)
        differences.join(walked.differences, walked.difference_count)
        await check_sequences(session, bounds.commit_id, walked.last_position, differences)
        sample = _Sample(session)
        table_differences = await differences_in(session, sample.run(bounds.position, streams))
        differences.join(table_differences.first, table_differences.count)
    return SampleReport(
        commit_id=bounds.commit_id,
        commits=walked.commits,
        streams=sample.comparison.streams,
        differences=differences.first,
        difference_count=differences.count,
        seconds=time.monotonic() - began,
    )


class _Sample:
    """The comparison of random streams with the tables."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session
        # The hash over the compared rows is not used, because it has no meaning for a sample.
        self.comparison = Comparison(session, no_calls, StateHash([]))

    async def run(self, last_position: int, count: int) -> AsyncIterator[PageResult]:
        """Compare the streams of `count` random events with positions up to `last_position`."""
        chosen: set[str] = set()
        # The choice only has to differ between calls. It need not be secret.
        positions = sorted(random.randint(1, last_position) for _ in range(count if last_position > 0 else 0))
        for position in positions:
            rows = await log_queries.events(self._session, after=position - 1, limit=1)
            name = rows[0].stream if rows else None
            if name is None or name in chosen or self.comparison.events >= _MOST_EVENTS:
                continue
            chosen.add(name)
            if (stretch := await self._range_of(name)) is not None:
                async for page in self.comparison.of(stretch):
                    yield page

    async def _range_of(self, name: str) -> StreamRange | None:
        """Return the range that contains only one stream; None if the stream has no tables.

        The range begins at the end of the previous stream. So rows between the two streams that belong to no stream are
        found too.
        """
        kind = next((streams for streams in STRETCHES if streams.prefix and name.startswith(streams.prefix)), None)
        if kind is None:
            return None
        before = await scan.stream_before(self._session, name, kind.first)
        after = None if before is None else before.removeprefix(kind.prefix)
        return kind.model_copy(update={"after": after, "until": name.removeprefix(kind.prefix)})
