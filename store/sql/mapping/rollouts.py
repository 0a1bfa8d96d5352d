"""Conversion of database rows and payload to the models of the API.

Payload, such as the input of a rollout, is stored as the *body* of an event; a row has the position of that event in
the log. A *view* is what a command returns: copies of rows, with payload. A *page* is what a query returns: rows with
further columns for payload. *Signals* are repeated heartbeats and polls, which are stored in tables of their own.

Most values are not validated again; `store.models.trusted` gives the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter

from store.db.queries.bodies import payload, payload_of
from store.domain.events import Json
from store.domain.views import (
    ATTEMPT_COLUMNS,
    RESOURCES_COLUMNS,
    ROLLOUT_COLUMNS,
    SIGNALS_COLUMNS,
    WORKER_COLUMNS,
    AttemptView,
    ResourcesView,
    RolloutView,
    WorkerView,
)
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

Row = Sequence[Any]

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


def _columns(columns: Sequence[str], *names: str) -> Callable[[Row], tuple[Any, ...]]:
    return itemgetter(*map(columns.index, names))


# -- rollouts and attempts -------------------------------------------------------------------------------------------

_of_rollout = _columns(ROLLOUT_COLUMNS, "rollout_id", "start_at", "end_at", "mode", "resources_id", "status", "config")
positions_of_rollout = _columns(ROLLOUT_COLUMNS, "input_position", "metadata_position")
_of_attempt = _columns(
    ATTEMPT_COLUMNS, "rollout_id", "attempt_id", "sequence_id", "start_at", "end_at", "status", "worker_id"
)
_signs_of_life = _columns(ATTEMPT_COLUMNS, "last_heartbeat_time", "heartbeat_stamped_at")
_ROLLOUT_WIDTH, _ATTEMPT_WIDTH = len(ROLLOUT_COLUMNS), len(ATTEMPT_COLUMNS)


def rollout_columns(row: Row) -> Json:
    """Return the fields of a rollout from a row in the order of `ROLLOUT_COLUMNS`; the config is not decoded."""
    rollout_id, start_at, end_at, mode, resources_id, status, config = _of_rollout(row)
    return {
        "rollout_id": rollout_id,
        # The keys must have the order of the model's fields, so the input has its place here. The caller sets it later.
        "input": None,
        "start_time": start_at / 1_000_000,
        "end_time": _seconds(end_at),
        "mode": mode,
        "resources_id": resources_id,
        "status": status,
        "config": config,
        "metadata": None,
        # Rewards are in another table; `set_rewards` sets them.
        "reward": None,
        "rewards": {},
    }


def _rollout_fields(row: Row, input_body: Json | None, metadata_body: Json | None) -> Json:
    fields = rollout_columns(row)
    config = fields["config"]
    fields["input"] = None if input_body is None else input_body.get("input")
    # A row of a view contains the config as an object; a row of the database contains it as JSON text.
    validator = RolloutConfig.__pydantic_validator__
    fields["config"] = validator.validate_json(config) if isinstance(config, str) else validator.validate_python(config)
    fields["metadata"] = rollout_metadata(input_body, metadata_body)
    return fields


def rollout_metadata(input_body: Json | None, metadata_body: Json | None) -> Json | None:
    """Return the metadata of a rollout. The key `rollbook.dropped` shows that the input or the metadata was removed."""
    metadata = None if metadata_body is None else metadata_body.get("metadata")
    if input_body is None or metadata_body is None:
        return {**(metadata or {}), DROPPED: True}
    return metadata


def rollout_model(row: Row, input_body: Json | None, metadata_body: Json | None) -> Rollout:
    """Return a rollout without its attempt.

    Args:
        row: the row, in the order of `ROLLOUT_COLUMNS`, with the config as JSON text or as an object.
        input_body: the body of the event that stored the input; None if the body was removed.
        metadata_body: the body of the event that stored the metadata, usually the same object as `input_body`.
    """
    return _rollout(_rollout_fields(row, input_body, metadata_body))


def attempted_rollout_model(
    row: Row, input_body: Json | None, metadata_body: Json | None, attempt: Attempt
) -> AttemptedRollout:
    """Return a rollout with one of its attempts; the other arguments are those of `rollout_model`."""
    return _attempted_rollout({**_rollout_fields(row, input_body, metadata_body), "attempt": attempt})


def sign_of_life(row: Row, beat_time: float | None, stamped_at: int | None) -> float | None:
    """Return the time of an attempt's last heartbeat in seconds.

    There may be a heartbeat in the attempt's row and another in the table `attempt_signals`. The one that was stored
    later counts.

    Args:
        row: the row, in the order of `ATTEMPT_COLUMNS`.
        beat_time: the heartbeat in `attempt_signals`.
        stamped_at: when `beat_time` was stored, in µs; None if `attempt_signals` has no heartbeat.
    """
    known, known_at = _signs_of_life(row)
    return beat_time if stamped_at is not None and stamped_at > (known_at or 0) else known


def attempt_model(row: Row, last_heartbeat_time: float | None, metadata_body: Json | None) -> Attempt:
    """Return an attempt.

    Args:
        row: the row, in the order of `ATTEMPT_COLUMNS`.
        last_heartbeat_time: the last heartbeat, in seconds since the epoch.
        metadata_body: the body of the event that stored the attempt's metadata; None if there is none.
    """
    rollout_id, attempt_id, sequence_id, start_at, end_at, status, worker_id = _of_attempt(row)
    return _attempt(
        {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": sequence_id,
            "start_time": start_at / 1_000_000,
            "end_time": _seconds(end_at),
            "status": status,
            "worker_id": worker_id,
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


_reward_and_attempt = _columns(
    (*ROLLOUT_COLUMNS, *(f"attempt.{name}" for name in ATTEMPT_COLUMNS)), "last_reward", "attempt.attempt_id"
)
attempt_id_of_page: Callable[[Row], str] = itemgetter(ATTEMPT_COLUMNS.index("attempt_id"))
"""Return the id of the attempt in a row of `pages.attempts`."""


def rewarded_attempt(row: Row) -> str | None:
    """Return the id of the latest attempt in a row of `pages.rollouts`; None if the rollout has no reward at all."""
    last_reward, attempt_id = _reward_and_attempt(row)
    return None if last_reward is None else attempt_id


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


def plain_rollout_of_page(row: Row) -> Rollout:
    """Return the rollout in a row of `pages.rollouts` or `pages.rollouts_by_id`, without its attempt."""
    return rollout_model(row, *_rollout_payloads(row))


def rollout_of_page(row: Row) -> Rollout | AttemptedRollout:
    """Return the rollout in a row of `pages.rollouts`, with its latest attempt if it has one.

    The row contains the columns of the rollout, the columns of the attempt (nulls if there is none), beat_time and
    stamped_at of the attempt's signal, and the codec and the bytes of three bodies. These are the bodies with the
    rollout's input, the rollout's metadata and the attempt's metadata.
    """
    attempt = attempt_beside(row)
    if attempt is None:
        return rollout_model(row, *_rollout_payloads(row))
    return attempted_rollout_model(row, *_rollout_payloads(row), attempt)


def attempt_beside(row: Row) -> Attempt | None:
    """Return the latest attempt in a row of `pages.rollouts`; None if the rollout has no attempt."""
    if row[_ROLLOUT_WIDTH] is None:
        return None
    attempt = row[_ROLLOUT_WIDTH : _ROLLOUT_WIDTH + _ATTEMPT_WIDTH]
    beat_time, stamped_at = row[_ROLLOUT_WIDTH + _ATTEMPT_WIDTH : -6]
    return attempt_model(attempt, sign_of_life(attempt, beat_time, stamped_at), payload(row[-2], row[-1]))


def _rollout_payloads(row: Row) -> tuple[Json | None, Json | None]:
    input_body = payload(row[-6], row[-5])
    input_position, metadata_position = positions_of_rollout(row)
    return input_body, input_body if input_position == metadata_position else payload(row[-4], row[-3])


def attempt_of_page(row: Row) -> Attempt:
    """Return the attempt in a row of `pages.attempts`.

    The row contains the columns of the attempt, beat_time and stamped_at of its signal, and the codec and the bytes of
    the body with its metadata.
    """
    beat_time, stamped_at, codec, stored = row[_ATTEMPT_WIDTH:]
    return attempt_model(row, sign_of_life(row, beat_time, stamped_at), payload(codec, stored))


# -- resources and workers -------------------------------------------------------------------------------------------

_of_resources = _columns(RESOURCES_COLUMNS, "resources_id", "create_at", "update_at", "version")
_of_worker = _columns(
    WORKER_COLUMNS,
    "worker_id",
    "status",
    "last_busy_at",
    "last_idle_at",
    "current_rollout_id",
    "current_attempt_id",
)
_of_signals = _columns(
    SIGNALS_COLUMNS, "heartbeat_stats", "last_heartbeat_at", "last_dequeue_at", "last_busy_at", "last_idle_at"
)
_RESOURCES_WIDTH, _WORKER_WIDTH = len(RESOURCES_COLUMNS), len(WORKER_COLUMNS)
_SILENT = (None,) * len(SIGNALS_COLUMNS)


def resources_model(row: Row, body: Json | None) -> ResourcesUpdate:
    """Return a set of resources.

    Args:
        row: the row, in the order of `RESOURCES_COLUMNS`.
        body: the body of the event that stored the resources; None makes an empty set.
    """
    resources_id, create_at, update_at, version = _of_resources(row)
    return ResourcesUpdate.model_construct(
        resources_id=resources_id,
        create_time=create_at / 1_000_000,
        update_time=update_at / 1_000_000,
        version=version,
        # This is validated, because the value of `resource_type` determines the class of each resource.
        resources=_named_resources.validate_python({} if body is None else body["resources"]),
    )


def resources_of_view(view: ResourcesView) -> ResourcesUpdate:
    """Return the set of resources in a view."""
    return resources_model(view.row, payload_of(view.body))


def resources_of_page(row: Row) -> ResourcesUpdate:
    """Return the resources in a row of `pages.resources`: the table's columns, and codec and bytes of the body."""
    return resources_model(row, payload(row[_RESOURCES_WIDTH], row[_RESOURCES_WIDTH + 1]))


