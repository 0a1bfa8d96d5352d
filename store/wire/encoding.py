"""Conversion of models to JSON and back.

orjson writes responses directly from the models' dicts. This is several times faster than pydantic's serialiser, and
the text is the same: it contains every field, absent values are null, and keys without a field are last. Only models
that accept unknown keys have such keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, Discriminator, Tag, TypeAdapter

from store.models import (
    Annotations,
    Artifact,
    ArtifactRef,
    Attempt,
    AttemptDiff,
    AttemptedRollout,
    AttemptNode,
    CheckpointRef,
    ForkPlan,
    HistoryEvent,
    LightningStoreStatistics,
    LoggedEvent,
    LogPosition,
    PaginatedResult,
    RebuildReport,
    ResourcesUpdate,
    Rollout,
    RunEventPage,
    RunGraph,
    Seal,
    Snapshot,
    Span,
    VerifyReport,
    Worker,
)
from store.models.search import SearchPage

T = TypeVar("T")
Decoder = Callable[[bytes], T]


def dumps(value: Any) -> bytes:
    """Return models, and lists and dicts of models, as JSON.

    The caller must pass only values that come from a store, because other values may contain NaN.
    """
    return orjson.dumps(value, default=_fields)


def dumps_exact(value: Any) -> bytes:
    """Return a request as JSON, with NaN and infinities written as `NaN` and `Infinity`, not as null.

    So the server can refuse these values and report the field, as for integers beyond 64 bits and lone surrogates.

    Raises:
        TypeError: a value cannot be written as JSON.
        ValueError: a value contains itself.
    """
    try:
        text = orjson.dumps(value, default=_fields, option=_STRICT)
    except TypeError:
        return json.dumps(value, default=_fields).encode()
    # orjson writes NaN as null, so a null in the text may have been a NaN.
    return json.dumps(value, default=_fields).encode() if b"null" in text else text


_STRICT: Final = orjson.OPT_STRICT_INTEGER | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def _fields(value: Any) -> Any:
    if not isinstance(value, BaseModel):
        raise TypeError(f"{type(value).__name__} is not JSON; convert it to text, numbers, lists and objects")
    extras = value.__pydantic_extra__
    # The dict belongs to the model, so keys must be added to a copy.
    return {**value.__dict__, **extras} if extras else value.__dict__


def _which_rollout(value: Any) -> str:
    return "attempted" if (isinstance(value, AttemptedRollout) or "attempt" in value) else "plain"


AnyRollout = Annotated[
    Annotated[Rollout, Tag("plain")] | Annotated[AttemptedRollout, Tag("attempted")], Discriminator(_which_rollout)
]
"""A rollout. It has an attempt if and only if the key `attempt` is present."""


def decoder(kind: Any) -> Decoder[Any]:
    """Return a function that decodes JSON to a type."""
    # A program uses few of the decoders, so each is built when it is first used. Models are always built this way, and
    # pydantic refuses a second config for them.
    config = None if _is_model(kind) else ConfigDict(defer_build=True)
    return TypeAdapter(kind, config=config).validate_json


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _page_decoder(item: Any) -> Decoder[PaginatedResult[Any]]:
    items: TypeAdapter[PaginatedResult[Any]] = TypeAdapter(cast("Any", PaginatedResult)[item])

    def decode(text: bytes) -> PaginatedResult[Any]:
        page = items.validate_json(text)
        # `page` has a class with a type parameter in its name, which cannot be pickled, so the plain class is used.
        return PaginatedResult(items=page.items, limit=page.limit, offset=page.offset, total=page.total)

    return decode


decode_rollout: Decoder[Rollout | AttemptedRollout] = decoder(AnyRollout)
decode_rollout_or_none: Decoder[Rollout | AttemptedRollout | None] = decoder(AnyRollout | None)
decode_rollouts: Decoder[list[Rollout]] = decoder(list[Rollout])
decode_attempt_or_none: Decoder[Attempt | None] = decoder(Attempt | None)
decode_span_or_none: Decoder[Span | None] = decoder(Span | None)
decode_resources_or_none: Decoder[ResourcesUpdate | None] = decoder(ResourcesUpdate | None)
decode_worker_or_none: Decoder[Worker | None] = decoder(Worker | None)

decode_rollout_page: Decoder[PaginatedResult[Rollout | AttemptedRollout]] = _page_decoder(AnyRollout)
decode_attempt_page: Decoder[PaginatedResult[Attempt]] = _page_decoder(Attempt)
decode_span_page: Decoder[PaginatedResult[Span]] = _page_decoder(Span)
decode_resources_page: Decoder[PaginatedResult[ResourcesUpdate]] = _page_decoder(ResourcesUpdate)
decode_worker_page: Decoder[PaginatedResult[Worker]] = _page_decoder(Worker)

# Statistics and capabilities are plain dicts; pydantic can check their types (TypedDict) only in newer Python versions.
decode_statistics: Decoder[LightningStoreStatistics] = orjson.loads
decode_history: Decoder[list[HistoryEvent]] = decoder(list[HistoryEvent])
decode_verify_report: Decoder[VerifyReport] = decoder(VerifyReport)
decode_rebuild_report: Decoder[RebuildReport] = decoder(RebuildReport)
decode_seal: Decoder[Seal] = decoder(Seal)


class LogPage(BaseModel):
    """A page of GET /log."""

    events: list[LoggedEvent]
    cursor: str | None
    """The cursor after which the next page begins. Without events, it is the cursor of the request."""


class DerivedIds(BaseModel):
    """The ids of a stored span that differ from those in the request."""

    index: int
    """The index of the span in the request."""
    span_id: str
    parent_id: str | None


class Recorded(BaseModel):
    """The response to POST /spans/batch."""

    recorded: list[tuple[int, int]]
    """The index in the request and the sequence number of each new span, in the order of recording."""
    derived: list[DerivedIds] = []
    """The ids of each new span whose ids differ from the request.

    If a span of another trace in the attempt has the same id, a span is stored under a derived id. Its children in the
    request then have the derived id as parent id.
    """


def recorded_body(
    spans: Sequence[Span], numbers: Sequence[tuple[int, int]], ids: Mapping[int, tuple[str, str | None]]
) -> bytes:
    """Return the response to POST /spans/batch.

    Args:
        spans: the spans of the request.
        numbers: the index and the sequence number of each new span.
        ids: the stored span id and parent id of each new span, by index.
    """
    derived = [
        {"index": index, "span_id": span_id, "parent_id": parent_id}
        for index, (span_id, parent_id) in ids.items()
        if (span_id, parent_id) != (spans[index].span_id, spans[index].parent_id)
    ]
    return dumps({"recorded": numbers, "derived": derived} if derived else {"recorded": numbers})


class StoreInfo(BaseModel):
    """The response to GET /store."""

    store_id: str
    """The id of the log. A copy of a database has the same id."""
    partition: str
    version: str
    """The version of the program that runs the server."""
    kind: str
    """The name of the class of the server's store."""
    read_only: bool = False
    """Whether the server refuses changes, for example because its database is a replica."""


