"""Facts: the contents of events, without their places in the log. Each class describes the `data` of one event type.

The data contain ids, status words, numbers and hashes, but no payload, which is stored in the body of the event. A
field that is None is left out of the stored text and is read as None. Decision 1.

Names and meanings of stored fields never change. If the fields of a type have to change, the type gets the next number
as its `shape`, and an upcaster converts data of the shape before.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter, itemgetter
from typing import Any, ClassVar

import orjson

from store.domain.body import Body
from store.domain.run_events import RUN_FACTS, RunFact
from store.domain.thread_events import THREAD_FACTS, ThreadFact
from store.errors import Incompatible

Json = dict[str, Any]


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
    """Fields of a rollout were set. `fields` lists their names, because a field may also have been set to null."""

    type: ClassVar = "rollout.amended"
    shape: ClassVar = 1
    fields: list[str]
    mode: str | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    config: Json | None = None


@dataclass(slots=True)
class RolloutStatusChanged:
    """A rollout changed its status. If `from` equals `to`, only its end time was set again."""

    type: ClassVar = "rollout.status_changed"
    shape: ClassVar = 1
    from_: str
    to: str
    reason: str
    """`claimed`, `attempt`, `span`, `event`, `fork` or `manual`."""


@dataclass(slots=True)
class AttemptStarted:
    """An attempt at a rollout began."""

    type: ClassVar = "attempt.started"
    shape: ClassVar = 1
    attempt_id: str
    sequence: int
    via: str
    """The call that started the attempt: `dequeue`, `start`, `rollout` (with the creation of the rollout) or `fork`."""
    rerun_seq: int = 0
    """The number of the re-run to which the attempt belongs; 0 before the first re-run."""
    worker_id: str | None = None
    resources_version: int | None = None
    owner: Json | None = None
    """The process that executes the attempt, as `host`, `pid` and `started` (the start of the process, in µs)."""


@dataclass(slots=True)
class AttemptStatusChanged:
    """An attempt changed its status. If `from` equals `to`, only its end time or its error was set again.

    Shape 2 adds `is_counted`. An event without `is_counted` is written in shape 1, which has the same data.
    """

    type: ClassVar = "attempt.status_changed"
    shape: ClassVar = 2
    attempt_id: str
    from_: str
    to: str
    reason: str
    """`reported`, `span`, `event`, `timeout`, `unresponsive` or `superseded`."""
    limit: float | None = None
    """For `timeout` and `unresponsive`: the time limit that the attempt exceeded, in seconds."""
    last_sign: float | None = None
    """For `timeout` and `unresponsive`: the time of the last sign of life, in seconds since the epoch."""
    error: Json | None = None
    is_counted: bool | None = None
    """False if the attempt does not count for `max_attempts`, because its rollout was put back into the queue."""


@dataclass(slots=True)
class AttemptAmended:
    """Fields of an attempt were set. `fields` lists their names, because a field may also have been set to null."""

    type: ClassVar = "attempt.amended"
    shape: ClassVar = 1
    attempt_id: str
    fields: list[str]
    worker_id: str | None = None
    last_heartbeat_time: float | None = None


@dataclass(slots=True)
class ClaimReleased:
    """A claim was undone, because its caller had stopped waiting.

    The rollout has its old place in the queue again, and the attempt that the claim started no longer counts.
    """

    type: ClassVar = "claim.released"
    shape: ClassVar = 1
    attempt_id: str
    sequence: int
    from_: str
    to: str
    queued_at: int
    """The rollout's place in the queue: the log position of the event with which the rollout had joined the queue."""


@dataclass(slots=True)
class SpanNumbersReserved:
    """A block of span numbers of a rollout was reserved for calls that draw numbers without recording spans."""

    type: ClassVar = "span.numbers_reserved"
    shape: ClassVar = 1
    first: int
    """The first number of the block. The call that reserved the block drew this number."""
    until: int
    """The last number of the block. Later calls draw the other numbers without an event."""


@dataclass(slots=True)
class SpanRecorded:
    """A span was recorded. The body contains those fields of the span that the data do not contain.

    Shape 2 adds `counted_before`, and shape 3 the last four fields. The data without these fields are the same in all
    shapes, so a span is written in the first shape that has its fields.
    """

    type: ClassVar = "span.recorded"
    shape: ClassVar = 3
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
    counted_before: list[int] | None = None
    """How many of `tokens_in` and of `tokens_out` the rollout does not count for this span.

    Earlier spans of the attempt with the same response id, which record the same call of a model, contain these tokens.
    None if there are no such tokens.
    """
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
    tokens_cached: int | None = None
    """Those of `tokens_in` that the provider read from a cache."""
    tokens_written: int | None = None
    """Those of `tokens_in` that the provider wrote to a cache."""
    tokens_reasoning: int | None = None
    """Those of `tokens_out` that are reasoning."""
    cost: float | None = None
    """The cost of the call as the provider or the tracer reported it, in US dollars."""

    @property
    def counted(self) -> tuple[int, int]:
        """The numbers of tokens, in and out, that the span adds to those of its rollout."""
        before_in, before_out = self.counted_before or (0, 0)
        return (self.tokens_in or 0) - before_in, (self.tokens_out or 0) - before_out


