"""Sentences that describe the events in the log of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from store import semconv
from store.narration import run_events as run_event_lines
from store.narration import thread_events as thread_event_lines
from store.narration.tokens import token_text
from store.runtime.durations import duration

if TYPE_CHECKING:
    from store.models import HistoryEvent

Json = dict[str, Any]

_MOVED: Final = {
    "claimed": "a worker claimed it",
    "attempt": "follows its latest attempt",
    "span": "a span arrived",
    "event": "a run event arrived",
    "fork": "a part of it runs again",
    "manual": "set by a caller",
}


# A command may follow the log for days, so only the latest attempts are remembered, at most this many. Sentences about
# any other attempt contain its id instead of its number.
_REMEMBERED: Final = 100_000
FAILED_ATTEMPT: Final = frozenset({"failed", "timeout", "unresponsive"})
"""The statuses of attempts that have ended without success."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The number and the start time of an attempt, from the event of its start."""

    sequence: int
    started_at: float


class Narrator:
    """Describes events. The caller must pass the events oldest first, because sentences use data of earlier events.

    Args:
        time_text: the function that returns a time, in seconds since the epoch, as text.
    """

    def __init__(self, time_text: Callable[[float], str]) -> None:
        self._time_text = time_text
        self._attempts: dict[str, _Seen] = {}

    def observe(self, event: HistoryEvent) -> None:
        """Remember the data of an event that sentences about later events need."""
        if event.type == "attempt.started":
            data = event.data
            self._attempts[data["attempt_id"]] = _Seen(data["sequence"], event.at)
            if len(self._attempts) > _REMEMBERED:
                del self._attempts[next(iter(self._attempts))]

    def describe(self, event: HistoryEvent) -> str:
        """Return a sentence about an event. The sentence contains neither the time nor the actor of the event."""
        self.observe(event)
        if event.type in run_event_lines.TYPES:
            attempt = self._attempt(event.data) if "attempt_id" in event.data else ""
            return run_event_lines.describe(event.type, event.data, attempt)
        if event.type in thread_event_lines.TYPES:
            return thread_event_lines.describe(event.type, event.data)
        describe = self._sentences.get(event.type)
        if describe is None:
            return orjson.dumps(event.data).decode()
        return describe(self, event, event.data)

    def _attempt(self, data: Json) -> str:
        seen = self._attempts.get(data["attempt_id"])
        return f"attempt {seen.sequence}" if seen else f"attempt {data['attempt_id']}"

    def _enqueued(self, event: HistoryEvent, data: Json) -> str:
        metadata: Json = (event.body or {}).get("metadata") or {}
        replay: Any = metadata.get(semconv.REPLAY)
        # Callers may set the key to a value of another type.
        source = [f"replay of {cast('Json', replay).get('rollout_id')}"] if isinstance(replay, dict) else []
        return ", ".join(["enqueued", *source, *_particulars(data)])

    def _started_at_once(self, _event: HistoryEvent, data: Json) -> str:
        return ", ".join(["started without the queue", *_particulars(data)])

    def _rollout_amended(self, _event: HistoryEvent, data: Json) -> str:
        return _fields_set(data, names=("mode", "resources_id", "config"))

    def _rollout_moved(self, _event: HistoryEvent, data: Json) -> str:
        if data["from"] == data["to"]:
            return f"{data['to']} again, ended now"
        if data["to"] == "requeuing" and data["reason"] == "attempt":
            return f"{data['from']} → requeuing: to be retried"
        return f"{data['from']} → {data['to']}: {_MOVED.get(data['reason'], data['reason'])}"

    def _attempt_started(self, _event: HistoryEvent, data: Json) -> str:
        worker = data.get("worker_id")
        how = "claimed" if data["via"] == "dequeue" else "forked" if data["via"] == "fork" else "started"
        by = f" by {worker}" if worker else ""
        return f"attempt {data['sequence']} {how}{by} → preparing"

    def _attempt_moved(self, event: HistoryEvent, data: Json) -> str:
        attempt, to = self._attempt(data), data["to"]
        match data["reason"]:
            case "unresponsive" | "timeout":
                return f"{attempt} {to}: {self._overdue(event, data)}"
            case "span":
                return f"{attempt} {data['from']} → {to}: a span arrived"
            case "event":
                return f"{attempt} {data['from']} → {to}: {_MOVED['event']}"
            case "superseded":
                return f"{attempt} {data['from']} → {to}: another attempt took its place"
            case _ if data["from"] == to:
                return f"{attempt} reported {to} again, ended now"
            case _:
                error = data.get("error")
                if not error:
                    return f"{attempt} reported {to}"
                message = f": {error['message']}" if error.get("message") else ""
                uncounted = " (does not count as an attempt)" if data.get("is_counted") is False else ""
                return f"{attempt} reported {to}: {error['type']}{message}{uncounted}"

    def _overdue(self, event: HistoryEvent, data: Json) -> str:
        seen = self._attempts.get(data["attempt_id"])
        limit = f"limit {duration(data['limit'])}" if data.get("limit") is not None else "over its limit"
        is_silence = data["reason"] == "unresponsive"
        since = data.get("last_sign") if is_silence else None
        if since is None and seen:
            since = seen.started_at
        if since is None:
            return limit
        return f"{'silent' if is_silence else 'ran'} for {duration(event.at - since)} ({limit})"

    def _attempt_amended(self, _event: HistoryEvent, data: Json) -> str:
        fields = dict(data)
        if fields.get("last_heartbeat_time") is not None:
            fields["last_heartbeat_time"] = self._time_text(fields["last_heartbeat_time"])
        return f"{self._attempt(data)}: {_fields_set(fields, names=('worker_id', 'last_heartbeat_time'))}"

    def _released(self, _event: HistoryEvent, data: Json) -> str:
        undone = f"claim of attempt {data['sequence']} undone, its client disconnected"
        return f"{undone} → {data['to']}, at its previous place in the queue"

    def _reserved(self, _event: HistoryEvent, data: Json) -> str:
        return f"span numbers {data['first']} to {data['until']} reserved"

    def _span(self, event: HistoryEvent, data: Json) -> str:
        parts = [f'{self._attempt(data)}: span {data["sequence_id"]} "{data["name"]}"']
        start, end = data.get("start"), data.get("end")
        if start is not None and end is not None:
            parts.append(duration(end - start))
        if data["status_code"] == "ERROR":
            parts.append("ERROR" + (f" ({data['status_message']})" if data.get("status_message") else ""))
        parts.extend(reward_text(name, value) for name, value in data.get("rewards") or ())
        parts.extend(invalid_reward_texts((event.body or {}).get("attributes") or {}))
        if data.get("model"):
            parts.append(data["model"])
        if data.get("tokens_in") is not None or data.get("tokens_out") is not None:
            again = ", counted with an earlier span" if data.get("counted_before") else ""
            parts.append(f"{token_text(data.get('tokens_in'), data.get('tokens_out'))}{again}")
        return ", ".join(parts)

    def _published(self, _event: HistoryEvent, data: Json) -> str:
        return f"version {data['version']} published"

    def _annotated(self, event: HistoryEvent, data: Json) -> str:
        parts = [f"labelled {', '.join(data['added'])}"] if data["added"] else []
        if data["removed"]:
            parts.append(f"no longer {', '.join(data['removed'])}")
        if data.get("noted"):
            span_id = (event.body or {}).get("span_id")
            parts.append(f"note added on span {span_id}" if span_id else "note added")
        return "; ".join(parts)

    def _scored(self, _event: HistoryEvent, data: Json) -> str:
        version = f"{self._attempt(data)}: scored by {data['name']}@{data['version']}"
        if data.get("value") is None:
            return f"{version}: {data['error']['type']}: {data['error']['message']}"
        dimensions = [f"{name} {value:g}" for name, value in data.get("dimensions") or ()]
        return ", ".join([f"{version}: {data['value']:g}", *dimensions])

    def _scanned(self, _event: HistoryEvent, data: Json) -> str:
        results = {True: "match", False: "no match", None: data.get("error")}
        return f"{self._attempt(data)}: scanned by {data['scanner']}@{data['version']}: {results[data.get('is_match')]}"

    def _worker_seen(self, _event: HistoryEvent, _data: Json) -> str:
        return "seen for the first time"

    def _worker_moved(self, _event: HistoryEvent, data: Json) -> str:
        rollout = f" with {data['rollout_id']} {data.get('attempt_id', '')}".rstrip() if data.get("rollout_id") else ""
        return f"{data['from']} → {data['to']}{rollout if data['to'] == 'busy' else ''}"

    def _body_dropped(self, _event: HistoryEvent, data: Json) -> str:
        return f"payload of the event at position {data['position']} deleted: {data['policy']}"

    def _bodies_dropped(self, _event: HistoryEvent, data: Json) -> str:
        first, last, count = data["first"], data["last"], data["count"]
        events = f"the event at position {first}" if count == 1 else f"{count:,} events from position {first} to {last}"
        payload = f"payload of {events}"
        return f"{payload} deleted: {data['policy']}{self._because(data)}"

    def _blobs_dropped(self, _event: HistoryEvent, data: Json) -> str:
        blobs = "1 blob" if data["count"] == 1 else f"{data['count']:,} blobs"
        return f"{blobs} of deleted payload deleted: {data['policy']}{self._because(data)}"

    def _copied_from(self, _event: HistoryEvent, data: Json) -> str:
        rollouts = "1 rollout" if data["rollouts"] == 1 else f"{data['rollouts']:,} rollouts"
        origin = f"store {data['store_id']} at position {data['position']}"
        return f"{rollouts} copied from {origin} (chain head {data['chain_head']}): {data['conditions']}"

    def _metrics(self, _event: HistoryEvent, data: Json) -> str:
        numbers = [
            f"{name} {value if isinstance(value, str) else format(value, 'g')}" for name, value in data["values"]
        ]
        more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
        return f"step {data['step']}: {', '.join(numbers[:8])}{more}"

    def _because(self, data: Json) -> str:
        return f" ({data['reason']})" if data.get("reason") else ""

    _sentences: Final[dict[str, Callable[[Narrator, HistoryEvent, Json], str]]] = {
        "rollout.enqueued": _enqueued,
        "rollout.started": _started_at_once,
        "rollout.amended": _rollout_amended,
        "rollout.status_changed": _rollout_moved,
        "attempt.started": _attempt_started,
        "attempt.status_changed": _attempt_moved,
        "attempt.amended": _attempt_amended,
        "claim.released": _released,
        "span.numbers_reserved": _reserved,
        "span.recorded": _span,
        "rollout.annotated": _annotated,
        "reward.scored": _scored,
        "rollout.scanned": _scanned,
        "scanner.added": lambda _self, _event, data: f"version {data['version']} of scanner {data['name']} added",
        "resources.published": _published,
        "resources.replaced": _published,
        "worker.seen": _worker_seen,
        "worker.status_changed": _worker_moved,
        "body.dropped": _body_dropped,
        "store.bodies_dropped": _bodies_dropped,
        "store.blobs_dropped": _blobs_dropped,
        "store.copied_from": _copied_from,
        "metrics.logged": _metrics,
    }


