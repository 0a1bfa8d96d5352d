"""The row of each state, in the order of its table's columns. The live path, rebuild and verify use the same ones."""

from operator import attrgetter
from typing import Any

import orjson

from store.domain.events import Event, Json, SpanRecorded
from store.domain.resources import ResourcesState
from store.domain.rollout import AttemptState, RolloutState
from store.domain.views import (
    ATTEMPT_COLUMNS,
    ROLLOUT_COLUMNS,
    attempt_row,
    resources_row,
    rollout_row,
    worker_row,
)
from store.domain.worker import WorkerState

Row = tuple[Any, ...]

# What a span changes of its rollout and its attempt; all else stays as it is.
ROLLOUT_AFTER_SPAN = ("last_reward", "spans", "tokens_in", "tokens_out", "stream_version", "last_position")
# What one of a node changes too, as does whatever else an attempt tells of its run.
ROLLOUT_AFTER_RUN = (*ROLLOUT_AFTER_SPAN, "run_version")
ATTEMPT_AFTER_SPAN = ("last_heartbeat_time", "heartbeat_stamped_at", "last_position")

_CONFIG = ROLLOUT_COLUMNS.index("config")
_ROLLOUT_ERROR = ROLLOUT_COLUMNS.index("error")
_OWNER = ATTEMPT_COLUMNS.index("owner")
_ATTEMPT_ERROR = ATTEMPT_COLUMNS.index("error")


def rollout(state: RolloutState) -> Row:
    """Return the row of a rollout."""
    row: list[Any] = list(rollout_row(state))
    row[_CONFIG] = _text(state.config)
    row[_ROLLOUT_ERROR] = _text(state.error)
    return tuple(row)


def attempt(state: AttemptState) -> Row:
    """Return the row of an attempt."""
    row: list[Any] = list(attempt_row(state))
    row[_OWNER] = _text(state.owner)
    row[_ATTEMPT_ERROR] = _text(state.error)
    return tuple(row)


rollout_after_span = attrgetter("rollout_id", *ROLLOUT_AFTER_SPAN)
rollout_after_run = attrgetter("rollout_id", *ROLLOUT_AFTER_RUN)
attempt_after_span = attrgetter("rollout_id", "attempt_id", *ATTEMPT_AFTER_SPAN)


def resources(state: ResourcesState) -> Row:
    """Return the row of a set of resources."""
    return resources_row(state)


def worker(state: WorkerState) -> Row:
    """Return the row of a worker."""
    return worker_row(state)


def queued(state: RolloutState) -> Row | None:
    """Return a rollout's row in the queue, if it waits there."""
    return None if state.queued_position is None else (state.queued_position, state.rollout_id)


def labels(state: RolloutState) -> list[Row]:
    """Return the rows of a rollout's labels, in the order of their key."""
    return [(state.rollout_id, label, position) for label, position in sorted((state.labels or {}).items())]


def span(rollout_id: str, event: Event, fact: SpanRecorded) -> Row:
    """Return the row of a span."""
    return (
        rollout_id,
        fact.attempt_id,
        fact.span_id,
        fact.sequence_id,
        fact.trace_id,
        fact.parent_id,
        fact.name,
        fact.start,
        fact.end,
        fact.status_code,
        fact.status_message,
        event.position,
    )


def rewards(rollout_id: str, event: Event, fact: SpanRecorded) -> list[Row]:
    """Return the rows of a span's rewards, one per dimension."""
    return [
        (rollout_id, event.position, ordinal, fact.attempt_id, name, value)
        for ordinal, (name, value) in enumerate(fact.rewards or ())
    ]


def rollout_state(row: Any) -> RolloutState:
    """Return the state that a row of `rollouts` was written from, without its attempts."""
    values: list[Any] = list(row[: len(ROLLOUT_COLUMNS)])
    values[_CONFIG] = orjson.loads(values[_CONFIG])
    values[_ROLLOUT_ERROR] = _value(values[_ROLLOUT_ERROR])
    return RolloutState(*values)


def attempt_state(row: Any) -> AttemptState:
    """Return the state that a row of `attempts` was written from, with its signal if two more columns carry one."""
    values: list[Any] = list(row)
    values[_OWNER] = _value(values[_OWNER])
    values[_ATTEMPT_ERROR] = _value(values[_ATTEMPT_ERROR])
    return AttemptState(*values)


def _text(value: Json | None) -> str | None:
    return None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _value(text: str | None) -> Json | None:
    return None if text is None else orjson.loads(text)
