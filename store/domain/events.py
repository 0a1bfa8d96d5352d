"""Facts: the contents of events. Names and meanings never change; a changed form is a new `shape` with an upcaster.

Each class is the `data` of one event type: ids, enums, numbers and hashes, never user payload. A field that is None is
left out of the stored text and is read as None.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter, itemgetter
from typing import Any, ClassVar

import orjson

from store.domain.run_events import RUN_FACTS, RunFact
from store.domain.thread_events import THREAD_FACTS, ThreadFact
from store.errors import Incompatible

Json = dict[str, Any]


@dataclass(slots=True)
class Body:
    """The payload of one event, as stored: a JSON object keyed by field."""

    codec: int
    raw_len: int
    """The number of bytes before compression."""
    stored: bytes
    sha256: bytes
    """The hash of the uncompressed bytes."""


@dataclass(slots=True)
class _RolloutCreated:
    input_sha256: str
    config: Json
    mode: str | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    group: str | None = None
    step: int | None = None
    plan_key: str | None = None


@dataclass(slots=True)
class RolloutEnqueued(_RolloutCreated):
    """A rollout was created and waits in the queue."""

    type: ClassVar = "rollout.enqueued"
    shape: ClassVar = 1


@dataclass(slots=True)
class RolloutStarted(_RolloutCreated):
    """A rollout was created and its first attempt starts at once, without the queue."""

    type: ClassVar = "rollout.started"
    shape: ClassVar = 1


@dataclass(slots=True)
class RolloutAmended:
    """Fields of a rollout other than its status were set. `fields` lists them, because null is a value too."""

    type: ClassVar = "rollout.amended"
    shape: ClassVar = 1
    fields: list[str]
    mode: str | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    config: Json | None = None


@dataclass(slots=True)
class RolloutStatusChanged:
    """A rollout changed its status, or its end time was set again (`from` = `to`)."""

    type: ClassVar = "rollout.status_changed"
    shape: ClassVar = 1
    from_: str
    to: str
    reason: str
    """claimed, attempt, span or manual."""


@dataclass(slots=True)
class AttemptStarted:
    """An attempt at a rollout began."""

    type: ClassVar = "attempt.started"
    shape: ClassVar = 1
    attempt_id: str
    sequence: int
    via: str
    """dequeue, start, rollout or fork."""
    rerun_seq: int = 0
    worker_id: str | None = None
    resources_version: int | None = None
    owner: Json | None = None
    """host, pid and started (µs) of the process that runs it."""


@dataclass(slots=True)
class AttemptStatusChanged:
    """An attempt changed its status, or its end time was set again."""

    type: ClassVar = "attempt.status_changed"
    shape: ClassVar = 1
    attempt_id: str
    from_: str
    to: str
    reason: str
    """reported, span, timeout, unresponsive or superseded."""
    limit: float | None = None
    """The limit that was passed, in seconds (timeout, unresponsive)."""
    last_sign: float | None = None
    """The last sign of life, in seconds since the epoch (timeout, unresponsive)."""
    error: Json | None = None


@dataclass(slots=True)
class AttemptAmended:
    """Fields of an attempt other than its status were set; `fields` lists them."""

    type: ClassVar = "attempt.amended"
    shape: ClassVar = 1
    attempt_id: str
    fields: list[str]
    worker_id: str | None = None
    last_heartbeat_time: float | None = None


@dataclass(slots=True)
class ClaimReleased:
    """A claim whose caller had stopped waiting was released; the rollout is back at its old place in the queue."""

    type: ClassVar = "claim.released"
    shape: ClassVar = 1
    attempt_id: str
    sequence: int
    from_: str
    to: str
    queued_at: int
    """The position at which the rollout had entered the queue."""


@dataclass(slots=True)
class SpanNumbersReserved:
    """Span numbers of a rollout were reserved for calls that draw numbers without recording spans."""

    type: ClassVar = "span.numbers_reserved"
    shape: ClassVar = 1
    first: int
    """The first number of the block, which the call drew at once."""
    until: int
    """The last number of the block. Drawing the other numbers of the block appends no event."""


@dataclass(slots=True)
class SpanRecorded:
    """A span arrived."""

    type: ClassVar = "span.recorded"
    shape: ClassVar = 1
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    name: str
    status_code: str
    parent_id: str | None = None
    status_message: str | None = None
    start: float | None = None
    end: float | None = None
    rewards: list[list[Any]] | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    model: str | None = None
    response_id: str | None = None
    kind: str | None = None
    node_id: str | None = None
    scope: str | None = None
    parent_node_id: str | None = None
    phase: str | None = None
    node_exec: str | None = None


@dataclass(slots=True)
class ResourcesPublished:
    """Resources were published under a new id."""

    type: ClassVar = "resources.published"
    shape: ClassVar = 1
    version: int


@dataclass(slots=True)
class ResourcesReplaced:
    """The resources under a known id were replaced."""

    type: ClassVar = "resources.replaced"
    shape: ClassVar = 1
    version: int


@dataclass(slots=True)
class WorkerSeen:
    """A worker appeared for the first time."""

    type: ClassVar = "worker.seen"
    shape: ClassVar = 1


@dataclass(slots=True)
class WorkerStatusChanged:
    """A worker changed its status or its attempt."""

    type: ClassVar = "worker.status_changed"
    shape: ClassVar = 1
    from_: str
    to: str
    rollout_id: str | None = None
    attempt_id: str | None = None


@dataclass(slots=True)
class RolloutAnnotated:
    """Labels of a rollout were added or removed, or a note was added; the body contains the note's text."""

    type: ClassVar = "rollout.annotated"
    shape: ClassVar = 1
    added: list[str]
    """Labels that the rollout did not have before."""
    removed: list[str]
    """Labels that the rollout had."""
    noted: bool | None = None
    """Whether there is a note. States are computed from events without their bodies, so the data contain this flag."""