@dataclass(slots=True)
class ResourcesPublished:
    """Resources were published under a new id."""

    type: ClassVar = "resources.published"
    shape: ClassVar = 1
    version: int


@dataclass(slots=True)
class ResourcesReplaced:
    """The resources under an existing id were replaced."""

    type: ClassVar = "resources.replaced"
    shape: ClassVar = 1
    version: int


@dataclass(slots=True)
class WorkerSeen:
    """A worker called the store for the first time."""

    type: ClassVar = "worker.seen"
    shape: ClassVar = 1


@dataclass(slots=True)
class WorkerStatusChanged:
    """A worker changed its status, or it works on another attempt."""

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
    """True if a note was added; otherwise None.

    The data repeat what the body shows, because states are computed from events without their bodies.
    """


@dataclass(slots=True)
class RewardScored:
    """A version of a reward function was run on an attempt. It returned a value, or it failed with an error."""

    type: ClassVar = "reward.scored"
    shape: ClassVar = 1
    attempt_id: str
    name: str
    version: str
    value: float | None = None
    dimensions: list[list[Any]] | None = None
    """Further numbers of the reward, as pairs of a name and a value."""
    error: Json | None = None
    """The `type` and the `message` of the error."""
    code_sha256: str | None = None
    """The hash of the source of the function, in hex."""


@dataclass(slots=True)
class RolloutScanned:
    """A version of a scanner examined an attempt. The body contains the explanation and the message of the error."""

    type: ClassVar = "rollout.scanned"
    shape: ClassVar = 1
    attempt_id: str
    scanner: str
    version: str
    is_match: bool | None = None
    """None if the scanner failed."""
    error: str | None = None
    """The class of the error."""


@dataclass(slots=True)
class ScannerAdded:
    """A version of a scanner was added. The body contains its definition."""

    type: ClassVar = "scanner.added"
    shape: ClassVar = 1
    name: str
    version: str
    kind: str
    sha256: str
    """The hash of the definition, in hex."""
    match_label: str | None = None
    clear_label: str | None = None


@dataclass(slots=True)
class BodyDropped:
    """The deletion of the body of an earlier event was ordered."""

    type: ClassVar = "body.dropped"
    shape: ClassVar = 1
    position: int
    """The position of the earlier event."""
    policy: str
    """The name of the policy that ordered the deletion."""


@dataclass(slots=True)
class StoreBodiesDropped:
    """The deletion of the payload of several earlier events was ordered. The rows of `dropped` contain their positions.

    The payload of some events is stored partly or only in blobs, which `store.blobs_dropped` deletes later.
    """

    type: ClassVar = "store.bodies_dropped"
    shape: ClassVar = 1
    policy: str
    """The policy that ordered the deletion, in words; `redact` for a removal by hand."""
    count: int
    """The number of events whose payload was removed."""
    bytes: int
    """The number of bytes of the deleted bodies, as they were stored."""
    first: int
    """The smallest of the positions."""
    last: int
    """The largest of the positions."""
    sha256: str
    """The hash of the positions in ascending order, each as a big-endian 64-bit integer, in hex."""
    reason: str | None = None


@dataclass(slots=True)
class StoreBlobsDropped:
    """Blobs were deleted, because the payload of all events that refer to them was removed before."""

    type: ClassVar = "store.blobs_dropped"
    shape: ClassVar = 1
    policy: str
    """The policy that ordered the deletion, in words; `redact` for a removal by hand."""
    count: int
    bytes: int
    """The number of bytes of the deleted blobs, as they were stored."""
    sha256: str
    """The hash of the 32-byte names of the blobs in ascending order, in hex."""
    reason: str | None = None


@dataclass(slots=True)
class StoreCopiedFrom:
    """The store was made of some rollouts of another store. The copies of their events follow.

    The log of the other store up to the commit is sealed by the hash of this commit.
    """

    type: ClassVar = "store.copied_from"
    shape: ClassVar = 1
    store_id: str
    """The id of the other store."""
    commit_id: int
    """The last commit of the other store when the rollouts were selected."""
    position: int
    """The position of the last event of this commit."""
    chain_head: str
    """The hash of this commit in hex."""
    conditions: str
    """The conditions that selected the rollouts, in words."""
    rollouts: int
    """The number of rollouts."""
    copied_at: int
    """The time of the copy, in microseconds since the epoch."""