decode_log_page: Decoder[LogPage] = decoder(LogPage)
decode_log_position: Decoder[LogPosition] = decoder(LogPosition)
decode_recorded: Decoder[Recorded] = decoder(Recorded)
decode_store_info: Decoder[StoreInfo] = decoder(StoreInfo)

decode_run_events: Decoder[RunEventPage] = decoder(RunEventPage)
decode_run_graph: Decoder[RunGraph] = decoder(RunGraph)
decode_checkpoints: Decoder[list[CheckpointRef]] = decoder(list[CheckpointRef])
decode_snapshot: Decoder[Snapshot] = decoder(Snapshot)
decode_snapshot_or_none: Decoder[Snapshot | None] = decoder(Snapshot | None)
decode_artifact_refs: Decoder[list[ArtifactRef]] = decoder(list[ArtifactRef])
decode_artifacts: Decoder[list[Artifact]] = decoder(list[Artifact])
decode_fork_plan: Decoder[ForkPlan] = decoder(ForkPlan)
decode_lineage: Decoder[list[AttemptNode]] = decoder(list[AttemptNode])
decode_annotations: Decoder[Annotations] = decoder(Annotations)
decode_search_page: Decoder[SearchPage] = decoder(SearchPage)
decode_difference: Decoder[AttemptDiff] = decoder(AttemptDiff)
