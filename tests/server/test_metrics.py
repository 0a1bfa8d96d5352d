"""Metrics are true and documented, and their cost does not grow with a run."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from store import open_store
from store.db.dialect import ReadSession
from store.db.queries.counts import Counts, counts
from store.db.url import with_partition
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from store.runtime.histogram import Histogram
from store.runtime.metrics_text import Family, text_of
from store.server.metrics import gauges
from store.server.metrics.gauges import Measured
from store.server.metrics.requests import Metrics
from store.server.partitions import Partitions
from store.server.process.peers import Heads, Peers, merged
from store.server.quotas import Quota, Quotas
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.conftest import SQLITE
from tests.journal.database_helpers import run_sql
from tests.server.api import Api, speaking_to
from tests.server.keyed import Steps
from tests.server.stream_clients import LOG, serving, until, unused_partition

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
HANG = 60
pytestmark = pytest.mark.usefixtures("patient_scrapes")
ON_ONE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For metrics of the server, which do not depend on its database."""
# Only of several workers.
OF_MANY = "rollbook_worker_up"


@pytest.fixture
def store_url(durable_url: str) -> str:
    return durable_url


def documented() -> dict[str, tuple[str, set[str]]]:
    """The page's table: kind and labels by name."""
    return table(PAGE.read_text().partition("### Metrics of proxies")[0])


