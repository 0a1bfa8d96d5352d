"""Conversion of database rows and payload to the models of the API.

A *view* is what a command returns: copies of rows, with payload. A *page* is what a query returns: rows with further
columns for payload. *Signals* are repeated heartbeats and polls, which are stored in tables of their own.

Most values are not validated again; `store.models.trusted` gives the reason.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter

from store.db.dialect import NamedRow, row_maker
from store.db.queries.bodies import payload, payload_of
from store.domain.events import Json
from store.domain.views import SIGNALS_COLUMNS, AttemptView, ResourcesView, RolloutView, WorkerView
from store.models import (
    Attempt,
    AttemptedRollout,
    HistoryEvent,
    LoggedEvent,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Worker,
)
from store.models.trusted import trusted
from store.semconv import DROPPED

_rollout = trusted(Rollout)
_attempted_rollout = trusted(AttemptedRollout)
_attempt = trusted(Attempt)
_worker = trusted(Worker)
# Most commands read no resources, so this is built when it is first used.
_named_resources: TypeAdapter[NamedResources] = TypeAdapter(NamedResources, config=ConfigDict(defer_build=True))


def _seconds(at: int | None) -> float | None:
    return None if at is None else at / 1_000_000


def _later(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


# The columns of a rollout's latest attempt, and the same columns in a row of `pages.rollouts`.
_ATTEMPT_NAMES = (
    "rollout_id",
    "attempt_id",
    "sequence_id",
    "start_at",
    "end_at",
    "status",
    "worker_id",
    "last_heartbeat_time",
    "heartbeat_stamped_at",
)
_attempt_row = row_maker(_ATTEMPT_NAMES)
_latest_attempt = attrgetter(*(f"attempt_{name}" for name in _ATTEMPT_NAMES))


def _rollout_fields(row: NamedRow, input_body: Json | None, metadata_body: Json | None) -> Json:
    # A row of a view contains the config as an object; a row of the database contains it as JSON text.
    config, validator = row.config, RolloutConfig.__pydantic_validator__
    return {
        "rollout_id": row.rollout_id,
        "input": None if input_body is None else input_body.get("input"),
        "start_time": row.start_at / 1_000_000,
        "end_time": _seconds(row.end_at),
        "mode": row.mode,
        "resources_id": row.resources_id,
        "status": row.status,
        "config": validator.validate_json(config) if isinstance(config, str) else validator.validate_python(config),
        "metadata": rollout_metadata(input_body, metadata_body),
        # Rewards are in another table; `set_rewards` sets them.
        "reward": None,
        "rewards": {},
    }


def rollout_metadata(input_body: Json | None, metadata_body: Json | None) -> Json | None:
    """Return the metadata of a rollout. The key `rollbook.dropped` shows that the input or the metadata was removed."""
    metadata = None if metadata_body is None else metadata_body.get("metadata")
    if input_body is None or metadata_body is None:
        return {**(metadata or {}), DROPPED: True}
    return metadata


def rollout_model(row: NamedRow, input_body: Json | None, metadata_body: Json | None) -> Rollout:
    """Return a rollout without its attempt.

    Args:
        row: a row with the columns of a rollout, and with the config as JSON text or as an object.
        input_body: the body of the event that stored the input; None if the body was removed.
        metadata_body: the body of the event that stored the metadata, usually the same object as `input_body`.
    """
    return _rollout(_rollout_fields(row, input_body, metadata_body))


def attempted_rollout_model(
    row: NamedRow, input_body: Json | None, metadata_body: Json | None, attempt: Attempt
) -> AttemptedRollout:
    """Return a rollout with one of its attempts; the other arguments are those of `rollout_model`."""
    return _attempted_rollout({**_rollout_fields(row, input_body, metadata_body), "attempt": attempt})


def sign_of_life(row: NamedRow, beat_time: float | None, stamped_at: int | None) -> float | None:
    """Return the time of an attempt's last heartbeat in seconds.

    There may be a heartbeat in the attempt's row and another in the table `attempt_signals`. The one that was stored
    later counts.

    Args:
        row: a row with the columns of an attempt.
        beat_time: the heartbeat in `attempt_signals`.
        stamped_at: when `beat_time` was stored, in µs; None if `attempt_signals` has no heartbeat.
    """
    is_newer = stamped_at is not None and stamped_at > (row.heartbeat_stamped_at or 0)
    return beat_time if is_newer else row.last_heartbeat_time


def attempt_model(row: NamedRow, last_heartbeat_time: float | None, metadata_body: Json | None) -> Attempt:
    """Return an attempt.

    Args:
        row: a row with the columns of an attempt.
        last_heartbeat_time: the last heartbeat, in seconds since the epoch.
        metadata_body: the body of the event that stored the attempt's metadata; None if there is none.
    """
    return _attempt(
        {
            "rollout_id": row.rollout_id,
            "attempt_id": row.attempt_id,
            "sequence_id": row.sequence_id,
            "start_time": row.start_at / 1_000_000,
            "end_time": _seconds(row.end_at),
            "status": row.status,
            "worker_id": row.worker_id,
            "last_heartbeat_time": last_heartbeat_time,
            "metadata": None if metadata_body is None else metadata_body.get("metadata"),
            "reward": None,
            "rewards": {},
        }
    )


def set_rewards(model: Rollout | Attempt, final: float, by_name: dict[str, float]) -> None:
    """Set the rewards of a new model, before a caller gets the model."""
    fields = vars(model)
    fields["reward"], fields["rewards"] = final, by_name


attempt_id_of_page: Callable[[NamedRow], str] = attrgetter("attempt_id")
"""Return the id of the attempt in a row of `pages.attempts`."""


def rewarded_attempt(row: NamedRow) -> str | None:
    """Return the id of the latest attempt in a row of `pages.rollouts`; None if the rollout has no reward at all."""
    return None if row.last_reward is None else row.attempt_attempt_id


latest_attempt_id: Callable[[NamedRow], str | None] = attrgetter("attempt_attempt_id")
"""Return the id of the latest attempt in a row of `pages.rollouts`; None if the rollout has no attempt."""


def rollout_of_view(view: RolloutView) -> Rollout | AttemptedRollout:
    """Return the rollout in a view, with the attempt if the view has one."""
    input_body = payload_of(view.input)
    metadata_body = input_body if view.metadata is view.input else payload_of(view.metadata)
    if view.attempt is None:
        return rollout_model(view.row, input_body, metadata_body)
    return attempted_rollout_model(view.row, input_body, metadata_body, attempt_of_view(view.attempt))


def attempted_of_view(view: RolloutView) -> AttemptedRollout:
    """Return the rollout and its attempt from the view that a command returned after starting the attempt."""
    rollout = rollout_of_view(view)
    assert isinstance(rollout, AttemptedRollout)  # such a view has an attempt
    return rollout


def attempt_of_view(view: AttemptView) -> Attempt:
    """Return the attempt in a view."""
    return attempt_model(view.row, view.sign_of_life, payload_of(view.metadata))


def plain_rollout_of_page(row: NamedRow) -> Rollout:
    """Return the rollout in a row of `pages.rollouts` or `pages.rollouts_by_id`, without its attempt."""
    return rollout_model(row, *_rollout_payloads(row))


def rollout_of_page(row: NamedRow) -> Rollout | AttemptedRollout:
    """Return the rollout in a row of `pages.rollouts`, with its latest attempt if it has one."""
    if row.attempt_attempt_id is None:
        return rollout_model(row, *_rollout_payloads(row))
    attempt = _attempt_row(_latest_attempt(row))
    last_heartbeat_time = sign_of_life(attempt, row.beat_time, row.stamped_at)
    metadata_body = payload(row.attempt_metadata_codec, row.attempt_metadata_body)
    model = attempt_model(attempt, last_heartbeat_time, metadata_body)
    return attempted_rollout_model(row, *_rollout_payloads(row), model)


def _rollout_payloads(row: NamedRow) -> tuple[Json | None, Json | None]:
    input_body = payload(row.input_codec, row.input_body)
    if row.input_position == row.metadata_position:
        return input_body, input_body
    return input_body, payload(row.metadata_codec, row.metadata_body)


def attempt_of_page(row: NamedRow) -> Attempt:
    """Return the attempt in a row of `pages.attempts`."""
    return attempt_model(row, sign_of_life(row, row.beat_time, row.stamped_at), payload(row.codec, row.body))


_signals_row = row_maker(SIGNALS_COLUMNS)
_signals_of_page = attrgetter(*(f"signal_{name}" for name in SIGNALS_COLUMNS))
_NO_SIGNALS = _signals_row(None for _ in SIGNALS_COLUMNS)


def resources_model(row: NamedRow, body: Json | None) -> ResourcesUpdate:
    """Return a set of resources.

    Args:
        row: a row with the columns of resources.
        body: the body of the event that stored the resources; None makes an empty set.
    """
    return ResourcesUpdate.model_construct(
        resources_id=row.resources_id,
        create_time=row.create_at / 1_000_000,
        update_time=row.update_at / 1_000_000,
        version=row.version,
        # This is validated, because the value of `resource_type` determines the class of each resource.
        resources=_named_resources.validate_python({} if body is None else body["resources"]),
    )


def resources_of_view(view: ResourcesView) -> ResourcesUpdate:
    """Return the set of resources in a view."""
    return resources_model(view.row, payload_of(view.body))


def resources_of_page(row: NamedRow) -> ResourcesUpdate:
    """Return the resources in a row of `pages.resources`."""
    return resources_model(row, payload(row.codec, row.body))


def worker_model(row: NamedRow, signals: NamedRow | None) -> Worker:
    """Return a worker.

    Args:
        row: a row with the columns of a worker.
        signals: a row with the signals of the worker; None or only nulls if there are none.
    """
    signals = signals or _NO_SIGNALS
    stats = signals.heartbeat_stats
    return _worker(
        {
            "worker_id": row.worker_id,
            "status": row.status,
            "heartbeat_stats": None if stats is None else orjson.loads(stats),
            "last_heartbeat_time": _seconds(signals.last_heartbeat_at),
            "last_dequeue_time": _seconds(signals.last_dequeue_at),
            "last_busy_time": _seconds(_later(row.last_busy_at, signals.last_busy_at)),
            "last_idle_time": _seconds(_later(row.last_idle_at, signals.last_idle_at)),
            "current_rollout_id": row.current_rollout_id,
            "current_attempt_id": row.current_attempt_id,
        }
    )


def worker_of_view(view: WorkerView) -> Worker:
    """Return the worker in a view."""
    return worker_model(view.row, view.signals)


def worker_of_page(row: NamedRow) -> Worker:
    """Return the worker in a row of `pages.workers`."""
    return worker_model(row, _signals_row(_signals_of_page(row)))


def history_event(logged: Mapping[str, Any]) -> HistoryEvent:
    """Return an event of a stream from the result of `log.described`."""
    return HistoryEvent.model_construct(**logged)


def logged_event(logged: Mapping[str, Any], *, stream: str, commit_id: int, cursor: str) -> LoggedEvent:
    """Return an event of the whole log from the result of `log.described`."""
    return LoggedEvent.model_construct(**logged, stream=stream, commit_id=commit_id, cursor=cursor)
