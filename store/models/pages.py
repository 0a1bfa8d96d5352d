"""Pages of query results, and the statistics and capabilities of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, overload

# Before Python 3.12, pydantic does not accept the TypedDict of `typing`.
from typing_extensions import TypedDict

from store.models.enums import Frozen

Item = TypeVar("Item", covariant=True)  # noqa: PLC0105


class PaginatedResult(Frozen, Sequence[Item], Generic[Item]):
    """One page of the results of a query. It is a sequence, but it never equals a list of the same items."""

    items: Sequence[Item]
    limit: int
    """The limit in the query: the maximum number of items, or -1 for all."""
    offset: int
    """The offset in the query: the number of matches to skip before the page."""
    total: int
    """The number of all matches, including those that are not on this page."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    # pydantic's own `__iter__` yields fields. A page yields its items, as in Agent-lightning 0.3.
    def __iter__(self) -> Iterator[Item]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self.items)

    def __repr__(self) -> str:
        until = "" if self.limit == -1 else self.offset + self.limit
        return f"<PaginatedResult ({self.offset}:{until} of {self.total}) {self._body()}>"

    def _repr_html_(self) -> str:
        from store.runtime import html

        kind = type(self.items[0]).__name__.removeprefix("Attempted") if self.items else "Result"
        return html.titled(f"{kind}: {len(self.items):,} of {self.total:,}", html.items(self.items, self.total))

    def _body(self) -> str:
        match len(self.items):
            case 0:
                return "empty"
            case 1:
                return repr(self.items[0])
            case _:
                return f"[{self.items[0]!r}, ...]"


class LightningStoreStatistics(TypedDict, total=False):
    """Counts of the objects in a store. A store that does not count its objects returns only `name`."""

    name: str
    """The class name of the store that holds the data."""
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    """The number of resource ids. Several versions under one id count as one."""
    total_workers: int
    uptime: float
    """Seconds since this store object was opened, measured by a monotonic clock."""
    total_span_bytes: int
    eviction_threshold_bytes: int
    safe_threshold_bytes: int
    memory_capacity_bytes: int


class LightningStoreCapabilities(TypedDict, total=False):
    """Properties on which callers may rely; an absent key means False."""

    thread_safe: bool
    """Calls may come from any thread."""
    async_safe: bool
    """Any number of tasks may call the store at the same time."""
    zero_copy: bool
    """The store object may be passed to another process; the copy there uses the same stored data."""
    otlp_traces: bool
    """The store accepts OTLP traces at `otlp_traces_endpoint()`."""