def worker_model(row: Row, signals: Row | None) -> Worker:
    """Return a worker.

    Args:
        row: the row, in the order of `WORKER_COLUMNS`.
        signals: the signals of the worker, in the order of `SIGNALS_COLUMNS`; None or only nulls if there are none.
    """
    worker_id, status, busy_at, idle_at, rollout_id, attempt_id = _of_worker(row)
    stats, heartbeat_at, dequeue_at, busy_again_at, idle_again_at = _of_signals(signals or _SILENT)
    return _worker(
        {
            "worker_id": worker_id,
            "status": status,
            "heartbeat_stats": None if stats is None else orjson.loads(stats),
            "last_heartbeat_time": _seconds(heartbeat_at),
            "last_dequeue_time": _seconds(dequeue_at),
            "last_busy_time": _seconds(_later(busy_at, busy_again_at)),
            "last_idle_time": _seconds(_later(idle_at, idle_again_at)),
            "current_rollout_id": rollout_id,
            "current_attempt_id": attempt_id,
        }
    )


def worker_of_view(view: WorkerView) -> Worker:
    """Return the worker in a view."""
    return worker_model(view.row, view.signals)


def worker_of_page(row: Row) -> Worker:
    """Return the worker in a row of `pages.workers`: the columns of the table, then the columns of the signals."""
    return worker_model(row, row[_WORKER_WIDTH:])


# -- the log ---------------------------------------------------------------------------------------------------------


def history_event(logged: Mapping[str, Any]) -> HistoryEvent:
    """Return an event of a stream from the result of `log.described`."""
    return HistoryEvent.model_construct(**logged)


def logged_event(logged: Mapping[str, Any], *, stream: str, commit_id: int, cursor: str) -> LoggedEvent:
    """Return an event of the whole log from the result of `log.described`."""
    return LoggedEvent.model_construct(**logged, stream=stream, commit_id=commit_id, cursor=cursor)
