"""Log of a store: its events, and checks that the tables agree with them."""
# ruff: noqa: ARG002 - the default methods only raise and use no arguments.

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import Final

from store.errors import Unsupported
from store.interface.runs import AsAt
from store.models import HistoryEvent, LoggedEvent, LogPosition, RebuildReport, Seal, VerifyReport
from store.models.flat_spans import TakeSpans
from store.models.queries import RolloutQuery, SearchQuery, SpanQuery, UsageQuery
from store.models.search import SearchPage
from store.models.trainer_metrics import Metric, MetricsQuery
from store.models.usage import UsageReport
from store.runtime.blocking import Blocking, blocking, blocking_iterator
from store.runtime.progress import OnProgress, ignore

_CONDITIONS: Final = (*RolloutQuery.conditions(), "filter_logic", "reward_version")


class StoreLog:
    """The log of a store. This base class is used for stores without a log: its methods raise `Unsupported`.

    Args:
        backend: the name of the store's class, for error messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    async def history(
        self, rollout_id: str, *, as_at: AsAt | None = None, after: int = 0, limit: int = -1
    ) -> list[HistoryEvent]:
        """Return the events of a rollout and of its attempts and spans, oldest first, numbered 1, 2, 3 … without gaps.

        Args:
            rollout_id: the rollout.
            as_at: only events up to this moment: the position of an event in the log, or an aware datetime.
            after: only events with a greater number.
            limit: the maximum number of events; -1 for all.

        Raises:
            NotFound: no such rollout.
            Unsupported: the store has no log.
        """
        raise Unsupported("log.history", self.backend)

    async def position(self, as_at: AsAt | None = None) -> LogPosition:
        """Return the position of a moment of the log, which every later read with it as `as_at` sees in the same state.

        Args:
            as_at: a position or an aware datetime; None for the end of the log.

        Raises:
            Invalid: `as_at` is not a moment.
            Unsupported: the store has no log.
        """
        raise Unsupported("log.position", self.backend)

    async def take_spans(self, query: SpanQuery, take: TakeSpans) -> int:
        """Pass the spans that `Store.find_spans` returns to a function, as rows; return the number of all matches.

        A store in this process reads a few rows at a time, and a client of a server a page.

        Raises:
            Unsupported: the store has no log.
        """
        raise Unsupported("log.take_spans", self.backend)

    async def usage(self, query: UsageQuery) -> UsageReport:
        """Return the calls of models, their tokens and their reported costs, summed over rollouts.

        `PriceTable.costs` converts the report to costs. An index contains the sums. It follows the log with a delay,
        so the report names the last event that it includes.

        Args:
            query: the selected rollouts and the division of the sums, such as `UsageQuery(by="step")`.

        Raises:
            Invalid: the query has an invalid condition, or an `as_at`: usage is known for the present only.
            ReadOnly: the index does not exist, and its file cannot be written.
            Unsupported: the store has no log.
        """
        raise Unsupported("log.usage", self.backend)

    async def metrics(self, query: MetricsQuery | None = None) -> list[Metric]:
        """Return the metrics that `Store.log_metrics` logged, in the order of names and then of steps.

        If a step has several numbers under one name, the last is returned.

        Args:
            query: the names, the range of steps, the moment and the maximum number of values; None for the defaults.

        Raises:
            Invalid: `as_at` is not a moment of the log.
            Unsupported: the store has no log.
        """
        raise Unsupported("log.metrics", self.backend)

    def tail(
        self,
        after: str | None = None,
        *,
        follow: bool = False,
        types: Sequence[str] | None = None,
        rollout_id: str | None = None,
    ) -> AsyncIterator[LoggedEvent]:
        """Yield the events of the log in the order of their commits, each exactly once.

        Args:
            after: the cursor of the last event that the caller has processed; None starts at the beginning.
            follow: at the end of the log, wait for more events instead of stopping.
            types: only these event types; None for all.
            rollout_id: only the events of this rollout; None for all.

        Raises:
            Invalid: `after` is not a cursor.
            Incompatible: `after` belongs to another store, or to a part of the log that this database does not have.
            Unsupported: the store has no log.
        """
        raise Unsupported("log.tail", self.backend)

    async def verify(
        self, seal: Seal | str | os.PathLike[str] | None = None, *, on_progress: OnProgress = ignore
    ) -> VerifyReport:
        """Check that the log is complete and unchanged and that every table agrees with it; return a report.

        In one snapshot, it checks the hash chain over all commits, the triggers that make the log append-only, the
        totals stored for statistics, and the counters of span numbers. The other tables are derived from the events.
        It also computes each of their rows from the events, and compares the result with the stored row. It changes
        nothing.

        Args:
            seal: a seal, or its path. If given, the log up to the seal is also compared with the seal.
            on_progress: called with the progress, in any thread. If there is a difference in a long log, the number of
                checked events starts again at 0. A client of a server calls it once, without a number.

        Raises:
            Unsupported: the store has no log.
        """
        raise Unsupported("log.verify", self.backend)

    async def rebuild(self, *, on_progress: OnProgress = ignore) -> RebuildReport:
        """Compute all tables that are derived from the events, and write the rows that are wrong.

        Other calls may read and write meanwhile.
        If a counter of span numbers is missing or wrong, it is set above every number that a recorded span has or that
        the log reserves for later spans.

        Args:
            on_progress: called with the number of compared events, in any thread. A client of a server calls it once,
                without a number.

        Raises:
            Corrupt: the log itself is damaged and must be restored first.
            Unsupported: the store has no log.
        """
        raise Unsupported("log.rebuild", self.backend)

    async def seal(self, path: str | os.PathLike[str]) -> Seal:
        """Write a seal, which describes the current end of the log, to a new JSON file, and return the seal.

        Store the file where nobody who can change the log can also change the file.

        Raises:
            FileExistsError: the file exists; a seal is never overwritten.
            Unsupported: the store has no log.
        """
        raise Unsupported("log.seal", self.backend)

    async def search(
        self,
        query: str,
        *,
        regex: str | None = None,
        rollouts: RolloutQuery | None = None,
        rollout_id: str | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> SearchPage:
        """Search the texts of rollouts: inputs, messages, tool calls and results, reasoning, errors and notes.

        A query has words, `"phrases"` and `prefixes*`, which one text must contain, and scopes such as `tool:bash`,
        `error:timeout`, `role:user` or `note:`, each for a text of its own. `-` before a term excludes rollouts.

        Args:
            query: the query.
            regex: a regular expression that the text must match too. It needs the extra `rollbook[search]`.
            rollouts: the conditions of this query restrict the rollouts; the order and the page are ignored.
            rollout_id: search only this rollout, and return up to 200 texts in the order of the log.
            limit: the maximum number of rollouts, 1 to 100.
            after: `next` of the page before; None for the first page.

        Returns:
            The rollouts, those with the latest matching text first. `events_behind` is the number of events at the end
            of the log that the search did not see.

        Raises:
            Invalid: the query is malformed; the message names the place and the cure.
            Unsupported: the store has no index of texts.
        """
        conditions = {} if rollouts is None else {name: getattr(rollouts, name) for name in _CONDITIONS}
        return await self.search_texts(
            SearchQuery.of(query=query, regex=regex, rollout_id=rollout_id, limit=limit, after=after, **conditions)
        )

    async def search_texts(self, query: SearchQuery) -> SearchPage:
        """Search as `search` does, given the arguments as a value."""
        raise Unsupported("log.search", self.backend)


class SyncLog(Blocking[StoreLog]):
    """Blocking methods of the log; see `StoreLog`."""

    history = blocking(StoreLog.history)
    position = blocking(StoreLog.position)
    take_spans = blocking(StoreLog.take_spans)
    usage = blocking(StoreLog.usage)
    metrics = blocking(StoreLog.metrics)
    tail = blocking_iterator(StoreLog.tail)
    search = blocking(StoreLog.search)
    search_texts = blocking(StoreLog.search_texts)
    verify = blocking(StoreLog.verify)
    rebuild = blocking(StoreLog.rebuild)
    seal = blocking(StoreLog.seal)
