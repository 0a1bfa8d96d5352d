"""Names of spans, attributes and metadata keys that the store interprets, and the summary of a span's attributes.

`FEEDS` defines the attributes from which each field of `span.recorded` is read. `FEEDS` is part of the log's format,
because the log stores the values that were read. So a new field requires a new shape of `span.recorded`, and a name
that is added to a field applies to later spans only. Decision 109.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count
from typing import Any, Final, NamedTuple, cast

import orjson

ANNOTATION_SPAN: Final = "agentlightning.annotation"
MESSAGE_SPAN: Final = "agentlightning.message"
OBJECT_SPAN: Final = "agentlightning.object"
EXCEPTION_SPAN: Final = "agentlightning.exception"
OPERATION_SPAN: Final = "agentlightning.operation"
ORIGINAL_SPAN_ID: Final = "rollbook.original_span_id"
"""The attribute with the original id of a span.

The store gives a span a derived id if a span of another trace in the same attempt already has the original id.
"""
REWARD_SPAN: Final = "agentlightning.reward"
VIRTUAL_SPAN: Final = "agentlightning.virtual"

ROLLOUT_ID: Final = "agentlightning.rollout_id"
ATTEMPT_ID: Final = "agentlightning.attempt_id"
SPAN_SEQUENCE_ID: Final = "agentlightning.span_sequence_id"
TRACER_NAME: Final = "agentlightning.tracer.name"

REWARD: Final = "agentlightning.reward"
LINK: Final = "agentlightning.link"
TAG: Final = "agentlightning.tag"
MESSAGE_BODY: Final = "agentlightning.message.body"
OBJECT_TYPE: Final = "agentlightning.object.type"
OBJECT_LITERAL: Final = "agentlightning.object.literal"
OBJECT_JSON: Final = "agentlightning.object.json"
OPERATION_NAME: Final = "agentlightning.operation.name"
OPERATION_INPUT: Final = "agentlightning.operation.input"
OPERATION_OUTPUT: Final = "agentlightning.operation.output"

NODE_ID: Final = "agl.node_id"
SCOPE: Final = "agl.scope"
PARENT_NODE_ID: Final = "agl.parent_node_id"
PHASE: Final = "agl.phase"
NODE_EXEC: Final = "agl.node_exec"
KIND: Final = "agl.kind"

CHANGED: Final = "rollbook.changed"
"""The attribute with a list of the values that the store changed in a span received as OTLP.

The store changes values that it could not store otherwise.
"""
FULL_TEXT: Final = "rollbook.full."
"""The prefix of attributes that contain the full text of a shortened value."""

DROPPED: Final = "rollbook.dropped"
"""The attribute or metadata key, with the value true, of an object whose payload was removed from the store."""

GROUP_KEY: Final = "rollbook.group"
STEP_KEY: Final = "rollbook.step"
PLAN_KEY: Final = "rollbook.key"
REPLAY: Final = "rollbook.replay"
"""The metadata key of a rollout that is a replay. Its value is an object that refers to the source of the replay.

The fields are `name` (the replay), `store_id` and `rollout_id` (the source), and, if the source has them, `key` (its
plan key), `resources_id` and `resources_version`. If the source is a replay too, `key` is that of the first rollout.
"""
SOURCE_KEY: Final = "rollbook.source"
"""The key in the metadata of an imported rollout for its origin, an object.

The object has the `format` and the `key` of the rollout in its source and, where they are known, the `start_time` and
the `end_time` in the source, in seconds since the epoch, and the `sha256` of the source's content. The times of the
rollout itself are those of its import.
"""
RESERVED_METADATA: Final[Mapping[str, type[str | int]]] = {GROUP_KEY: str, STEP_KEY: int, PLAN_KEY: str}
"""Keys of a rollout's metadata that the store reads when the rollout is created, with their types."""

EXPORTED: Final = "rollbook.exported"
"""The attribute of a span in an export to OTLP with the fields that OTLP cannot represent, as JSON."""
MODE: Final = "rollbook.mode"
RESOURCES_ID: Final = "rollbook.resources_id"
INPUT: Final = "rollbook.input"
METADATA: Final = "rollbook.metadata"
ATTEMPT_NUMBER: Final = "rollbook.attempt"
ATTEMPT_STATUS: Final = "rollbook.status"
ATTEMPT_REWARD: Final = "rollbook.reward"
EXPORT_ATTRIBUTES: Final = (
    *(ROLLOUT_ID, ATTEMPT_ID, SPAN_SEQUENCE_ID),
    *(GROUP_KEY, STEP_KEY, MODE, RESOURCES_ID, INPUT, METADATA),
    *(ATTEMPT_NUMBER, ATTEMPT_STATUS, ATTEMPT_REWARD),
)
"""The attributes that an export to OTLP adds to spans, apart from `EXPORTED`. The reader of OTLP removes them.

The input and the metadata of a rollout, as JSON, are attributes of its first span only.
"""

