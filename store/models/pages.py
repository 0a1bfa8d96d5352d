"""Results of queries, and descriptions of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, overload

# pydantic accepts the TypedDict of typing from Python 3.12 only.
from typing_extensions import TypedDict

from store.models.enums import Frozen

Item = TypeVar("Item", covariant=True)  # noqa: PLC0105


class PaginatedResult(Frozen, Sequence[Item], Generic[Item]):
    """A page of matches; a sequence of its items, though not equal to a list of them."""

    items: Sequence[Item]
    limit: int
    """As in the query; -1 means all."""
    offset: int
    """As in the query."""
    total: int
    """The number of matches before paging."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    # A pydantic model iterates over its fields; a page iterates over its items, as in Agent-lightning 0.3.
    def __iter__(self) -> Iterator[Item]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self.items)

    def __repr__(self) -> str:
        until = "" if self.limit == -1 else self.offset + self.limit
        return f"<PaginatedResult ({self.offset}:{until} of {self.total}) {self._body()}>"

    def _body(self) -> str:
        match len(self.items):
            case 0:
                return "empty"
            case 1:
                return repr(self.items[0])
            case _:
                return f"[{self.items[0]!r}, ...]"


class LightningStoreStatistics(TypedDict, total=False):
    """The contents of the store in numbers. A store without statistics returns only `name`."""

    name: str
    """Class of the store that holds the data."""
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    """Resource ids, not versions."""
    total_workers: int
    uptime: float
    """Seconds since this store object was opened; greater at every call."""
    total_span_bytes: int
    eviction_threshold_bytes: int
    safe_threshold_bytes: int
    memory_capacity_bytes: int


class LightningStoreCapabilities(TypedDict, total=False):
    """Properties on which callers may rely; an absent key means False."""

    thread_safe: bool
    """Calls may come from any thread."""
    async_safe: bool
    """Calls may come from any number of tasks."""
    zero_copy: bool
    """The object may be passed to another process and remains the same store."""
    otlp_traces: bool
    """The store accepts OTLP traces at `otlp_traces_endpoint()`."""
