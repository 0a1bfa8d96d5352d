"""Rollbook: an event-sourced, SQL-backed rollout store for agent training.

    import store

    async with await store.open_store("sqlite:///run.db") as opened:
        await opened.enqueue_rollout({"question": "…"})

The names here are the public ones; those that Agent-lightning 0.3 has too mean the same here. Everything else may be
imported but may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from store.errors import (
    AlreadyExists,
    Busy,
    Closed,
    Conflict,
    Corrupt,
    Forbidden,
    Incompatible,
    Invalid,
    NotFound,
    PastUnavailable,
    ReadOnly,
    StoreError,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
    WrongProcess,
)
from store.interface import AsAt, Store
from store.models import (
    LLM,
    UNSET,
    Attempt,
    AttemptedRollout,
    AttemptError,
    AttemptStatus,
    Attributes,
    AttributeValue,
    Difference,
    EnqueueRolloutRequest,
    Event,
    FilterLogic,
    HistoryEvent,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    Link,
    LoggedEvent,
    NamedResources,
    OtelResource,
    PaginatedResult,
    PromptTemplate,
    ProxyLLM,
    RebuildReport,
    Resource,
    ResourcesUpdate,
    ResourceUnion,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Seal,
    SortOrder,
    Span,
    SpanContext,
    StatusCode,
    TaskInput,
    TraceStatus,
    Unset,
    VerifyReport,
    Worker,
    WorkerStatus,
)

if TYPE_CHECKING:
    from store.client import HTTPStore, LightningStoreClient
    from store.memory import InMemoryLightningStore
    from store.opening import open_store
    from store.server import LightningStoreServer, LightningStoreThreaded, StoreServer
    from store.sync import SyncStore

__all__ = [
    "LLM",
    "UNSET",
    "AlreadyExists",
    "AsAt",
    "Attempt",
    "AttemptError",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Busy",
    "Closed",
    "Conflict",
    "Corrupt",
    "Difference",
    "EnqueueRolloutRequest",
    "Event",
    "FilterLogic",
    "Forbidden",
    "HTTPStore",
    "HistoryEvent",
    "InMemoryLightningStore",
    "Incompatible",
    "Invalid",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "Link",
    "LoggedEvent",
    "NamedResources",
    "NotFound",
    "OtelResource",
    "PaginatedResult",
    "PastUnavailable",
    "PromptTemplate",
    "ProxyLLM",
    "ReadOnly",
    "RebuildReport",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutStatus",
    "Seal",
    "SortOrder",
    "Span",
    "SpanContext",
    "StatusCode",
    "Store",
    "StoreError",
    "StoreServer",
    "SyncStore",
    "TaskInput",
    "TimedOut",
    "TooLarge",
    "TraceStatus",
    "Unauthorized",
    "Unavailable",
    "Unset",
    "Unsupported",
    "VerifyReport",
    "Worker",
    "WorkerStatus",
    "WrongProcess",
    "open_store",
]

LightningStore = Store
"""Agent-lightning's name of the interface."""

# These bring SQLAlchemy and the drivers, or threads, which a program that only passes models around should not have to
# wait for.
_LATE = {
    "HTTPStore": "store.client",
    "InMemoryLightningStore": "store.memory",
    "LightningStoreClient": "store.client",
    "LightningStoreServer": "store.server",
    "LightningStoreThreaded": "store.server",
    "StoreServer": "store.server",
    "SyncStore": "store.sync",
    "open_store": "store.opening",
}

# A type checker that saw it would believe that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_LATE[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