PRIMARY: Final = "primary"
"""The name of a reward without a name."""

_FIRST_REWARD: Final = f"{REWARD}.0.value"
_AGENTOPS_OUTPUTS: Final = ("agentops.task.output", "agentops.entity.output")
_ANNOTATED_REWARD: Final = "reward"
_TOOL_NAMES: Final = ("tool.name", "gen_ai.tool.name")

RESPONSE_MODELS: Final = ("gen_ai.response.model", "llm.response.model_name", "llm.model_name")
REQUEST_MODELS: Final = ("gen_ai.request.model", "llm.request.model_name")
TOTAL_TOKENS: Final = ("gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total")
_PARTS_OF_COST: Final = ("llm.cost.prompt", "llm.cost.completion")

FEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "rewards": (_FIRST_REWARD, *_AGENTOPS_OUTPUTS, _ANNOTATED_REWARD),
    "tokens_in": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
    "tokens_out": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
    "model": (*RESPONSE_MODELS, *REQUEST_MODELS),
    "response_id": ("gen_ai.response.id", f"{OPERATION_OUTPUT}.id", "llm.hosted_vllm.id"),
    "kind": (KIND, *_TOOL_NAMES),
    "node_id": (NODE_ID,),
    "scope": (SCOPE,),
    "parent_node_id": (PARENT_NODE_ID,),
    "phase": (PHASE,),
    "node_exec": (NODE_EXEC,),
    "tokens_cached": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.cached_tokens",
        "gen_ai.usage.prompt_tokens_details.cached_tokens",
        "gen_ai.usage.details.cache_read_tokens",
        "llm.token_count.prompt_details.cache_read",
    ),
    "tokens_written": (
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "gen_ai.usage.details.cache_write_tokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    "tokens_reasoning": (
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.reasoning_tokens",
        "gen_ai.usage.completion_tokens_details.reasoning_tokens",
        "gen_ai.usage.details.reasoning_tokens",
        "llm.token_count.completion_details.reasoning",
    ),
    "cost": ("llm.cost.total", "gen_ai.usage.cost", "gen_ai.cost.total_cost", "operation.cost", *_PARTS_OF_COST),
}
"""The attributes from which each field of `span.recorded` is read; the first with a valid value is used.

The cost is the sum of the last two attributes if no other attribute contains it.
"""

_READ: Final = frozenset(name for names in FEEDS.values() for name in names)
_READ_OF_GRAPH: Final = frozenset(
    name for field in ("node_id", "scope", "parent_node_id", "phase", "node_exec") for name in FEEDS[field]
)
_READ_OF_USAGE: Final = frozenset(
    name for field in ("tokens_cached", "tokens_written", "tokens_reasoning", "cost") for name in FEEDS[field]
)
INDEXED_TEXTS: Final = frozenset(
    name
    for field in ("model", "response_id", "node_id", "scope", "parent_node_id", "phase", "node_exec")
    for name in FEEDS[field]
) | {KIND}
"""The attributes whose text the store copies into columns.

A text may have at most `MAX_INDEXED_BYTES` bytes of UTF-8.
"""
MAX_INDEXED_BYTES: Final = 512
_LARGEST_COUNT: Final = 2**53