@dataclass(slots=True)
class MetricsLogged:
    """Numbers of one training step were logged."""

    type: ClassVar = "metrics.logged"
    shape: ClassVar = 1
    step: int
    values: list[list[Any]]
    """Pairs of a name and a number, sorted by name. Numbers without JSON text are `NaN`, `Infinity` or `-Infinity`."""


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
    | RewardScored
    | RolloutScanned
    | RunFact
)
StoreEvent = BodyDropped | StoreBodiesDropped | StoreBlobsDropped | StoreCopiedFrom | MetricsLogged
ResourcesEvent = ResourcesPublished | ResourcesReplaced
WorkerEvent = WorkerSeen | WorkerStatusChanged
Fact = RolloutEvent | ResourcesEvent | WorkerEvent | ThreadFact | StoreEvent | ScannerAdded

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
        StoreBodiesDropped,
        StoreBlobsDropped,
        StoreCopiedFrom,
        RolloutAnnotated,
        RewardScored,
        MetricsLogged,
        RolloutScanned,
        ScannerAdded,
        *RUN_FACTS,
        *THREAD_FACTS,
    )
}


@dataclass(slots=True)
class Event:
    """A fact with its place in the log."""

    position: int
    """The position of the event in the log. Positions follow the order of commits."""
    stream: str
    version: int
    """The number of the event in its stream. Numbers begin at 1 and have no gaps."""
    command: int
    """The index of the command that recorded the event, among the commands of the commit."""
    at: int
    """The time of the event in microseconds since the epoch."""
    actor: str | None
    """The caller."""
    cause: int | None
    """The position of the earlier event that led to this event."""
    fact: Fact
    body: Body | None = None


def _names(kind: type[Fact]) -> tuple[tuple[str, str], ...]:
    # `from` is a keyword of Python, so the field is named `from_`.
    return tuple((field.name, field.name.rstrip("_")) for field in fields(kind))


_KEYS = {kind: tuple(key for _, key in _names(kind)) for kind in FACTS.values()}
_GETTERS = {kind: attrgetter(*(name for name, _ in _names(kind))) for kind in FACTS.values() if len(fields(kind)) > 1}


def encode(fact: Fact) -> str:
    """Return the JSON text of a fact, exactly as the log stores it."""
    kind = type(fact)
    getter = _GETTERS.get(kind)
    if getter is None:
        return orjson.dumps({key: getattr(fact, key) for key in _KEYS[kind]}).decode()
    values = zip(_KEYS[kind], getter(fact), strict=True)
    return orjson.dumps({key: value for key, value in values if value is not None}).decode()


# How to decode data with a certain type and a certain sequence of keys: the class, a function that puts the values into
# the order of the fields of the class, and the defaults of absent fields. The defaults are appended to the values, and
# then the function is called. Keyword arguments would take longer than all other steps of decoding.
_Form = tuple[type[Fact], Callable[[tuple[Any, ...]], tuple[Any, ...]], tuple[Any, ...]]
_FORMS: dict[tuple[str, ...], _Form] = {}
_FORMS_KEPT = 4096


def decode(type_: str, data: Json) -> Fact:
    """Return the fact with a type and its data. The data must have the current shape of the type.

    Raises:
        KeyError: this version of the program does not know the type.
        TypeError: a field is missing or unknown.
    """
    form = _FORMS.get((type_, *data))
    if form is None:
        return _decode_first(type_, data)
    kind, ordered, defaults = form
    return kind(*ordered((*data.values(), *defaults)))


def _decode_first(type_: str, data: Json) -> Fact:
    """Return a fact whose sequence of keys has not occurred before, and remember how to decode this sequence."""
    kind, keys = FACTS[type_], tuple(data)
    fact = kind(**{"from_" if key == "from" else key: value for key, value in data.items()})
    if len(_FORMS) < _FORMS_KEPT and set(keys) <= set(_KEYS[kind]):
        absent = [key for key in _KEYS[kind] if key not in data]
        defaults = {field.name.rstrip("_"): field.default for field in fields(kind)}
        places = [(*keys, *absent).index(key) for key in _KEYS[kind]]
        # With a single index `itemgetter` returns the value instead of a tuple.
        ordered = itemgetter(*places) if places[1:] else tuple[Any, ...]
        _FORMS[type_, *keys] = kind, ordered, tuple(defaults[key] for key in absent)
    return fact


# Functions by type and shape. Each function converts data of this shape to the next shape.
UPCASTERS: dict[tuple[str, int], Callable[[Json], Json]] = {
    (AttemptStatusChanged.type, 1): lambda data: data,
    (SpanRecorded.type, 1): lambda data: data,
    (SpanRecorded.type, 2): lambda data: data,
}


def upcast(type_: str, shape: int, data: Json) -> Fact:
    """Return the fact with a type and its data, which may have any shape up to the current one.

    Raises:
        Incompatible: a newer version of the program wrote a type or a shape that this version does not know.
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