def table(text: str) -> dict[str, tuple[str, set[str]]]:
    """A table of metrics: kind and labels by name."""
    rows = re.findall(r"^\| `((?:rollbook|process)_\w+)` \| (\w+) \| ([^|]*)\|", text, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def families(text: str) -> dict[str, tuple[str, set[str]]]:
    """What was told: kind and labels by name."""
    told: dict[str, tuple[str, set[str]]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        labels = re.findall(rf"^{name}(?:_bucket|_sum|_count)?{{(.*)}} ", text, re.MULTILINE)
        told[name] = (kind, {label for pairs in labels for label in re.findall(r"(\w+)=\"", pairs)} - {"le"})
    return told


async def measured(api: Api) -> dict[str, float]:
    lines = (await api.get("//metrics")).body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def reward(store: Store, value: float) -> None:
    """Record a rollout with a reward."""
    attempt = (await store.start_rollout(1)).attempt
    await store.add_span(make_span(attempt, attributes={"agentlightning.reward.0.value": value}))


async def test_every_measure_is_documented_with_its_kind_and_labels_and_no_other(store: Store) -> None:
    partitions = Partitions(store, quotas=Quotas(Quota(events=10**6, bytes=10**12, calls=10**6)))
    async with serving(partitions) as client, client.events(LOG) as stream:
        await stream.frame()
        await store.enqueue_rollout(1)
        await reward(store, 0.5)
        await store.log.verify()
        async with client.session.get(f"{client.url}/v1/agl/health") as answer:
            assert answer.status == 200
        async with client.session.get(f"{client.url}/metrics") as answer:
            told = families(await answer.text())
    page = documented()
    assert page.pop(OF_MANY) == ("gauge", {"worker"})
    assert told == page


async def test_metrics_count_the_calls_and_events_of_the_store(store: Store, api: Api) -> None:
    created = await api.enqueue(1, 2, 3)
    (claimed,) = await api.dequeue()
    await store.add_span(make_span((await store.query_attempts(claimed["rollout_id"]))[0]))
    values = await measured(api)

    def of(name: str, **labels: str) -> float:
        shape = ",".join(f'{key}="{value}"' for key, value in {"partition": "default", **labels}.items())
        return values[f"rollbook_{name}{{{shape}}}"]

    assert of("queue_depth") == len(created) - 1
    assert (of("rollouts", status="queuing"), of("rollouts", status="running")) == (2, 1)
    assert (of("attempts", status="running"), of("attempts", status="preparing")) == (1, 0)
    events = [event async for event in store.log.tail()]
    assert of("log_position") == events[-1].position
    assert of("written_events_total") == len(events)
    assert of("commits_total") == of("commit_calls_count") == of("commit_seconds_count")
    assert of("commit_calls_sum") >= 3
    assert 0 < of("commit_seconds_sum") < HANG
    assert (of("inbox_calls"), of("inbox_bytes")) == (0, 0)
    assert values["process_cpu_seconds_total"] > 0
    assert values["process_resident_memory_bytes"] > 2**20
    assert 0 < values["process_open_fds"] < values["process_max_fds"]


async def test_the_state_of_workers_and_the_mean_reward_are_measured(
    store: Store, api: Api, clock: ManualClock
) -> None:
    for name in ("lost", "stopped", "quick"):
        await store.update_worker(name, {"heartbeat_interval": 100.0 if name == "quick" else 10.0})
    await store.update_worker("stopped", {"heartbeat_interval": 10.0, "stopped": True})
    clock.advance(61)
    await store.update_worker("live", {"heartbeat_interval": 10.0})
    await reward(store, 1)
    await reward(store, 0.5)
    await store.enqueue_rollout("without a reward")
    values = await measured(api)
    states = {
        state: values[f'rollbook_workers{{partition="default",state="{state}"}}']
        for state in ("idle", "busy", "unknown", "stopped", "lost")
    }
    assert states == {"idle": 0, "busy": 0, "unknown": 2, "stopped": 1, "lost": 1}
    assert values['rollbook_mean_reward{partition="default"}'] == 0.75
    assert values['rollbook_rewarded_rollouts{partition="default"}'] == 2
    assert values['rollbook_database_bytes{partition="default"}'] > 4096


async def test_the_age_and_the_differences_of_the_last_verification_are_measured(
    store: Store, api: Api, store_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(gauges, "_COUNTING_SHARE", 1.0)
    names = [f'rollbook_last_verify_{name}{{partition="default"}}' for name in ("age_seconds", "differences")]
    await store.enqueue_rollout("one")
    clock.move_to(time.time())
    for differences, statement in ((0, None), (1, "UPDATE rollouts SET mode = 'val'")):
        if statement is not None:
            await run_sql(store_url, statement)
        assert (await store.log.verify()).difference_count == differences
        async with asyncio.timeout(HANG):
            # A scrape may report values that are as old as they took to count.
            while (values := await measured(api)).get(names[1]) != differences:
                pass
        assert 0 <= values[names[0]] <= time.time() - clock.seconds


async def test_before_the_first_verification_there_is_no_age_of_it(api: Api) -> None:
    assert not [name for name in await measured(api) if "last_verify" in name]


@pytest.mark.own_database
async def test_partitions_without_requests_are_measured_too(store: Store, durable_url: str) -> None:
    name = unused_partition()
    async with await open_store(with_partition(durable_url, name)) as other:
        await other.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])

    async def open_partition(url: str) -> Store:
        return await open_store(url, create=False)

    partitions = Partitions(store, durable_url, open_partition)
    try:
        async with speaking_to(partitions) as api:
            values = await measured(api)
            # The database of the tests has partitions of other tests too.
            while f'rollbook_queue_depth{{partition="{name}"}}' not in values:
                values = await measured(api)
            assert values[f'rollbook_queue_depth{{partition="{name}"}}'] == 3
            assert values[f'rollbook_partition_up{{partition="{name}"}}'] == 1
            assert values["rollbook_partitions"] >= 2
    finally:
        await partitions.close()


class CountingSession:
    """A session that counts its statements."""

    def __init__(self, session: ReadSession) -> None:
        self._session, self.dialect = session, session.dialect
        self.statements = 0

    async def fetch(self, sql: Any, params: Any) -> Any:
        self.statements += 1
        return await self._session.fetch(sql, params)


async def test_the_statements_of_a_count_do_not_grow_with_a_run(store: SQLStore) -> None:
    async def statements() -> int:
        async def read(session: ReadSession) -> int:
            counting = CountingSession(session)
            await counts(cast("ReadSession", counting), 10**15)
            return counting.statements

        return await store.core.read(read)

    assert await statements() == 6
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=index) for index in range(50)])
    for number in range(20):
        await store.update_worker(f"worker-{number}", {})
    await reward(store, 1)
    assert await statements() == 6