def plan_key_of(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the plan key of a rollout, or that of its source if the rollout is a replay; None without a key.

    Random choices that depend on this key are the same in a replay.
    """
    replay = (metadata or {}).get(REPLAY)
    fields, name = (cast("Mapping[str, Any]", replay), "key") if isinstance(replay, dict) else (metadata, PLAN_KEY)
    key = (fields or {}).get(name)
    return key if isinstance(key, str) else None


class SpanSummary(NamedTuple):
    """The values in a span's attributes that projections and searches need; None for absent values."""

    rewards: tuple[tuple[str, float], ...] = ()
    """The name and the finite value of each dimension, the primary one first."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    model: str | None = None
    """The model in the response, or else the model in the request."""
    response_id: str | None = None
    kind: str | None = None
    """The kind of run event for a span with a node: `agl.kind`, or else `tool_result` for a tool, or else `result`."""
    node_id: str | None = None
    scope: str | None = None
    parent_node_id: str | None = None
    phase: str | None = None
    node_exec: str | None = None
    tokens_cached: int | None = None
    """Those of `tokens_in` that the provider read from a cache."""
    tokens_written: int | None = None
    """Those of `tokens_in` that the provider wrote to a cache."""
    tokens_reasoning: int | None = None
    """Those of `tokens_out` that are reasoning."""
    cost: float | None = None
    """The cost of the call as the provider or the tracer reported it, in US dollars."""


EMPTY_SUMMARY: Final = SpanSummary()


def summarise(name: str, attributes: Mapping[str, Any]) -> SpanSummary:
    """Return the summary of a span from its name and attributes. Malformed values are ignored."""
    if _READ.isdisjoint(attributes):
        return EMPTY_SUMMARY
    summary = SpanSummary(
        _rewards(name, attributes),
        _count(attributes, "tokens_in"),
        _count(attributes, "tokens_out"),
        _text(attributes, "model"),
        _text(attributes, "response_id"),
    )
    if not _READ_OF_USAGE.isdisjoint(attributes):
        summary = summary._replace(
            tokens_cached=_count(attributes, "tokens_cached"),
            tokens_written=_count(attributes, "tokens_written"),
            tokens_reasoning=_count(attributes, "tokens_reasoning"),
            cost=_cost(attributes),
        )
    if _READ_OF_GRAPH.isdisjoint(attributes):
        return summary
    node_id = _text(attributes, "node_id")
    return summary._replace(
        kind=_kind(attributes) if node_id else None,
        node_id=node_id,
        scope=_text(attributes, "scope"),
        parent_node_id=_text(attributes, "parent_node_id"),
        phase=_text(attributes, "phase"),
        node_exec=_text(attributes, "node_exec"),
    )


def reward_attributes(dimensions: Mapping[str, float]) -> dict[str, Any]:
    """Return the attributes of a reward with finite values; the first dimension is the primary dimension."""
    flat: dict[str, Any] = {}
    for index, (name, value) in enumerate(dimensions.items()):
        flat[f"{REWARD}.{index}.name"] = name
        flat[f"{REWARD}.{index}.value"] = value
    return flat


def invalid_rewards(attributes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the name and the value, as text, of each reward among a span's attributes that is not a finite number."""
    invalid: list[tuple[str, str]] = []
    for index in count():
        key = f"{REWARD}.{index}.value"
        if key not in attributes:
            break
        if _number(attributes[key]) is None:
            name = attributes.get(f"{REWARD}.{index}.name")
            default_name = str(index) if index else PRIMARY
            invalid.append((name if isinstance(name, str) and name else default_name, str(attributes[key])))
    return tuple(invalid)


def _rewards(name: str, attributes: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    primary = _number(attributes.get(_FIRST_REWARD))
    if primary is not None:
        return (_named_reward(attributes, 0, primary), *_further_rewards(attributes))
    for key in _AGENTOPS_OUTPUTS:
        value = _agentops_reward(attributes.get(key))
        if value is not None:
            return ((PRIMARY, value),)
    value = _number(attributes.get(_ANNOTATED_REWARD)) if name == ANNOTATION_SPAN else None
    return () if value is None else ((PRIMARY, value),)


def _further_rewards(attributes: Mapping[str, Any]) -> list[tuple[str, float]]:
    further: list[tuple[str, float]] = []
    for index in count(1):
        key = f"{REWARD}.{index}.value"
        if key not in attributes:
            break
        value = _number(attributes[key])
        if value is not None:
            further.append(_named_reward(attributes, index, value))
    return further


def _named_reward(attributes: Mapping[str, Any], index: int, value: float) -> tuple[str, float]:
    name = attributes.get(f"{REWARD}.{index}.name")
    default_name = str(index) if index else PRIMARY
    return (name if isinstance(name, str) and name else default_name, value)


def _agentops_reward(output: Any) -> float | None:
    """Return the reward in the output of a task, which AgentOps records as an object or as JSON text."""
    if isinstance(output, str):
        # Most outputs are long texts without a reward. A search takes a hundredth of the time of parsing, so the search
        # comes first.
        if '"reward"' not in output:
            return None
        try:
            output = orjson.loads(output)
        except (ValueError, RecursionError):
            return None
    if not isinstance(output, dict):
        return None
    fields = cast("dict[str, Any]", output)
    return _number(fields.get("value")) if fields.get("type") == "reward" else None


def _kind(attributes: Mapping[str, Any]) -> str:
    kind = attributes.get(KIND)
    if isinstance(kind, str) and kind:
        return kind
    return "tool_result" if any(name in attributes for name in _TOOL_NAMES) else "result"


def _text(attributes: Mapping[str, Any], field: str) -> str | None:
    for name in FEEDS[field]:
        value = attributes.get(name)
        if isinstance(value, str) and value:
            return value
    return None


def _count(attributes: Mapping[str, Any], field: str) -> int | None:
    for name in FEEDS[field]:
        value = attributes.get(name)
        if type(value) is int and 0 <= value <= _LARGEST_COUNT:
            return value
        number = _number(value)
        if number is not None and number.is_integer() and 0 <= number <= _LARGEST_COUNT:
            return int(number)
    return None


def _cost(attributes: Mapping[str, Any]) -> float | None:
    costs = {name: cost for name in FEEDS["cost"] if (cost := _number(attributes.get(name))) is not None and cost >= 0}
    total = next((cost for name, cost in costs.items() if name not in _PARTS_OF_COST), None)
    return total if total is not None or not costs else _number(sum(costs.values()))


def _number(value: Any) -> float | None:
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
