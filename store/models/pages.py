"""What queries and self-descriptions return."""

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
    """As asked for; -1 means all."""
    offset: int
    """As asked for."""
    total: int
    """How many match before paging."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    # A pydantic model iterates over its fields; a page, as in Agent-lightning 0.3, over its items.
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
    """How much the store holds. A bare store returns only `name`."""

    name: str
    """Class of the store that holds the data."""
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    """Resource ids, not versions."""
    total_workers: int
    uptime: float
    """Seconds since this store object was opened; strictly greater at every call."""
    total_span_bytes: int
    eviction_threshold_bytes: int
    safe_threshold_bytes: int
    memory_capacity_bytes: int


class LightningStoreCapabilities(TypedDict, total=False):
    """What callers may rely on; an absent key means False."""

    thread_safe: bool
    """Calls may come from any thread."""
    async_safe: bool
    """Calls may come from any number of tasks."""
    zero_copy: bool
    """The object may be handed to another process and still be the same store."""
    otlp_traces: bool
    """It takes OTLP traces at `otlp_traces_endpoint()`."""
