"""Quotas: calls that add data are refused, running work can finish, and other partitions are not affected."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from store import open_store
from store.client import HTTPStore
from store.db.url import with_partition
from store.domain.annotations import AnnotateRollout
from store.domain.commands import (
    AmendRollout,
    BeatWorker,
    Claim,
    Command,
    CommandGroup,
    Enqueue,
    LimitSilence,
    NumberSpans,
    PublishResources,
    RecordSpans,
    ReleaseClaim,
    StartAttempt,
    StartRollout,
    Sweep,
    UpdateAttempt,
)
from store.domain.events import Body
from store.domain.run_commands import AppendToRun, Fork, MoveHead, RetractArtifact
from store.domain.scanners import AddScanner, RecordScans
from store.domain.scores import RecordScores
from store.domain.thread_commands import CopyThread, DeleteThread, KeepInThread, PruneThread
from store.domain.trainer_metrics import LogMetrics
from store.errors import QuotaExceeded, RateLimited, Unavailable
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from store.models.scanners import NewScanner
from store.operations import RetentionPolicy, compact, remove_payload
from store.server.partitions import Partitions
from store.server.quotas import PartitionQuota, Quota, Quotas, StoreLimiter, adds
from store.server.streaming.paths import LOG_SOCKET
from store.sql.store import SQLStore
from tests.runs.trading_runs import auto_run
from tests.server.api import ON_BOTH_DATABASES, PREFIX, Answer, Api, a_span, speaking_to
from tests.server.keyed import Steps

ONE = {"rollouts": [{"input": 1}]}
HANG = 60
ENQUEUE = "/queues/rollouts/enqueue"


@asynccontextmanager
async def limited(
    store: Store, default: Quota, overrides: dict[str, Quota] | None = None, *, url: str | None = None, **settings: Any
) -> AsyncGenerator[tuple[Api, Steps]]:
    """Serve a store with quotas, and give a client and the clock of the quotas."""
    steps = Steps()
    open_partition = partial(open_store, create=False, scan_debounce_seconds=0)
    partitions = Partitions(store, url, open_partition, quotas=Quotas(default, overrides, steps))
    try:
        async with speaking_to(partitions, **settings) as api:
            yield api, steps
    finally:
        await partitions.close()


def statuses(answers: Sequence[Answer]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


def refused(answer: Answer, quota: str, status: int = 400) -> None:
    """Check that a call was refused because of the quota of events or bytes."""
    assert (answer.status, answer.json["error_type"], answer.json["quota"]) == (status, "QuotaExceeded", quota), answer
    assert "retry-after" not in answer.headers


async def events_of(store: Store) -> int:
    assert isinstance(store, SQLStore)
    return await store.core.position()


async def metrics_of(api: Api, prefix: str = "rollbook_quota") -> dict[str, float]:
    text = (await api.get("//metrics")).body.decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(prefix)]
    return {name.removeprefix(prefix): float(value) for name, _, value in lines}


async def test_calls_beyond_the_rate_are_refused_until_time_passes(store: Store) -> None:
    async with limited(store, Quota(calls=4)) as (api, steps):
        for _ in range(2):
            (await api.get("/statistics")).ok()
            await api.enqueue()
        for answer in (await api.get("/statistics"), await api.post(ENQUEUE, ONE)):
            # Agent-lightning's client repeats a request after 503 alone.
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.json == {
                "detail": "the quota of partition 'default' is 4 calls per second; try again in 0.25 s",
                "error_type": "RateLimited",
                "reason": "the quota of partition 'default' is 4 calls per second",
                "retry_after_seconds": 0.25,
                "partition": "default",
                "limit": 4,
            }
        refusal = await api.get("/rollouts/ro-1/graph")
        assert (refusal.status, refusal.headers["retry-after"]) == (429, "1")
        steps.now += 0.25
        assert (await api.get("/statistics")).status == 200
        assert (await api.get("/statistics")).status == 503
        # At most the calls of one second accumulate.
        steps.now += 3600
        assert statuses([await api.get("/statistics") for _ in range(6)]) == {200: 4, 503: 2}
    assert await events_of(store) == 2


@pytest.mark.parametrize("has_fast_path", [True, False])
async def test_many_callers_at_once_never_make_more_calls_than_there_are(store: Store, has_fast_path: bool) -> None:
    async with limited(store, Quota(calls=20), has_fast_path=has_fast_path) as (api, steps):

        async def call(number: int) -> Answer:
            return await (api.post(ENQUEUE, ONE) if number % 2 else api.get("/statistics"))

        async def at_once() -> Counter[int]:
            answers = await asyncio.gather(*map(call, range(60)))
            return Counter({200: sum(answer.status < 300 for answer in answers)}) + Counter(
                {503: sum(answer.status == 503 for answer in answers)}
            )

        assert await at_once() == {200: 20, 503: 40}
        steps.now += 0.5
        assert await at_once() == {200: 10, 503: 50}
        counted = await metrics_of(api)
        assert counted['_calls_total{partition="default"}'] == 30
        assert counted['_refusals_total{partition="default",quota="calls"}'] == 90


async def test_a_call_that_the_fast_path_hands_over_counts_once(store: Store) -> None:
    async with limited(store, Quota(calls=100)) as (api, _):
        key = {"Idempotency-Key": uuid4().hex}
        # The fast path begins all of these. The application answers the repeated call, the invalid call and the call
        # without rollouts.
        (await api.post(ENQUEUE, ONE, headers=key)).ok(201)
        (await api.post(ENQUEUE, ONE, headers=key)).ok(201)
        assert (await api.post(ENQUEUE, {"rollouts": 1})).status == 422
        assert (await api.post(ENQUEUE, {"rollouts": []})).status == 201
        assert (await metrics_of(api))['_calls_total{partition="default"}'] == 4


async def test_health_metrics_and_pages_are_never_refused(store: Store) -> None:
    async with limited(store, Quota(calls=1)) as (api, _):
        (await api.get("/statistics")).ok()
        for path in ("/health", "//livez", "//readyz", "//metrics", "//ui/", "//ui/admin"):
            assert (await api.get(path)).status == 200, path
        # A program reads the data of a page, so this is a call.
        assert (await api.get("//ui/overview.json")).status == 429


async def test_streams_and_traces_are_calls(store: Store) -> None:
    async with limited(store, Quota(calls=1)) as (api, _):
        (await api.get("/statistics")).ok()
        assert (await api.get("/log", headers={"Accept": "text/event-stream"})).status == 503
        assert (await api.post("//v1/traces", {"resourceSpans": []})).status == 429
        with pytest.raises(aiohttp.WSServerHandshakeError) as handshake:
            await api.session.ws_connect(api.url + LOG_SOCKET)
        assert handshake.value.status == 403
        assert (await metrics_of(api))['_refusals_total{partition="default",quota="calls"}'] == 3
        requests = await metrics_of(api, "rollbook_requests_total")
        assert requests['{method="GET",route="/v1/agl/log",status="503"}'] == 1
        assert requests['{method="POST",route="/v1/traces",status="429"}'] == 1


async def test_a_client_retries_until_its_calls_are_admitted(store: Store) -> None:
    async with limited(store, Quota(calls=10)) as (api, steps), HTTPStore(api.url) as client:
        enqueued = asyncio.gather(*(client.enqueue_rollout(number) for number in range(25)))
        async with asyncio.timeout(HANG):
            while (await metrics_of(api))['_refusals_total{partition="default",quota="calls"}'] < 15:
                assert not enqueued.done()
            assert await events_of(store) <= 10
            while not enqueued.done():
                steps.now += 0.1
                await asyncio.sleep(0.01)
        assert len({rollout.rollout_id for rollout in await enqueued}) == 25
    assert await events_of(store) == 25


async def test_a_client_without_time_to_retry_gets_the_error(store: Store) -> None:
    async with limited(store, Quota(calls=1)) as (api, _), HTTPStore(api.url, retry_seconds=0) as client:
        await client.statistics()
        with pytest.raises(RateLimited) as error:
            await client.statistics()
        assert (error.value.partition, error.value.limit, error.value.retryable) == ("default", 1, True)
        assert isinstance(error.value, Unavailable)


def test_calls_are_admitted_at_most_at_their_rate_and_one_burst() -> None:
    steps, shuffled = Steps(), random.Random(7)
    quota = PartitionQuota("run_7", Quota(calls=7), steps)
    admitted, began = 0, steps.now
    for _ in range(10_000):
        steps.now += shuffled.choice((0.0, 0.001, 0.3))
        admitted += not quota.take_call()
        assert admitted <= 7 * (steps.now - began) + 7 + 1e-6
    # A caller that waits for the returned time gets a token.
    while not (wait := quota.take_call()):
        pass
    for _ in range(1000):
        steps.now += wait
        assert quota.take_call() == 0
        wait = quota.take_call()
        assert wait > 0


@ON_BOTH_DATABASES
@pytest.mark.parametrize("has_fast_path", [True, False])
async def test_many_callers_at_once_never_exceed_the_events(store: Store, has_fast_path: bool) -> None:
    async with limited(store, Quota(events=25), has_fast_path=has_fast_path) as (api, _):
        answers = await asyncio.gather(*(api.post(ENQUEUE, ONE) for _ in range(60)))
        assert statuses(answers) == {201: 25, 400: 35}
        (one, *_) = [answer for answer in answers if answer.status == 400]
        assert one.json == {
            "detail": "partition 'default' has 25 events, the call needs 1 more, and the quota is 25; raise `--quota`"
            " of the server, or use another partition",
            "error_type": "QuotaExceeded",
            "partition": "default",
            "quota": "events",
            "used": 25,
            "needed": 1,
            "limit": 25,
        }
        assert (await metrics_of(api))['_refusals_total{partition="default",quota="events"}'] == 35
    assert await events_of(store) == 25


async def test_a_call_of_many_items_is_refused_as_a_whole(store: Store) -> None:
    async with limited(store, Quota(events=10)) as (api, _):
        await api.enqueue(*range(6))
        refused(await api.post(ENQUEUE, {"rollouts": [{"input": 1}] * 5}), "events")
        assert await events_of(store) == 6
        await api.enqueue(*range(4))
    assert await events_of(store) == 10


@ON_BOTH_DATABASES
async def test_two_servers_of_one_database_share_the_events(store: Store, store_url: str) -> None:
    async with (
        await open_store(store_url) as other,
        limited(store, Quota(events=30)) as (one, _),
        limited(other, Quota(events=30)) as (two, _),
    ):
        calls = [(one, two)[number % 2].post(ENQUEUE, ONE) for number in range(80)]
        assert statuses(await asyncio.gather(*calls)) == {201: 30, 400: 50}
    assert await events_of(store) == 30


async def test_beyond_the_quota_work_is_finished_and_nothing_is_added(store: Store) -> None:
    async with limited(store, Quota(events=4)) as (api, _):
        await api.enqueue(1, 2)
        (claimed,) = await api.dequeue()
        rollout_id, attempt_id = claimed["rollout_id"], claimed["attempt"]["attempt_id"]
        rollout, attempt = f"/rollouts/{rollout_id}", f"/rollouts/{rollout_id}/attempts/{attempt_id}"
        before = await events_of(store)
        assert before >= 4
        number = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        refused(await api.post(ENQUEUE, ONE), "events")
        refused(await api.post("/rollouts", {"input": 1}), "events")
        refused(await api.post("/spans", a_span(rollout_id, attempt_id)), "events")
        refused(await api.post("/spans/batch", {"spans": [a_span(rollout_id, attempt_id)]}), "events")
        refused(await api.post("/spans/next", number), "events")
        refused(
            await api.post("/resources", {"llm": {"resource_type": "llm", "endpoint": "e", "model": "m"}}), "events"
        )
        refused(await api.post(f"{attempt}/events", {"events": [{"kind": "log"}]}), "events", 507)
        refused(await api.post(rollout, {"metadata": {"a": 1}}), "events")
        refused(await api.post(attempt, {"metadata": {"a": 1}}), "events")
        refused(await api.post(f"{rollout}/annotations", {"note": "a"}), "events", 507)
        scanner = {"name": "s", "version": "v1", "kind": "regex", "definition": {"pattern": "a"}}
        refused(await api.post("/scanners", {"scanner": scanner}), "events", 507)
        assert await events_of(store) == before
        # Calls that finish work, and heartbeats.
        (await api.post(attempt, {"last_heartbeat_time": 1.5})).ok()
        (await api.post("/workers/w1", {"heartbeat_stats": {"n": 1}})).ok()
        (await api.post(f"{rollout}/annotations", {"add_labels": ["keep"]})).ok()
        (other,) = await api.dequeue()
        (await api.post(f"/rollouts/{other['rollout_id']}", {"status": "cancelled"})).ok()
        assert (await api.post(attempt, {"status": "succeeded", "metadata": {"a": 1}})).ok()["status"] == "succeeded"
        assert (await api.get(rollout)).ok()["status"] == "succeeded"
        assert len((await api.get("/rollouts")).ok()["items"]) == 2
    assert (await store.log.verify()).ok


async def test_explanations_of_scans_count_in_the_quota_of_bytes(store: Store) -> None:
    rollout = await store.start_rollout({"n": 1})
    await store.scanners.add(NewScanner(name="s", version="v1", kind="regex", definition={"pattern": "a"}))
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    async with limited(store, Quota(bytes=1)) as (api, _):
        scan = {**ids, "is_match": True, "explanation": "e" * 4096}
        refused(await api.post("/scans", {"name": "s", "version": "v1", "scans": [scan]}), "bytes", 507)
    assert await store.scanners.query_scans(rollout.rollout_id) == []


async def test_a_re_run_beyond_the_quota_is_refused(store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    before = await events_of(store)
    part = {"phase": "risk", "scopes": ["RIG"], "confirm_side_effects": True}
    async with limited(store, Quota(events=before)) as (api, _):
        refused(await api.post(f"/rollouts/{run.rollout_id}/forks", part), "events", 507)
        assert await events_of(store) == before
    async with limited(store, Quota(events=before + 100)) as (api, _):
        (await api.post(f"/rollouts/{run.rollout_id}/forks", part)).ok(201)


ADDING: set[type[Command]] = {
    Enqueue,
    StartRollout,
    Fork,
    RecordSpans,
    NumberSpans,
    AppendToRun,
    PublishResources,
    RecordScores,
    LogMetrics,
    AddScanner,
    RecordScans,
    KeepInThread,
    CopyThread,
}
FINISHING: set[type[Command]] = {
    *(Claim, ReleaseClaim, StartAttempt, LimitSilence, BeatWorker, Sweep, RetractArtifact, MoveHead),
    *(DeleteThread, PruneThread),
}
BODY = Body(codec=0, raw_len=2, stored=b"{}", sha256=bytes(32))
SINGLE: list[tuple[Command, bool]] = [
    (AmendRollout(rollout_id="ro-1", fields=["input"], body=BODY), True),
    (AmendRollout(rollout_id="ro-1", fields=["input", "status"], body=BODY, status="cancelled"), False),
    (AmendRollout(rollout_id="ro-1", fields=["config"]), False),
    (UpdateAttempt(rollout_id="ro-1", attempt_id="at-1", fields=["metadata"], body=BODY), True),
    (UpdateAttempt(rollout_id="ro-1", attempt_id="at-1", fields=["status"], body=BODY, status="failed"), False),
    (UpdateAttempt(rollout_id="ro-1", attempt_id="at-1", fields=[]), False),
    (AnnotateRollout(rollout_id="ro-1", added=[], removed=[], body=BODY), True),
    (AnnotateRollout(rollout_id="ro-1", added=["keep"], removed=[]), False),
]


def test_every_command_is_classified() -> None:
    # A dataclass with slots replaces the class of its definition, which exists until it is collected as garbage. Other
    # tests define commands of their own. The writer checks the parts of a group one by one.
    commands = {
        kind
        for kind in Command.__subclasses__()
        if kind.__module__.startswith("store.") and getattr(sys.modules[kind.__module__], kind.__name__) is kind
    } - {CommandGroup}
    assert commands == ADDING | FINISHING | {type(command) for command, _ in SINGLE}
    # Only the type of these commands counts, so they need no fields.
    assert {kind for kind in ADDING | FINISHING if adds(kind.__new__(kind))} == ADDING
    assert [adds(command) for command, _ in SINGLE] == [expected for _, expected in SINGLE]


async def test_a_repeated_call_gets_its_answer_beyond_the_quota(store: Store) -> None:
    async with limited(store, Quota(events=1)) as (api, _):
        headers = {"Idempotency-Key": uuid4().hex}
        first = (await api.post(ENQUEUE, ONE, headers=headers)).ok(201)
        refused(await api.post(ENQUEUE, ONE, headers={"Idempotency-Key": uuid4().hex}), "events")
        again = (await api.post(ENQUEUE, ONE, headers=headers)).ok(201)
        assert again == first


async def test_a_refused_call_is_no_retry_for_a_client_and_works_once_the_quota_is_raised(store: Store) -> None:
    headers = {"Idempotency-Key": uuid4().hex}
    async with limited(store, Quota(events=1)) as (api, _), HTTPStore(api.url) as client:
        await client.enqueue_rollout(1)
        with pytest.raises(QuotaExceeded) as error:
            await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=2)] * 2)
        refusal = error.value
        assert (refusal.quota, refusal.used, refusal.needed, refusal.limit, refusal.retryable) == (
            "events",
            1,
            2,
            1,
            False,
        )
        refused(await api.post(ENQUEUE, ONE, headers=headers), "events")
        assert (await metrics_of(api))['_refusals_total{partition="default",quota="events"}'] == 2
    async with limited(store, Quota(events=2)) as (api, _):
        (await api.post(ENQUEUE, ONE, headers=headers)).ok(201)


async def test_traces_beyond_the_quota_are_refused_for_good(store: Store) -> None:
    async with limited(store, Quota(events=1)) as (api, _):
        ((rollout, attempt),) = [await api.claimed()]
        attributes = {"agentlightning.rollout_id": rollout, "agentlightning.attempt_id": attempt}
        resource = {"attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]}
        span = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "00f067aa0ba902b7", "name": "step"}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
        answer = await api.post("//v1/traces", body)
        # Exporters drop what was answered 400, and would repeat after 429 or 503.
        assert answer.status == 400, answer
        assert "the quota is 1" in answer.json["message"]


def payload(size: int) -> str:
    """Return a text of this many bytes, of which at least half remain after compression."""
    return random.Random(size).randbytes(size // 2).hex()


@ON_BOTH_DATABASES
async def test_a_partition_grows_to_its_bytes_and_removed_payload_makes_room(store: Store, store_url: str) -> None:
    assert isinstance(store, SQLStore)
    limit = await store.core.size_bytes() + 4_000_000
    async with limited(store, Quota(bytes=limit)) as (api, steps):
        admitted = 0
        while (answer := await api.post(ENQUEUE, {"rollouts": [{"input": payload(400_000)}]})).status == 201:
            admitted += 1
            assert admitted < 100
        refused(answer, "bytes")
        assert "rollbook retention" in answer.detail
        # Until the next measurement, the stored payload is added up.
        assert 10 <= admitted <= 20
        assert answer.json["used"] + answer.json["needed"] > answer.json["limit"] == limit
        await api.enqueue(1)
        rollouts = (await api.get("/rollouts?limit=100")).ok()["items"]
        for rollout in rollouts:
            (await api.post(f"/rollouts/{rollout['rollout_id']}", {"status": "cancelled"})).ok()
        assert (await remove_payload(store_url, RetentionPolicy.of(statuses=("cancelled",)), apply=True)).rollouts > 10
        await compact(store_url, rewrite=True)
        refused(await api.post(ENQUEUE, {"rollouts": [{"input": payload(400_000)}]}), "bytes")
        steps.now += 5
        (await api.post(ENQUEUE, {"rollouts": [{"input": payload(400_000)}]})).ok(201)
        used = (await metrics_of(api))['_used{partition="default",quota="bytes"}']
        assert 0 < used < limit
    assert (await store.log.verify()).ok


async def test_the_size_is_measured_at_intervals_and_kept_while_the_database_does_not_answer() -> None:
    steps, sizes = Steps(), [Unavailable("away"), 100, ValueError("a bug"), 50]
    measured: list[float] = []

    async def measure() -> int:
        measured.append(steps.now)
        size = sizes.pop(0)
        if isinstance(size, Exception):
            raise size
        return size

    quota = PartitionQuota("run_7", Quota(bytes=100), steps)
    limiter = StoreLimiter(quota, measure, steps)

    async def admits(events: int = 10**9) -> bool:
        await limiter.refresh()
        limiter.admit(BeatWorker(worker_id="w", heartbeat_stats=None), events, 0)
        limiter.admit(AmendRollout(rollout_id="ro-1", fields=["status"], status="failed"), events, 0)
        limiter.admit(Enqueue(items=[]), events, 0)
        return True

    began = steps.now
    # Nothing is known yet, and the batch fails anyway if the database does not answer.
    assert await admits()
    assert await admits()
    steps.now += 5
    assert await admits()
    steps.now += 4.9
    assert await admits()
    steps.now += 0.1
    assert await admits()
    steps.now += 5
    assert await admits()
    assert measured == [began, began + 5, began + 10, began + 15]
    assert quota.refused == {"bytes": 0}


async def test_payload_counts_when_it_is_committed() -> None:
    steps = Steps()

    async def measure() -> int:
        return 100

    def adding(size: int) -> Command:
        return PublishResources(resources_id="r", is_new=True, body=Body(0, size, bytes(size), b""))

    limiter = StoreLimiter(PartitionQuota("run_7", Quota(bytes=1000), steps), measure, steps)
    await limiter.refresh()
    # The same commands are decided again if the batch is repeated.
    for _ in range(10):
        limiter.admit(adding(400), 0, 0)
        limiter.admit(adding(400), 0, 400)
    with pytest.raises(QuotaExceeded):
        limiter.admit(adding(101), 0, 800)
    limiter.committed(800)
    limiter.admit(adding(100), 0, 0)
    with pytest.raises(QuotaExceeded):
        limiter.admit(adding(101), 0, 0)


async def test_a_batch_does_not_wait_until_connections_for_reads_are_free(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()

    async def measure() -> int:
        return await asyncio.Event().wait()

    limiter = StoreLimiter(PartitionQuota("run_7", Quota(bytes=100), steps), measure, steps)
    async with asyncio.timeout(HANG):
        await limiter.refresh()
        await limiter.refresh()
    limiter.admit(Enqueue(items=[]), 0, 0)
    (record,) = caplog.records
    assert "the size of the partition run_7 could not be measured" in record.getMessage()


async def test_a_partition_over_its_quota_affects_no_other(store: Store, store_url: str) -> None:
    one, two, free = (f"p{uuid4().hex[:12]}" for _ in range(3))
    for name in (one, two, free):
        await (await open_store(with_partition(store_url, name))).close()
    quotas = {two: Quota(events=6, calls=None), free: Quota()}
    async with limited(store, Quota(events=3, calls=5), quotas, url=store_url) as (api, steps):

        def enqueue(name: str) -> Any:
            return api.post(f"//p/{name}{PREFIX}{ENQUEUE}", ONE)

        answers = {name: statuses([await enqueue(name) for _ in range(8)]) for name in (one, two, free)}
        assert answers == {one: {201: 3, 400: 2, 503: 3}, two: {201: 6, 400: 2}, free: {201: 8}}
        assert statuses([await api.post(ENQUEUE, ONE) for _ in range(6)]) == {201: 3, 400: 2, 503: 1}
        steps.now += 1
        refused(await enqueue(one), "events")
        assert (await enqueue(free)).status == 201
        counted = await metrics_of(api)
        # On Postgres, other tests have partitions in the same database.
        limits = {
            name: value for name, value in counted.items() if name.startswith("_limit") and (one in name or two in name)
        }
        assert limits == {
            f'_limit{{partition="{one}",quota="events"}}': 3,
            f'_limit{{partition="{one}",quota="calls"}}': 5,
            f'_limit{{partition="{two}",quota="events"}}': 6,
        }
        assert counted[f'_used{{partition="{one}",quota="events"}}'] == 3
        assert counted[f'_used{{partition="{two}",quota="events"}}'] == 6
        assert counted[f'_refusals_total{{partition="{one}",quota="calls"}}'] == 3
        assert counted[f'_refusals_total{{partition="{one}",quota="events"}}'] == 3
        assert not [name for name in counted if free in name]


async def test_without_quotas_nothing_is_limited_or_measured(store: Store) -> None:
    assert isinstance(store, SQLStore)
    async with speaking_to(Partitions(store)) as api:
        await api.enqueue(*range(50))
        assert await metrics_of(api) == {}
        assert store.core.writer.limiter is None