async def test_a_scrape_opens_few_partitions_and_the_next_one_opens_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time stands still, so values that were measured stay fresh.
    monkeypatch.setattr(gauges, "time", SimpleNamespace(monotonic=Steps(), time=time.time))
    url = f"sqlite:///{tmp_path / 'run.db'}"
    opened: list[str] = []
    async with await open_store(url) as root:
        for number in range(10):
            await (await open_store(with_partition(url, f"p{number}"))).close()

        async def open_partition(url: str) -> Store:
            opened.append(url)
            return await open_store(url, create=False)

        partitions, metrics = Partitions(root, url, open_partition), Measured()
        try:
            for total in (8, 10, 10):
                by_name = {family.name: family for family in await metrics.families(partitions)}
                assert len(opened) == total
                assert len(by_name["rollbook_queue_depth"].samples) == 1 + total
                assert by_name["rollbook_partitions"].samples == [("", {}, 11)]
        finally:
            await partitions.close()


@ON_ONE
async def test_calls_that_wait_and_streams_are_counted_without_a_duration(store: Store) -> None:
    async with serving(store) as client:
        api = Api(client.session, client.url, client.app.state.parked)
        assert await api.dequeue(wait_seconds=0.01) == []
        async with client.events(LOG) as stream:
            await stream.frame()
        await client.quiet()
        await until(lambda: not client.app.state.parked.streams)
        await api.get("/health")
        text = (await api.get("//metrics")).body.decode()
        for route in ("/v1/agl/log", "/v1/agl/queues/rollouts/dequeue"):
            assert f'route="{route}",status="200"' in text
            assert f'rollbook_request_seconds_count{{route="{route}"}}' not in text
        assert 'rollbook_request_seconds_count{route="/v1/agl/health"} 1' in text
        # The same route without a wait has a duration.
        await api.dequeue()
        assert await measured(api)
        text = (await api.get("//metrics")).body.decode()
        assert 'rollbook_request_seconds_count{route="/v1/agl/queues/rollouts/dequeue"} 1' in text


@ON_ONE
async def test_the_answer_does_not_grow_with_a_run(api: Api) -> None:
    await api.enqueue(1)
    before = (await measured(api)).keys()
    for value in range(20):
        (created,) = await api.enqueue(value)
        await api.get(f"/rollouts/{created['rollout_id']}")
    grown = (await measured(api)).keys() - before
    assert {re.sub(r".*route=\"([^\"]*)\".*", r"\1", name) for name in grown} == {
        "/metrics",
        "/v1/agl/rollouts/{rollout_id}",
    }


@ON_ONE
async def test_a_reader_that_takes_nothing_is_seen_to_lag(store: Store) -> None:
    for _ in range(60):
        await store.enqueue_rollout("x" * 200_000)
    async with serving(store) as client:
        api = Api(client.session, client.url, client.app.state.parked)
        async with client.session.get(client.url + LOG, headers={"Accept": "text/event-stream"}) as answer:
            # The session's buffer is far smaller than the log; what is not taken stays with the server.
            answer.content._high_water = 1  # pyright: ignore[reportPrivateUsage] - aiohttp offers no other way
            lag = 'rollbook_stream_lag_positions{partition="default"}'
            async with asyncio.timeout(HANG):
                # Until the buffers of the connection are full, the reader only lags for moments.
                while not (values := await measured(api)).get(lag):
                    pass
            assert values['rollbook_streams{partition="default"}'] == 1
            assert 0 < values['rollbook_stream_lag_positions{partition="default"}'] <= 60
            # The store's clock stands still, long ago.
            assert values['rollbook_stream_lag_seconds{partition="default"}'] > 0
        await client.quiet()
        assert 'rollbook_streams{partition="default"}' not in await measured(api)


async def test_counting_a_large_database_takes_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, counted = Steps(), 0
    monkeypatch.setattr(gauges, "time", SimpleNamespace(monotonic=steps, time=time.time))

    async def slow_counts() -> Counts:
        nonlocal counted
        counted += 1
        steps.now += 4
        return Counts({}, {}, 0, None, 0, 0, 0.0, {})

    async with await SQLStore.open("memory://") as large:
        monkeypatch.setattr(large.core, "counts", slow_counts)
        metrics = Measured()
        # Counting takes 4 s, which is 2 % of 200 s.
        for passed, total in ((0, 1), (195, 1), (2, 2), (195, 2)):
            steps.now += passed
            await metrics.families(Partitions(large))
            assert counted == total


