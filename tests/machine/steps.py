"""The calls of the state machine: their generation, and their execution on a store and on the model.

A step refers to rollouts and attempts by numbers, so that it can be generated before they exist. The numbers are
resolved when the step is executed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan

from store.domain.commands import ReleaseClaim, Sweep
from store.domain.views import ClaimView
from store.interface.store import Store
from store.models import (
    LLM,
    UNSET,
    EnqueueRolloutRequest,
    NamedResources,
    NewScore,
    OtelResource,
    RolloutConfig,
    RunEvent,
    Span,
    TraceStatus,
)
from store.sql.mapping import rollouts as rollout_mapping
from store.testing import ManualClock
from store.testing.samples import make_sdk_span
from tests.machine.backend import Call, plain
from tests.machine.model import PLAIN_CONFIG, Json, Model

Step = tuple[str, Json]


@dataclass(slots=True)
class Op:
    """A step whose numbers have become ids."""

    call: Call
    expect: Callable[[Model, Any], Any]
    """The answer of the model, which reads fresh ids from the answer of the store."""
    sweeps: bool = True


@dataclass(slots=True)
class Claims:
    """The claims that may still be given back."""

    views: dict[str, ClaimView] = field(default_factory=dict[str, ClaimView])


NUMBERS = st.integers(0, 9)
ROLLOUTS = st.sampled_from(["current", "current", "current", "current", -1, 0, 1, 2, "unknown"])
"""Mostly the one that is being worked on, so that stories get somewhere."""
ATTEMPTS = st.sampled_from(["latest", "latest", "latest", "latest", 0, -2, "unknown"])
WORKERS = st.sampled_from([None, "w1", "w2"])
CONFIGS: list[Json] = [
    PLAIN_CONFIG,
    {**PLAIN_CONFIG, "max_attempts": 3, "retry_condition": ["failed", "timeout", "unresponsive"]},
    {**PLAIN_CONFIG, "max_attempts": 2, "retry_condition": ["timeout"], "timeout_seconds": 7.3},
    {**PLAIN_CONFIG, "max_attempts": 4, "retry_condition": ["unresponsive"], "unresponsive_seconds": 3.7},
    {**PLAIN_CONFIG, "unresponsive_seconds": 1.3, "timeout_seconds": 20.9},
    {**PLAIN_CONFIG, "max_attempts": 2, "retry_condition": ["timeout", "failed"], "timeout_seconds": 0.0},
    {**PLAIN_CONFIG, "timeout_seconds": 0.0},
]
CONFIG = st.sampled_from([*CONFIGS, *CONFIGS[1:5], *CONFIGS[1:4]])
STATUSES = st.sampled_from(
    [None, None, "queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
)
ATTEMPT_STATUSES = st.sampled_from(
    [None, "preparing", "running", "failed", "failed", "succeeded", "unresponsive", "timeout"]
)
RESOURCES_IDS = st.sampled_from(["rs-a", "rs-b"])
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "rollbook.key": st.sampled_from(["k1", "k2"]),
        "rollbook.group": st.just("g"),
        "rollbook.step": st.integers(0, 3),
        "note": st.sampled_from(["", "late"]),
    },
)
REQUEST = st.fixed_dictionaries(
    {"input": st.sampled_from([0, {"q": "why"}]), "metadata": METADATA, "config": CONFIG},
    optional={"mode": st.sampled_from(["train", "val"]), "resources_id": st.sampled_from(["rs-a", "rs-missing"])},
)
SPAN = st.fixed_dictionaries(
    {
        "rollout": ROLLOUTS,
        "attempt": ATTEMPTS,
        "span": st.integers(0, 7),
        "sequence_id": st.integers(-1, 9),
        "reward": st.sampled_from([None, None, 0.25, 1.0]),
        "tokens": st.sampled_from([None, 7]),
    }
)


def _step(name: str, **args: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(args))


_ENQUEUE = _step("enqueue", requests=st.lists(REQUEST, min_size=1, max_size=3))
_START = _step("start_rollout", request=REQUEST, worker=WORKERS)
_DEQUEUE = _step("dequeue", worker=WORKERS)
_DEQUEUE_MANY = _step("dequeue_many", limit=st.integers(1, 4), worker=WORKERS)
_CLAIM = _step("claim", limit=st.integers(1, 3), worker=WORKERS)
_RELEASE = _step("release", claim=NUMBERS)
_START_ATTEMPT = _step("start_attempt", rollout=ROLLOUTS, worker=WORKERS)
_UPDATE_ROLLOUT = _step(
    "update_rollout",
    rollout=ROLLOUTS,
    status=STATUSES,
    fields=st.fixed_dictionaries(
        {},
        optional={
            "input": st.sampled_from([0, [1, 2]]),
            "mode": st.sampled_from([None, "train", "test"]),
            "resources_id": st.sampled_from([None, "rs-a", "rs-missing"]),
            "config": CONFIG,
            "metadata": st.sampled_from([None, {"rollbook.key": "k1"}, {"note": "new"}]),
        },
    ),
)
_UPDATE_ATTEMPT = _step(
    "update_attempt",
    rollout=ROLLOUTS,
    attempt=ATTEMPTS,
    status=ATTEMPT_STATUSES,
    fields=st.fixed_dictionaries(
        {},
        optional={
            "worker_id": st.sampled_from(["", "w1", "w3"]),
            "last_heartbeat_time": st.sampled_from([-40.25, -2.25, 0.25, 30.25]),
            "metadata": st.just({"note": "attempt"}),
        },
    ),
)
_BEAT = _step(
    "update_attempt",
    rollout=ROLLOUTS,
    attempt=st.just("latest"),
    status=st.none(),
    fields=st.fixed_dictionaries({"last_heartbeat_time": st.sampled_from([-40.25, -2.25, 0.25, 30.25])}),
)
_SPANS = _step("add_spans", spans=st.lists(SPAN, min_size=1, max_size=4))
_ONE_SPAN = _step("add_spans", spans=st.lists(SPAN, min_size=1, max_size=1))
_RUN_EVENTS = _step(
    "append_run_events",
    rollout=ROLLOUTS,
    attempt=ATTEMPTS,
    nodes=st.lists(st.sampled_from(["Bull", "Bear"]), min_size=1, max_size=3),
)
_MOVE_HEAD = _step("move_head", rollout=ROLLOUTS, attempt=ATTEMPTS)
_ANNOTATE = _step(
    "annotate",
    rollout=ROLLOUTS,
    labels=st.dictionaries(st.sampled_from(["good", "bad", "réseau"]), st.booleans(), min_size=1),
    note=st.sampled_from([None, None, "seen"]),
)
_RECORD_SCORE = _step("record_score", rollout=ROLLOUTS, attempt=ATTEMPTS, value=st.sampled_from([0.0, 0.5]))
_OTEL_SPAN = _step("add_otel_span", rollout=ROLLOUTS, attempt=ATTEMPTS)
_NUMBERS = _step("number_spans", rollouts=st.lists(ROLLOUTS, min_size=1, max_size=4))
_PUBLISH = _step("publish", resources_id=st.one_of(st.none(), RESOURCES_IDS), model=st.sampled_from(["a", "b"]))
_WORKER = _step("update_worker", worker=st.sampled_from(["w1", "w4"]), stats=st.sampled_from([None, {"gpu": 0.5}]))
_SWEEP = _step("sweep")
_WAIT = _step("wait", rollouts=st.lists(ROLLOUTS, max_size=3))
_CLAIM_NONE = _step("dequeue_many", limit=st.integers(-1, 0), worker=WORKERS)

WRITES = st.one_of(
    *(_ENQUEUE, _START, _DEQUEUE, _DEQUEUE, _DEQUEUE_MANY, _CLAIM, _CLAIM, _RELEASE, _RELEASE, _START_ATTEMPT),
    *(_UPDATE_ROLLOUT, _UPDATE_ROLLOUT, _UPDATE_ATTEMPT, _UPDATE_ATTEMPT, _UPDATE_ATTEMPT, _BEAT),
    *(_SPANS, _ONE_SPAN, _ONE_SPAN, _OTEL_SPAN, _NUMBERS, _PUBLISH, _WORKER, _SWEEP, _SWEEP),
    *(_RUN_EVENTS, _RUN_EVENTS, _MOVE_HEAD, _ANNOTATE, _RECORD_SCORE),
)
"""Steps that give the writer one command, and so may share a commit."""
CALLS = st.one_of(WRITES, WRITES, WRITES, WRITES, _WAIT, _CLAIM_NONE)


def resolve(step: Step, model: Model, clock: ManualClock, claims: Claims) -> Op | None:
    """Return what a step is now, or None if it cannot be done yet."""
    name, args = step
    return _RESOLVE[name](args, model, clock, claims)


def _enqueue(args: Json, *_: Any) -> Op:
    requests: list[Json] = args["requests"]
    if len(requests) == 1:
        return Op(
            lambda store: store.enqueue_rollout(**_arguments(requests[0])),
            lambda model, answer: model.enqueue(requests, [_field(answer, "rollout_id")])[0],
        )
    return Op(
        lambda store: store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(**_arguments(request)) for request in requests]
        ),
        lambda model, answer: model.enqueue(requests, _ids(answer, "rollout_id", len(requests))),
    )


def _start_rollout(args: Json, *_: Any) -> Op:
    return Op(
        lambda store: store.start_rollout(**_arguments(args["request"]), worker_id=args["worker"]),
        lambda model, answer: model.start_rollout(
            args["request"], args["worker"], _field(answer, "rollout_id"), _attempt_id(answer)
        ),
    )


def _dequeue(args: Json, *_: Any) -> Op:
    def expect(model: Model, answer: Any) -> Json | None:
        claimed = model.dequeue(1, args["worker"], [_attempt_id(answer)])
        return claimed[0] if claimed else None

    return Op(lambda store: store.dequeue_rollout(args["worker"]), expect)


def _dequeue_many(args: Json, *_: Any) -> Op:
    limit, worker = args["limit"], args["worker"]
    return Op(
        lambda store: store.dequeue_many_rollouts(limit, worker),
        lambda model, answer: model.dequeue(limit, worker, _attempt_ids(answer)),
        sweeps=limit > 0,
    )


def _claim(args: Json, _: Model, __: ManualClock, claims: Claims) -> Op:
    limit, worker = args["limit"], args["worker"]

    async def call(store: Any) -> Any:
        views = await store.queue.claim(limit, worker, 0.0)
        rollouts = [plain(rollout_mapping.rollout_of_view(view.rollout)) for view in views]
        claims.views.update({_attempt_id(rollout): view for rollout, view in zip(rollouts, views, strict=True)})
        return rollouts

    return Op(call, lambda model, answer: model.dequeue(limit, worker, _attempt_ids(answer)))


def _release(args: Json, _: Model, __: ManualClock, claims: Claims) -> Op | None:
    if not claims.views:
        return None
    number: int = args["claim"]
    attempt_id = sorted(claims.views)[number % len(claims.views)]
    command = release_of(claims.views.pop(attempt_id))
    return Op(
        lambda store: store.core.call(command),
        lambda model, _: model.release(command.rollout_id, attempt_id),
        sweeps=False,
    )


def _start_attempt(args: Json, model: Model, *_: Any) -> Op:
    rollout_id = rollout_of(model, args["rollout"])
    return Op(
        lambda store: store.start_attempt(rollout_id, args["worker"]),
        lambda model, answer: model.start_attempt(rollout_id, args["worker"], _attempt_id(answer)),
    )


def _update_rollout(args: Json, model: Model, *_: Any) -> Op:
    rollout_id, fields, status = rollout_of(model, args["rollout"]), args["fields"], args["status"]
    changes = {**fields, "status": UNSET if status is None else status}
    if "config" in fields:
        changes["config"] = RolloutConfig(**fields["config"])
    return Op(
        lambda store: store.update_rollout(rollout_id, **changes),
        lambda model, _: model.update_rollout(rollout_id, fields, status),
    )


def _update_attempt(args: Json, model: Model, clock: ManualClock, _: Claims) -> Op:
    rollout_id = rollout_of(model, args["rollout"])
    attempt_id = attempt_of(model, rollout_id, args["attempt"], latest="latest")
    fields, status = dict(args["fields"]), args["status"]
    if "last_heartbeat_time" in fields:
        fields["last_heartbeat_time"] += clock.seconds
    return Op(
        lambda store: store.update_attempt(rollout_id, attempt_id, status or UNSET, **fields),
        lambda model, _: model.update_attempt(rollout_id, attempt_id, fields, status),
    )


def _add_spans(args: Json, model: Model, *_: Any) -> Op:
    spans = [_span(drawn, model) for drawn in args["spans"]]
    if len(spans) == 1:

        def expect(model: Model, _: Any) -> Json | None:
            new = model.add_spans(plain(spans))
            return new[0] if new else None

        return Op(lambda store: store.add_span(spans[0]), expect, sweeps=False)
    return Op(lambda store: store.add_many_spans(spans), lambda model, _: model.add_spans(plain(spans)), sweeps=False)


def _append_run_events(args: Json, model: Model, *_: Any) -> Op:
    rollout_id = rollout_of(model, args["rollout"])
    attempt_id = attempt_of(model, rollout_id, args["attempt"])
    events = [RunEvent(kind="result", node_id=node) for node in args["nodes"]]

    async def call(store: Store) -> None:
        # Versions count facts of all kinds, which the model has not numbered.
        await store.runs.append_events(rollout_id, attempt_id, events)

    return Op(call, lambda model, _: model.append_run_events(rollout_id, attempt_id, args["nodes"]), sweeps=False)


def _move_head(args: Json, model: Model, *_: Any) -> Op:
    rollout_id = rollout_of(model, args["rollout"])
    attempt_id = attempt_of(model, rollout_id, args["attempt"])
    return Op(
        lambda store: store.runs.move_head(rollout_id, attempt_id),
        lambda model, _: model.move_head(rollout_id, attempt_id),
    )


def _annotate(args: Json, model: Model, *_: Any) -> Op:
    rollout_id, note = rollout_of(model, args["rollout"]), args["note"]
    added = [label for label, is_wanted in args["labels"].items() if is_wanted]
    removed = [label for label, is_wanted in args["labels"].items() if not is_wanted]

    async def call(store: Store) -> list[str]:
        # The number of its event counts facts of all kinds, which the model has not numbered.
        return (await store.annotations.annotate(rollout_id, note, add_labels=added, remove_labels=removed)).labels

    return Op(call, lambda model, _: model.annotate(rollout_id, added, removed, note), sweeps=False)


def _record_score(args: Json, model: Model, *_: Any) -> Op:
    rollout_id = rollout_of(model, args["rollout"])
    attempt_id = attempt_of(model, rollout_id, args["attempt"])
    score = NewScore(rollout_id=rollout_id, attempt_id=attempt_id, name="exact", version="v1", value=args["value"])

    async def call(store: Store) -> bool:
        # The number of its event counts facts of all kinds, which the model has not numbered.
        (number,) = await store.annotations.record_scores([score])
        return number is not None

    return Op(call, lambda model, _: model.record_score(rollout_id, attempt_id, args["value"]), sweeps=False)


def _span(drawn: Json, model: Model) -> Span:
    rollout_id = rollout_of(model, drawn["rollout"])
    attributes: dict[str, Any] = {}
    if drawn["reward"] is not None:
        attributes["agentlightning.reward.0.value"] = drawn["reward"]
    if drawn["tokens"] is not None:
        attributes["gen_ai.usage.input_tokens"] = drawn["tokens"]
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_of(model, rollout_id, drawn["attempt"]),
        sequence_id=drawn["sequence_id"],
        trace_id="0af7651916cd43dd8448eb211c80319c",
        span_id=f"{drawn['span']:016x}",
        parent_id=None,
        name="step",
        status=TraceStatus(status_code="OK"),
        attributes=attributes,
        events=[],
        links=[],
        start_time=1_700_000_000.25,
        end_time=None,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def _add_otel_span(args: Json, model: Model, *_: Any) -> Op:
    rollout_id = rollout_of(model, args["rollout"])
    attempt_id = attempt_of(model, rollout_id, args["attempt"])
    readable: ReadableSpan = make_sdk_span()

    def expect(model: Model, _: Any) -> Json:
        return model.add_spans([plain(Span.from_opentelemetry(readable, rollout_id, attempt_id, 0))], number=True)[0]

    return Op(lambda store: store.add_otel_span(rollout_id, attempt_id, readable), expect, sweeps=False)


def _number_spans(args: Json, model: Model, *_: Any) -> Op:
    rollout_ids = [rollout_of(model, number) for number in args["rollouts"]]
    pairs = [(rollout_id, "at-whatever") for rollout_id in rollout_ids]
    if len(pairs) == 1:
        return Op(
            lambda store: store.get_next_span_sequence_id(*pairs[0]),
            lambda model, _: model.number_spans(rollout_ids)[0],
            sweeps=False,
        )
    return Op(
        lambda store: store.get_many_span_sequence_ids(pairs),
        lambda model, _: model.number_spans(rollout_ids),
        sweeps=False,
    )


def _publish(args: Json, *_: Any) -> Op:
    resources: NamedResources = {"llm": LLM(endpoint="http://localhost/v1", model=args["model"])}
    resources_id: str | None = args["resources_id"]
    if resources_id is None:
        return Op(
            lambda store: store.add_resources(resources),
            lambda model, answer: model.publish(_field(answer, "resources_id"), plain(resources)),
            sweeps=False,
        )
    return Op(
        lambda store: store.update_resources(resources_id, resources),
        lambda model, _: model.publish(resources_id, plain(resources)),
    )


def _update_worker(args: Json, *_: Any) -> Op:
    worker_id, stats = args["worker"], args["stats"]
    return Op(
        lambda store: store.update_worker(worker_id, UNSET if stats is None else stats),
        lambda model, _: model.update_worker(worker_id, stats),
        sweeps=False,
    )


def sweep(store: Any) -> Awaitable[int]:
    """Send the watchdog, due or not: whatever is overdue at the stamp must be found."""
    return store.core.call(Sweep(actor="watchdog"))


def release_of(view: ClaimView) -> ReleaseClaim:
    """Return the command that undoes a claim."""
    rollout = plain(rollout_mapping.rollout_of_view(view.rollout))
    return ReleaseClaim(
        rollout_id=rollout["rollout_id"],
        attempt_id=rollout["attempt"]["attempt_id"],
        claim_position=view.claim_position,
        status_before=view.status_before,
        queued_at=view.queued_at,
        actor="store",
    )


def _sweep(_: Json, *__: Any) -> Op:
    return Op(sweep, lambda model, answer: model.sweep(answer), sweeps=False)


def _wait(args: Json, model: Model, *_: Any) -> Op:
    rollout_ids = [rollout_of(model, number) for number in args["rollouts"]]
    return Op(lambda store: store.wait_for_rollouts(rollout_ids, timeout=0), lambda model, _: model.ended(rollout_ids))


_RESOLVE: dict[str, Callable[[Json, Model, ManualClock, Claims], Op | None]] = {
    "enqueue": _enqueue,
    "start_rollout": _start_rollout,
    "dequeue": _dequeue,
    "dequeue_many": _dequeue_many,
    "claim": _claim,
    "release": _release,
    "start_attempt": _start_attempt,
    "update_rollout": _update_rollout,
    "update_attempt": _update_attempt,
    "add_spans": _add_spans,
    "append_run_events": _append_run_events,
    "move_head": _move_head,
    "annotate": _annotate,
    "record_score": _record_score,
    "add_otel_span": _add_otel_span,
    "number_spans": _number_spans,
    "publish": _publish,
    "update_worker": _update_worker,
    "sweep": _sweep,
    "wait": _wait,
}


def rollout_of(model: Model, number: int | str) -> str:
    """Return the id of the rollout of this number, counted from either end, or of the one worked on last."""
    rollout_ids = list(model.rollouts)
    if not rollout_ids or number == "unknown":
        return "ro-unknown"
    if isinstance(number, str):
        return model.current or rollout_ids[-1]
    return rollout_ids[number % len(rollout_ids)]


def attempt_of(model: Model, rollout_id: str, number: int | str, latest: str | None = None) -> str:
    """Return the id of an attempt of a rollout; `latest` stands for itself where the call knows the word."""
    attempts: Sequence[Json] = model.attempts.get(rollout_id, [])
    if number == "latest" and latest is not None:
        return latest
    if not attempts or number == "unknown":
        return "at-unknown"
    return attempts[-1 if isinstance(number, str) else number % len(attempts)]["attempt_id"]


def _arguments(request: Json) -> Json:
    return {**request, "config": RolloutConfig(**request["config"])}


def _field(answer: Any, name: str) -> str:
    return cast("Json", answer)[name] if isinstance(answer, dict) else "refused"


def _attempt_id(answer: Any) -> str:
    return cast("Json", answer)["attempt"]["attempt_id"] if isinstance(answer, dict) else "refused"


def _ids(answer: Any, name: str, count: int) -> list[str]:
    if not isinstance(answer, list):
        return ["refused"] * count
    return [item[name] for item in cast("list[Json]", answer)]


def _attempt_ids(answer: Any) -> list[str]:
    return [_attempt_id(item) for item in cast("list[Any]", answer)] if isinstance(answer, list) else []
