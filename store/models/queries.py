"""Queries as values: the arguments of each query of a store, defined once. Decision 33.

The interface builds a value from its keyword arguments without checks; a server validates a value from a request. A
store checks a value when it executes the query.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from store.errors import Invalid
from store.models.enums import FilterLogic, Frozen, RolloutMode, RolloutStatus, SortOrder, WorkerStatus
from store.models.resources import ResourcesUpdate
from store.models.rollouts import Attempt, Rollout, Worker
from store.models.spans import Span
from store.models.usage import UsageKey

_LAST: Final = 2**63 - 1

ConditionKind = Literal["text", "texts", "integers", "number"]


def moment_of(value: Any) -> Any:
    """Return a moment of the log: text is converted to a position or a time, other values are returned unchanged.

    Raises:
        Invalid: the text is neither a number nor a time of RFC 3339.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip("-").isdecimal():
        return int(value)
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise Invalid(
            "as_at", f"{value!r} is neither a position nor a time; write 1234 or 2026-11-20T02:00:00Z"
        ) from None


Moment = Annotated[
    Any,
    BeforeValidator(moment_of),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string", "format": "date-time"}, {"type": "null"}],
            "description": "The moment of the state: a position of the log, or an RFC 3339 time.",
        }
    ),
]


Whole = Annotated[int, Field(ge=-_LAST - 1, le=_LAST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _shared(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the fields of a model that Agent-lightning 0.3 has too."""
    return tuple(name for name in model.model_fields if name not in {"reward", "rewards"})


class PastQuery(Frozen):
    """Base of queries that can read a past moment of the log. Not part of Agent-lightning 0.3."""

    as_at: Moment = None

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Return a query with these arguments, unchecked. The store that executes it refuses invalid arguments."""
        # This code does what `model_construct` does, in a third of the time.
        query = object.__new__(cls)
        object.__setattr__(query, "__dict__", {**_defaults(cls), **arguments})
        object.__setattr__(query, "__pydantic_fields_set__", set(arguments))
        object.__setattr__(query, "__pydantic_extra__", None)
        object.__setattr__(query, "__pydantic_private__", None)
        return query


class RolloutPastQuery(PastQuery):
    """Base of queries that can read a past moment of the log or of a rollout's history. Not in Agent-lightning 0.3."""

    at: int | None = None


class PageQuery(PastQuery):
    """Base of queries that return a page of matches in an order.

    A subclass adds fields that are conditions on a property, here called `name`. The field `name` requires an equal
    text, `name_in` requires one of several values, `name_contains` requires a substring, and `name_min` and `name_max`
    require a number in a range that includes its ends.
    """

    # Responses contain the limit and the offset too, and clients cannot read integers of more than 64 bits.
    limit: int = Field(default=-1, le=_LAST)
    offset: int = Field(default=0, le=_LAST)
    sort_by: str | None = None
    sort_order: SortOrder = "asc"

    scope: ClassVar[tuple[str, ...]] = ()
    """The fields that define where to search. `filter_logic`, which joins conditions, does not apply to them."""
    sortable: ClassVar[tuple[str, ...]] = ()
    """The fields that servers of Agent-lightning accept in `sort_by`.

    The error for other fields lists them in this order, as in Agent-lightning 0.3.
    """
    additions: ClassVar[frozenset[str]] = frozenset()
    """Conditions and values of `sort_by` that Agent-lightning 0.3 does not have. Its servers would ignore them."""

    @classmethod
    def conditions(cls) -> tuple[str, ...]:
        """Return the names of the fields that are conditions."""
        return _conditions(cls)

    @property
    def uses_additions(self) -> bool:
        """Whether the query has a condition or an order that Agent-lightning 0.3 does not have."""
        # An invalid order may be of any type.
        is_added = isinstance(self.sort_by, str) and self.sort_by in self.additions  # pyright: ignore[reportUnnecessaryIsInstance]
        return is_added or any(getattr(self, name) is not None for name in self.conditions() if name in self.additions)


class RolloutQuery(PageQuery):
    """A query of rollouts."""

    sortable = _shared(Rollout)
    additions = frozenset(
        {"mode_in", "group_in", "step_in", "plan_key_in", "label_in", "scan_match", "resources_id_in"}
        | {
            "resources_version_in",
            "reward_min",
            "reward_max",
            "reward",
            "group",
            "step",
            "plan_key",
            "label",
            "resources_version",
        }
    )

    status_in: list[RolloutStatus] | None = None
    rollout_id_in: list[str] | None = None
    rollout_id_contains: str | None = None
    mode_in: list[RolloutMode] | None = None
    group_in: list[str] | None = None
    """The groups, which `rollbook.group` in the metadata named when the rollout was created."""
    step_in: list[Whole] | None = None
    """The steps, which `rollbook.step` in the metadata gave when the rollout was created."""
    plan_key_in: list[str] | None = None
    """The plan keys, which `rollbook.key` in the metadata gave when the rollout was created."""
    label_in: list[str] | None = None
    """Only rollouts that have at least one of these labels."""
    scan_match: str | None = None
    """Only rollouts whose latest attempt this version of a scanner matched, such as `hacks@v1`."""
    resources_id_in: list[str] | None = None
    resources_version_in: list[Whole] | None = None
    """The versions of the resources that the rollout was given."""
    reward_min: Finite | None = None
    """Only rollouts with a final reward (`Rollout.reward`) of at least this value."""
    reward_max: Finite | None = None
    """Only rollouts with a final reward (`Rollout.reward`) of at most this value."""
    reward_version: str | None = None
    """The version whose scores are the rewards, such as `helpful@v2`; None for the rewards that agents recorded."""
    filter_logic: FilterLogic = "and"

    @property
    def uses_additions(self) -> bool:
        """Whether the query has a part that Agent-lightning 0.3 does not have."""
        return self.reward_version is not None or super().uses_additions


class SearchQuery(RolloutQuery):
    """A full-text search. The conditions of `RolloutQuery` restrict the rollouts."""

    scope = ("query", "regex", "after", "rollout_id")

    query: str
    """The query: words, phrases, prefixes and scopes. `docs/search.md` describes the language."""
    regex: str | None = None
    """A regular expression of RE2 that a text must match too."""
    rollout_id: str | None = None
    """Only this rollout. The page then has one result with up to 200 texts, in the order of the log."""
    limit: int = Field(default=20, ge=1, le=100)
    """The maximum number of rollouts."""
    after: str | None = None
    """The cursor of the page before; None for the first page."""


class UsageQuery(RolloutQuery):
    """A query of the usage of models by rollouts: the calls, tokens and reported costs."""

    scope = ("by",)

    by: UsageKey = "all"
    """The division of the sums. `limit` and `offset` select some of its keys.

    Steps, versions and modes are in ascending order, models, groups, runs and rollouts in that of most tokens.
    """


class AttemptQuery(PageQuery):
    """A query of the attempts of a rollout."""

    sortable = _shared(Attempt)

    sort_by: str | None = "sequence_id"
    at: int | None = None


class WorkerQuery(PageQuery):
    """A query of workers."""

    sortable = tuple(Worker.model_fields)

    status_in: list[WorkerStatus] | None = None
    worker_id_contains: str | None = None
    filter_logic: FilterLogic = "and"


class ResourcesQuery(PageQuery):
    """A query of resources in their current version."""

    sortable = tuple(ResourcesUpdate.model_fields)

    resources_id: str | None = None
    resources_id_contains: str | None = None


MAX_ROLLOUTS: Final = 1000
"""The most rollouts whose spans one query reads."""


def _rollout_ids(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate one rollout id, or a list of them. A list of one is the same as the id itself."""
    if not isinstance(value, list):
        return validate(value)
    ids = [validate(item) for item in cast("list[Any]", value)]
    return ids[0] if len(ids) == 1 else ids


RolloutIds = Annotated[
    str,
    WrapValidator(_rollout_ids),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class SpanQuery(PageQuery):
    """A query of the spans of a rollout or of several rollouts, or of one attempt of each."""

    scope = ("rollout_id", "attempt_id")
    sortable = tuple(Span.model_fields)

    rollout_id: RolloutIds
    """The id of a rollout, or a list of at most `MAX_ROLLOUTS` ids, which Agent-lightning 0.3 does not have."""
    attempt_id: str | None = None
    trace_id: str | None = None
    trace_id_contains: str | None = None
    span_id: str | None = None
    span_id_contains: str | None = None
    parent_id: str | None = None
    parent_id_contains: str | None = None
    name: str | None = None
    name_contains: str | None = None
    filter_logic: FilterLogic = "and"
    sort_by: str | None = "sequence_id"
    at: int | None = None

    @property
    def several(self) -> list[str] | None:
        """The ids of the rollouts in ascending order, each once; None for a query with a single id.

        Raises:
            Invalid: the query has too many ids, ids of a wrong type, or a number of one rollout's history.
        """
        value: Any = self.rollout_id
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
            return None
        ids = list(cast("Collection[Any]", value))
        for rollout_id in ids:
            if not isinstance(rollout_id, str):
                raise Invalid("rollout_id", f"{rollout_id!r} is not text")
        distinct = sorted(set(ids))
        if len(distinct) > MAX_ROLLOUTS:
            raise Invalid(
                "rollout_id",
                f"has {len(distinct):,} rollouts, and one query reads the spans of at most {MAX_ROLLOUTS:,};"
                " split the list",
            )
        if self.at is not None:
            raise Invalid("at", "is a number in the history of one rollout; give as_at for several rollouts")
        return distinct

    @property
    def uses_additions(self) -> bool:
        """Whether the query is for several rollouts, which Agent-lightning 0.3 does not have."""
        return self.several is not None


class RunEventQuery(RolloutPastQuery):
    """A query of the events of a run.

    A view is a selection of the run's events: `head` (the current state of the run), `attempt:<n>`, `own:<n>` or `raw`.
    The class `StoreRuns` describes each.
    """

    view: str = "head"
    after: int = Field(default=0, ge=0, le=_LAST)
    """The version of the last event that the caller has processed."""
    limit: int = Field(default=500, ge=-1, le=_LAST)
    """The maximum number of events; -1 for all."""
    scope: str | None = None
    node_id: str | None = None
    kind: str | None = None
    bodies: bool = True
    """Whether to include messages, prompts, responses and errors."""


class CheckpointQuery(RolloutPastQuery):
    """A query of the checkpoints of a run."""

    scope: str | None = None
    name: str | None = None
    view: str = "raw"


class ArtifactQuery(RolloutPastQuery):
    """A query of the artifacts of a run."""

    scope: str | None = None
    name: str | None = None
    view: str = "head"
    limit: int = Field(default=-1, ge=-1, le=_LAST)
    """The maximum number of artifacts; -1 for all. If more artifacts match, the latest are returned."""


@cache
def _defaults(kind: type[PastQuery]) -> dict[str, Any]:
    """Return the default values of a query's optional fields, by name. Queries share them; all are immutable."""
    return {name: field.default for name, field in kind.model_fields.items() if not field.is_required()}


@cache
def _conditions(kind: type[PageQuery]) -> tuple[str, ...]:
    others = {*PageQuery.model_fields, *kind.scope, "filter_logic", "reward_version", "at"}
    return tuple(name for name in kind.model_fields if name not in others)


@cache
def list_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of the fields that hold lists. A query string may repeat these fields."""
    return frozenset(
        name
        for name, field in model.model_fields.items()
        if any(get_origin(kind) is list for kind in (field.annotation, *get_args(field.annotation)))
        or any(isinstance(annotation, WrapValidator) for annotation in field.metadata)
    )


@cache
def kind_of(model: type[PageQuery], name: str) -> ConditionKind:
    """Return the kind of value that a condition takes."""
    annotation = model.model_fields[name].annotation
    if name in list_fields(model):
        return "integers" if "int" in repr(annotation) else "texts"
    return "number" if "float" in repr(annotation) else "text"
