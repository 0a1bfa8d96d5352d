"""Figures of pages that were computed at the current end of the log, so that they are not computed for each visitor.

Decision 121.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from store.db.dialect import ReadSession
from store.db.queries.log import last_commit

T = TypeVar("T")

MOST: Final = 32
"""The maximum number of figures per store; the least recently used are dropped."""


class FigureCache:
    """The figures of one store by their options, each with the last commit when it was computed.

    Projections change with commits, so figures of the last commit are those that the tables would give. After a repair
    by `rebuild`, which writes no commit, they stay until the next commit.
    """

    def __init__(self) -> None:
        self._figures: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    async def read(self, session: ReadSession, key: Hashable, compute: Callable[[ReadSession], Awaitable[T]]) -> T:
        """Return the figures for a key, and compute them if the log has changed since they were computed.

        The session must read one state of the store.
        """
        commit = await last_commit(session)
        commit_id = 0 if commit is None else commit.commit_id
        before = self._figures.get(key)
        if before is not None and before[0] == commit_id:
            self._figures.move_to_end(key)
            return cast("T", before[1])
        figures = await compute(session)
        self._figures[key] = (commit_id, figures)
        self._figures.move_to_end(key)
        while len(self._figures) > MOST:
            self._figures.popitem(last=False)
        return figures


_caches: WeakKeyDictionary[Any, FigureCache] = WeakKeyDictionary()


def cache_of(store: Any) -> FigureCache:
    """Return the cache of an open store."""
    return _caches.setdefault(store, FigureCache())
