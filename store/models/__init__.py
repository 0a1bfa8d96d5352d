"""The types of the API, named as in Agent-lightning 0.3, and what reads the log returns."""

from __future__ import annotations

from store.models.kinds import (
    UNSET,
    AttemptStatus,
    FilterLogic,
    RolloutMode,
    RolloutStatus,
    SortOrder,
    StatusCode,
    TaskInput,
    Unset,
    WorkerStatus,
)
from store.models.log import Difference, HistoryEvent, LoggedEvent, RebuildReport, Seal, VerifyReport
from store.models.pages import LightningStoreCapabilities, LightningStoreStatistics, PaginatedResult
from store.models.resources import (
    LLM,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    ResourceUnion,
)
from store.models.rollouts import (
    Attempt,
    AttemptedRollout,
    AttemptError,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    Worker,
)
from store.models.spans import Attributes, AttributeValue, Event, Link, OtelResource, Span, SpanContext, TraceStatus

__all__ = [
    "LLM",
    "UNSET",
    "Attempt",
    "AttemptError",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Difference",
    "EnqueueRolloutRequest",
    "Event",
    "FilterLogic",
    "HistoryEvent",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "Link",
    "LoggedEvent",
    "NamedResources",
    "OtelResource",
    "PaginatedResult",
    "PromptTemplate",
    "ProxyLLM",
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
    "TaskInput",
    "TraceStatus",
    "Unset",
    "VerifyReport",
    "Worker",
    "WorkerStatus",
]