def test_numbers_keep_all_their_digits() -> None:
    family = Family("n", "Help.", "counter").set(12_345_678_901).set(0.1, a="b").set(2.0, c='d"\\\n')
    assert text_of([family]).decode().splitlines() == [
        "# HELP n Help.",
        "# TYPE n counter",
        "n 12345678901",
        'n{a="b"} 0.1',
        'n{c="d\\"\\\\\\n"} 2',
    ]


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0, 1, 1.5, 4, 5, 100):
        histogram.add(value)
    lines = Family("h", "Help.", "histogram").observed(histogram, a="b").lines()[2:]
    assert [line.rpartition(" ")[::2] for line in lines] == [
        ('h_bucket{a="b",le="1"}', "2"),
        ('h_bucket{a="b",le="2"}', "3"),
        ('h_bucket{a="b",le="4"}', "4"),
        ('h_bucket{a="b",le="+Inf"}', "6"),
        ('h_sum{a="b"}', "111.5"),
        ('h_count{a="b"}', "6"),
    ]


def _counted(count: int) -> list[Family]:
    counted = Metrics()
    for _ in range(count):
        counted.request("GET", "/", 200, 0.1)
    return counted.families()


def test_numbers_of_workers_are_kept_apart() -> None:
    text = text_of(merged([_counted(2), None, _counted(3)])).decode()
    assert re.findall(r'^rollbook_requests_total{worker="(\d)".* (\d)$', text, re.MULTILINE) == [("0", "2"), ("2", "3")]
    assert text.count("# TYPE rollbook_requests_total") == 1


async def test_workers_collect_metrics_of_each_other_and_report_missing_ones(tmp_path: Path) -> None:
    def peer(number: int) -> Peers:
        def measure(heads: Heads) -> list[Family]:
            return [*_counted(number + 1), Family("head", "H.").set(heads["a"])]

        return Peers(tmp_path, number, 3, measure)

    first, second = peer(0), peer(1)
    # What a worker leaves that was killed.
    (tmp_path / "2.sock").touch()
    await first.open()
    await second.open()
    try:
        for process in (first, second):
            text = text_of(await process.families({"a": 7})).decode()
            assert re.findall(r'^rollbook_worker_up{worker="(\d)"} (\d)', text, re.MULTILINE) == [
                ("0", "1"),
                ("1", "1"),
                ("2", "0"),
            ]
            assert re.findall(r'^rollbook_requests_total{worker="(\d)".* (\d)$', text, re.MULTILINE) == [
                ("0", "1"),
                ("1", "2"),
            ]
            assert re.findall(r'^head{worker="(\d)"} 7', text, re.MULTILINE) == ["0", "1"]
        third = peer(2)
        await third.open()
        many = {"a": 7, **{f"partition-{number}": number for number in range(10_000)}}
        assert 'rollbook_worker_up{worker="1"} 1' in text_of(await first.families(many)).decode()
        assert 'rollbook_worker_up{worker="2"} 1' in text_of(await first.families({"a": 7})).decode()
        await third.close()
    finally:
        await first.close()
        await second.close()
    assert [socket for number in range(3) if (socket := tmp_path / f"{number}.sock").exists()] == []


@ON_ONE
@pytest.mark.parametrize("origins,allowed", [([], False), (["http://page.test"], True), (["*"], True)])
async def test_a_page_may_open_a_socket_exactly_when_it_may_call(
    store: Store, origins: list[str], *, allowed: bool
) -> None:
    async with speaking_to(Partitions(store), cors_origins=origins) as api:
        connecting = api.session.ws_connect(f"{api.url}{LOG}/ws", headers={"Origin": "http://page.test"})
        if allowed:
            async with connecting as socket:
                assert (await socket.receive_json())["kind"] == "hello"
        else:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await connecting
            assert refused.value.status == 403