DESCRIBED_TYPES: Final = run_event_lines.TYPES | thread_event_lines.TYPES | frozenset(Narrator._sentences)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""The event types for which there are sentences. An event of another type is described by its data as JSON."""


def invalid_reward_texts(attributes: Mapping[str, Any]) -> list[str]:
    """Return a text for each reward among a span's attributes that is not a finite number."""
    return [f"no valid reward ({name} {value[:80]})" for name, value in semconv.invalid_rewards(attributes)]


def reward_text(name: str | None, value: float) -> str:
    """Return a reward as text: its name and value, or the word `reward` and its value for the primary reward."""
    return f"reward {value:g}" if name in {None, "primary"} else f"{name} {value:g}"


def config_text(config: Json) -> str:
    """Return the limits and retries of a rollout as text. Default values are omitted."""
    parts: list[str] = []
    if config.get("timeout_seconds") is not None:
        parts.append(f"timeout {duration(config['timeout_seconds'])}")
    if config.get("unresponsive_seconds") is not None:
        parts.append(f"unresponsive after {duration(config['unresponsive_seconds'])}")
    attempts = config.get("max_attempts", 1)
    if attempts != 1:
        parts.append(f"up to {attempts} attempts")
    if config.get("retry_condition"):
        parts.append(f"retry if {' or '.join(config['retry_condition'])}")
    return ", ".join(parts)


def _particulars(data: Json) -> list[str]:
    parts: list[str] = []
    if data.get("mode"):
        parts.append(f"for {data['mode']}")
    if data.get("resources_id"):
        version = data.get("resources_version")
        parts.append(f"with {data['resources_id']}" + (f" version {version}" if version is not None else ""))
    for key, words in (("group", "group"), ("step", "step"), ("plan_key", "key")):
        if data.get(key) is not None:
            parts.append(f"{words} {data[key]}")
    limits = config_text(data.get("config") or {})
    return [*parts, limits] if limits else parts


def _fields_set(data: Json, names: tuple[str, ...]) -> str:
    """Return a text that names the fields that an event set, with the values of the `names` fields."""
    parts: list[str] = []
    for field in data["fields"]:
        name = field.removesuffix("_id").removesuffix("_time").replace("_", " ")
        if field not in names:
            parts.append(f"{name} replaced")
        elif data.get(field) is None:
            parts.append(f"{name} cleared")
        elif field == "config":
            parts.append(f"config set to {config_text(data[field]) or 'the defaults'}")
        else:
            parts.append(f"{name} set to {data[field]}")
    return ", ".join(parts)
