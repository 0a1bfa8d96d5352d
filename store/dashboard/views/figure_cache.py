"""Figures of pages that were computed at the current end of the log, so that they are not computed for each visitor.

Decisions 121 and 125.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from store.db.dialect import ReadSession
from store.db.queries.log import last_commit
from store.db.queries.rollout_blocks import changed_blocks

T = TypeVar("T")

MOST: Final = 32
"""The maximum number of figures per store; the least recently used are dropped."""
OLDEST_SECONDS: Final = 600.0
"""The time after which the rows of all blocks are read again, so that they follow a repair by `rebuild`."""


class BlockRow(Protocol):
    """A row that was computed from rollouts of one block."""

    @property
    def block(self) -> int: ...


Row = TypeVar("Row", bound=BlockRow)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The rows of all blocks at one commit."""

    commit_id: int
    position: int
    """The last position of the log at this commit."""
    read_at: float
    """The time at which all blocks were read, in seconds of the monotonic clock."""
    rows: dict[int, list[Any]]
    """The rows by block."""


class FigureCache:
    """The figures of one store by their options, each with the last commit when it was computed.

    Projections change with commits, so figures of the last commit are those that the tables would give. A repair by
    `rebuild` writes no commit. After it, figures stay until the next commit, and rows of blocks for `OLDEST_SECONDS`.
    """

    def __init__(self) -> None:
        self._figures: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._blocks: OrderedDict[Hashable, _Blocks] = OrderedDict()

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
        _put(self._figures, key, (commit_id, figures))
        return figures

    async def rows(
        self, session: ReadSession, key: Hashable, read: Callable[[ReadSession, int | None], Awaitable[Sequence[Row]]]
    ) -> list[Row]:
        """Return the rows for a key. `read` computes those of one block; with None, those of all blocks.

        After commits, only the blocks of rollouts that changed are read again. A row must depend on nothing but the
        rollouts of its block and their attempts. The session must read one state of the store.
        """
        commit = await last_commit(session)
        if commit is None:
            return []
        before, now = self._blocks.get(key), time.monotonic()
        changed: set[int] | None = None
        if before is not None and before.commit_id <= commit.commit_id and now - before.read_at < OLDEST_SECONDS:
            changed = set()
            if before.commit_id < commit.commit_id:
                changed = await changed_blocks(session, before.position, commit.last_position)
        if before is None or changed is None:
            by_block: defaultdict[int, list[Any]] = defaultdict(list)
            for row in await read(session, None):
                by_block[row.block].append(row)
            blocks = _Blocks(commit.commit_id, commit.last_position, now, dict(by_block))
        else:
            rows = {block: list(await read(session, block)) for block in changed}
            blocks = _Blocks(commit.commit_id, commit.last_position, before.read_at, before.rows | rows)
        _put(self._blocks, key, blocks)
        return list(chain.from_iterable(blocks.rows[block] for block in sorted(blocks.rows)))


def _put(entries: OrderedDict[Hashable, Any], key: Hashable, entry: Any) -> None:
    entries[key] = entry
    entries.move_to_end(key)
    while len(entries) > MOST:
        entries.popitem(last=False)


_caches: WeakKeyDictionary[Any, FigureCache] = WeakKeyDictionary()


def cache_of(store: Any) -> FigureCache:
    """Return the cache of an open store."""
    return _caches.setdefault(store, FigureCache())