@dataclass(slots=True)
class BodyDropped:
    """The body of an earlier event was removed by a policy."""

    type: ClassVar = "body.dropped"
    shape: ClassVar = 1
    position: int
    policy: str


RolloutEvent = (
    RolloutEnqueued
    | RolloutStarted
    | RolloutAmended
    | RolloutStatusChanged
    | AttemptStarted
    | AttemptStatusChanged
    | AttemptAmended
    | ClaimReleased
    | SpanNumbersReserved
    | SpanRecorded
    | RolloutAnnotated
    | RunFact
)
ResourcesEvent = ResourcesPublished | ResourcesReplaced
WorkerEvent = WorkerSeen | WorkerStatusChanged
Fact = RolloutEvent | ResourcesEvent | WorkerEvent | ThreadFact | BodyDropped

FACTS: dict[str, type[Fact]] = {
    fact.type: fact
    for fact in (
        RolloutEnqueued,
        RolloutStarted,
        RolloutAmended,
        RolloutStatusChanged,
        AttemptStarted,
        AttemptStatusChanged,
        AttemptAmended,
        ClaimReleased,
        SpanNumbersReserved,
        SpanRecorded,
        ResourcesPublished,
        ResourcesReplaced,
        WorkerSeen,
        WorkerStatusChanged,
        BodyDropped,
        RolloutAnnotated,
        *RUN_FACTS,
        *THREAD_FACTS,
    )
}


@dataclass(slots=True)
class Event:
    """A fact with its place in the log."""

    position: int
    """Its position in the log. Positions follow the order of commits."""
    stream: str
    version: int
    """Its number in its stream, from 1, without gaps."""
    command: int
    """The ordinal of its command within the commit."""
    at: int
    """The time of the command, in µs since the epoch."""
    actor: str | None
    cause: int | None
    """The position of the earlier event that caused it."""
    fact: Fact
    body: Body | None = None


def _names(kind: type[Fact]) -> tuple[tuple[str, str], ...]:
    # `from` is a keyword of Python, so the field is named `from_`.
    return tuple((field.name, field.name.rstrip("_")) for field in fields(kind))


_KEYS = {kind: tuple(key for _, key in _names(kind)) for kind in FACTS.values()}
_GETTERS = {kind: attrgetter(*(name for name, _ in _names(kind))) for kind in FACTS.values() if len(fields(kind)) > 1}


def encode(fact: Fact) -> str:
    """Return the exact JSON text of a fact in the log."""
    kind = type(fact)
    getter = _GETTERS.get(kind)
    if getter is None:
        return orjson.dumps({key: getattr(fact, key) for key in _KEYS[kind]}).decode()
    values = zip(_KEYS[kind], getter(fact), strict=True)
    return orjson.dumps({key: value for key, value in values if value is not None}).decode()


# For each type and sequence of stored keys: the class, a function that puts the values into the order of its fields,
# and the defaults that are appended to the values before. Keyword arguments would take longer than all other steps of
# decoding.
_Form = tuple[type[Fact], Callable[[tuple[Any, ...]], tuple[Any, ...]], tuple[Any, ...]]
_FORMS: dict[tuple[str, ...], _Form] = {}
_FORMS_KEPT = 4096


def decode(type_: str, data: Json) -> Fact:
    """Return the fact of an event that has the current shape.

    Raises:
        KeyError: the type is not known to this version.
        TypeError: a field is missing or unknown.
    """
    form = _FORMS.get((type_, *data))
    if form is None:
        return _decode_first(type_, data)
    kind, ordered, defaults = form
    return kind(*ordered((*data.values(), *defaults)))


def _decode_first(type_: str, data: Json) -> Fact:
    """Return a fact with a new sequence of keys, and remember the sequence."""
    kind, keys = FACTS[type_], tuple(data)
    fact = kind(**{"from_" if key == "from" else key: value for key, value in data.items()})
    if len(_FORMS) < _FORMS_KEPT and set(keys) <= set(_KEYS[kind]):
        absent = [key for key in _KEYS[kind] if key not in data]
        given = {field.name.rstrip("_"): field.default for field in fields(kind)}
        places = [(*keys, *absent).index(key) for key in _KEYS[kind]]
        # With a single index `itemgetter` returns the value instead of a tuple.
        ordered = itemgetter(*places) if places[1:] else tuple[Any, ...]
        _FORMS[type_, *keys] = kind, ordered, tuple(given[key] for key in absent)
    return fact


# (type, shape as stored) → the data in the next shape. Empty while every type is at its first shape.
UPCASTERS: dict[tuple[str, int], Callable[[Json], Json]] = {}


def upcast(type_: str, shape: int, data: Json) -> Fact:
    """Return the fact of an event that was written by any version.

    Raises:
        Incompatible: a newer version wrote a type or a shape that this version does not know.
    """
    kind = FACTS.get(type_)
    if kind is None or shape > kind.shape:
        raise Incompatible(
            f"the log contains an event {type_!r} in shape {shape}, which this version does not know",
            "upgrade Rollbook",
        )
    while shape < kind.shape:
        data = UPCASTERS[type_, shape](data)
        shape += 1
    return decode(type_, data)
