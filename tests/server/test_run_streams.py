"""Streams of a run: equal frames in both protocols, one shared reader, and resumption after every interruption."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import orjson
import pytest

from store import open_store
from store.domain.working_set import WorkingSet
from store.errors import Invalid, NotFound
from store.interface.store import Store
from store.journal.writer import Committed
from store.models import AttemptedRollout, RunEvent, RunEventRow, RunFrame, apply_frames
from store.planning.follow import RunFollowPage
from store.server.auth import admission
from store.server.streaming.feed import last_frame
from store.server.streaming.run_feed import ending
from store.sql import core as sql_core
from store.sql.follow import RunSource
from store.sql.runs import SQLRuns
from store.sql.store import SQLStore
from store.sql.waiters import WaitingCalls
from store.testing import ManualClock
from store.wire import paths
from tests.runs.following import PATIENCE, last_of
from tests.runs.trading import MARKET
from tests.runs.trading_runs import auto_run, begin, complete_rerun, do_phase, ended, rerun, say, seen
from tests.server.api import ON_BOTH_DATABASES
from tests.server.keyed import bearer, keyed_server
from tests.server.stream_clients import Client, Events, Json, Stream, serving, until
from tests.server.test_streams import WAYS, NotReading

VIEWERS = 20


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with serving(store) as ready:
        yield ready


def places(run: AttemptedRollout) -> tuple[str, str]:
    """Where a run is followed, by server-sent events and by WebSocket."""
    ids = {"rollout_id": run.rollout_id}
    return paths.path(paths.RUN_STREAM, **ids), paths.path(paths.RUN_SOCKET, **ids)


def follow(client: Client, run: AttemptedRollout, way: str, *more: tuple[str, str]) -> Any:
    events, socket = places(run)
    return client.events(events, [*more]) if way == "events" else client.socket([*more], path=socket)


async def frames_to(stream: Stream, kind: str, seq: int = 0) -> list[Json]:
    """Return the frames up to the first one of a kind that is not before a version."""
    frames: list[Json] = []
    while True:
        frame = await stream.frame()
        assert frame is not None, frames[-1:]
        frames.append(frame)
        if frame["kind"] == kind and frame["seq"] >= seq:
            return frames


def held(frames: list[Json]) -> list[RunEventRow]:
    """Return the events that a reader of some frames holds."""
    return apply_frames([], [RunFrame.model_validate(frame) for frame in frames])


@pytest.mark.parametrize("way", WAYS)
async def test_stream_of_an_ended_run_sends_its_events_and_a_terminal_frame(
    store: Store, client: Client, way: str
) -> None:
    run = await auto_run(store, tickers=("RIG",))
    last = await last_of(store, run)
    async with follow(client, run, way) as stream:
        hello, *frames, status, terminal = await frames_to(stream, "terminal")
    assert hello == {
        "v": 1,
        "kind": "hello",
        "seq": 0,
        "view": "head",
        "last_seq": last,
        "head_attempt": 1,
        "attempt_status": "succeeded",
        "rollout_status": "succeeded",
        "store_id": getattr(store, "store_id", None),
        "partition": client.app.state.partitions.root_name,
        "heartbeat_seconds": 15.0,
    }
    assert held(frames) == (await seen(store, run)).items
    assert {(frame["v"], frame["seq"] == frame["event"]["version"]) for frame in frames} == {(1, True)}
    assert status == {
        "v": 1,
        "kind": "status",
        "seq": last,
        "attempt": 1,
        "attempt_status": "succeeded",
        "rollout_status": "succeeded",
    }
    assert terminal == {"v": 1, "kind": "terminal", "seq": last, "attempt": 1, "outcome": "succeeded"}


@ON_BOTH_DATABASES
async def test_both_ways_carry_the_same_frames_from_anywhere(store: Store, client: Client) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await complete_rerun(store, run, "risk", "RIG")
    last = await last_of(store, run)
    for after in (0, 1, last // 2, last - 1, last):
        place = ("after", str(after))
        async with follow(client, run, "events", place) as one, follow(client, run, "socket", place) as two:
            told = await frames_to(one, "terminal", last)
            assert await frames_to(two, "terminal", last) == told


async def test_a_browser_that_comes_again_goes_on_where_it_was(store: Store, client: Client) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await complete_rerun(store, run, "risk", "RIG")
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id)
    head, last = (await seen(store, run)).items, await last_of(store, run)
    got: list[Json] = []
    stood: list[str | None] = [None]
    while not (got and got[-1]["kind"] == "terminal" and got[-1]["seq"] == last):
        sent = {} if stood[-1] is None else {"Last-Event-ID": stood[-1]}
        async with client.events(places(run)[0], None, **sent) as stream:
            assert isinstance(stream, Events)
            for _ in range(9):
                frame = await stream.frame()
                assert frame is not None
                got.append(frame)
                if frame["kind"] == "terminal":
                    break
            stood.append(stream.last_event_id)
    assert held(got) == head
    assert any("@" in event_id for event_id in stood if event_id is not None)


async def test_reader_that_reconnects_after_any_frame_misses_and_repeats_nothing(store: Store, client: Client) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await complete_rerun(store, run, "risk", "RIG")
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id)
    head, last = (await seen(store, run)).items, await last_of(store, run)
    async with follow(client, run, "socket") as stream:
        frames = await frames_to(stream, "terminal", last)
    assert held(frames) == head
    for index, frame in enumerate(frames):
        place = [(name, str(frame[field])) for name, field in (("after", "seq"), ("until", "until")) if field in frame]
        async with follow(client, run, "socket", *place) as stream:
            rest = await frames_to(stream, "terminal", last)
        assert held([*frames[: index + 1], *rest]) == head, frame
        versions = [event["event"]["version"] for event in (*frames[: index + 1], *rest) if event["kind"] == "event"]
        assert len(versions) == len(set(versions)), frame


@pytest.mark.parametrize("way", WAYS)
async def test_run_stream_honours_view_bodies_and_follow(store: Store, client: Client, way: str) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await complete_rerun(store, run, "risk", "RIG")
    asked = [("view", "attempt:1"), ("bodies", "false"), ("follow", "false")]
    async with follow(client, run, way, *asked) as stream:
        frames = await frames_to(stream, "terminal")
        # It does not go on after the end.
        assert await stream.frame() is None
    assert held(frames) == (await seen(store, run, "attempt:1", bodies=False)).items


@pytest.mark.parametrize("way", WAYS)
async def test_a_silent_stream_beats_and_says_where_it_stands(store: Store, way: str) -> None:
    run = await begin(store)
    async with serving(store, heartbeat_seconds=0.05) as client, follow(client, run, way) as stream:
        last = (await frames_to(stream, "status"))[-1]["seq"]
        for _ in range(2):
            assert await stream.frame() == {"v": 1, "kind": "heartbeat", "seq": last}


async def test_without_the_wish_for_events_the_frames_are_a_page(store: Store, client: Client) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await complete_rerun(store, run, "risk", "RIG")
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id)
    path = places(run)[0]
    status, page = await client.get(path)
    assert status == 200
    assert held(page["frames"]) == (await seen(store, run)).items
    assert page["frames"][-1]["kind"] == "terminal"
    frames: list[Json] = []
    asked: list[tuple[str, str]] = []
    while not frames or frames[-1]["kind"] != "terminal":
        part = (await client.get(path, [*asked, ("limit", "7")]))[1]["frames"]
        frames += part
        place = {"after": part[-1]["seq"], "until": part[-1]["until"]}
        asked = [(name, str(value)) for name, value in place.items() if value is not None]
    assert held(frames) == held(page["frames"])


async def test_stream_of_a_missing_run_or_bad_cursor_is_refused(store: Store, client: Client) -> None:
    run = await begin(store)
    last = await last_of(store, run)
    events, socket = places(run)
    gone = paths.path(paths.RUN_STREAM, rollout_id="ro-none")
    assert (await client.get(gone))[0] == 404
    assert (await client.get(gone.replace("stream", "ws").replace("ro-none", run.rollout_id)))[0] == 404
    for wrong in [("after", str(last + 1)), ("after", "-1"), ("after", "x"), ("view", "tail"), ("until", "0")]:
        assert (await client.get(events, [wrong]))[0] == 422, wrong
    for seen_last in ("x", "1@", "1@0", "1@2@3", "9999999", f"1@{last + 1}"):
        assert (await client.get(events, None, **{"Last-Event-ID": seen_last}))[0] == 422, seen_last
    async with client.socket([("after", str(last + 1))], path=socket) as stream:
        frame = await stream.frame()
        assert frame is not None
        assert (frame["kind"], frame["code"], frame["retryable"]) == ("error", "future_cursor", False)
        assert f"which has number {last}" in frame["detail"]
        assert await stream.frame() is None


async def test_a_socket_of_a_missing_run_gets_an_error_frame_and_a_refusal(client: Client) -> None:
    socket = paths.path(paths.RUN_SOCKET, rollout_id="ro-none")
    async with client.session.ws_connect(client.url + socket) as connection:
        frame = await connection.receive_json()
        assert (frame["kind"], frame["error_type"], frame["error_kind"]) == ("error", "NotFound", "rollout")
        assert (frame["key"], frame["retryable"]) == ("ro-none", False)
        closing = await connection.receive()
        assert (closing.type, closing.data) == (aiohttp.WSMsgType.CLOSE, 1008)


async def test_a_run_is_followed_with_the_key_of_a_reader_and_no_longer_than_it_counts(
    store_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "CHECK_SECONDS", 0.02)
    async with await open_store(store_url, clock=clock) as store, keyed_server(store, store_url, clock) as keyed:
        run = await begin(store)
        events, socket = (keyed.api.url + path for path in places(run))
        key, text = await keyed.make("reader")
        async with keyed.api.session.get(events) as refused:
            assert refused.status == 401
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await keyed.api.session.ws_connect(socket)
        async with keyed.api.session.ws_connect(socket, headers=bearer(text)) as open_socket:
            assert (await open_socket.receive_json())["kind"] == "hello"
        headers = {"Accept": "text/event-stream", **bearer(text)}
        async with keyed.api.session.get(events, headers=headers) as answer:
            stream = Events(answer)
            await frames_to(stream, "status")
            await keyed.revoke(key)
            last = (await frames_to(stream, "error"))[-1]
            assert (last["error_type"], last["retryable"]) == ("Unauthorized", False)
            assert await stream.frame() is None


class Viewer:
    """Whoever comes and goes, at random."""

    def __init__(self, client: Client, run: AttemptedRollout, number: int) -> None:
        self._client = client
        self._run = run
        self._chance = random.Random(number)
        self._way = WAYS[number % 2]
        self.seq = 0
        self.told: list[RunEventRow] = []

    async def see(self, last: int) -> None:
        """Follow until the last event, leaving again and again."""
        while self.seq < last:
            asked = [("view", "raw"), ("after", str(self.seq))]
            async with follow(self._client, self._run, self._way, *asked) as stream:
                for _ in range(self._chance.randint(2, 40)):
                    frame = RunFrame.model_validate(await stream.frame())
                    self.seq = frame.seq
                    self.told += [frame.event] if frame.event is not None else []
                    if self.seq >= last:
                        return


@pytest.mark.slow
async def test_viewers_that_come_and_go_while_a_run_goes_each_see_the_log_once(store: Store, client: Client) -> None:
    run = await begin(store)
    sizes = [3 + number % 4 for number in range(40)]
    # The first makes the attempt and its rollout run, which are two events more.
    last = await last_of(store, run) + sum(sizes) + 2

    async def tell() -> None:
        for number, size in enumerate(sizes):
            await say(store, run, [RunEvent(kind="log", message=f"{number}.{part}") for part in range(size)])

    viewers = [Viewer(client, run, number) for number in range(VIEWERS)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(tell(), *(viewer.see(last) for viewer in viewers))
    everything = (await seen(store, run, "raw")).items
    assert len(everything) == sum(sizes)
    assert [viewer.told for viewer in viewers] == [everything] * VIEWERS


class Counting(SQLStore):
    """A store that counts the pages of runs, and does something between the last one and the wait for news."""

    pages = 0
    between: list[RunEvent]
    run: AttemptedRollout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runs = CountingRuns(self)


class CountingRuns(SQLRuns):
    """The runs of such a store."""

    def __init__(self, store: Counting) -> None:
        super().__init__(store.core, store.queue)
        self._store = store

    def source(self, rollout_id: str, *, bodies: bool) -> RunSource:
        return CountingSource(self._store, rollout_id, bodies=bodies)


class CountingSource(RunSource):
    """One of such runs."""

    def __init__(self, store: Counting, rollout_id: str, *, bodies: bool) -> None:
        super().__init__(store.core, rollout_id, bodies=bodies)
        self._store = store

    async def page(self, after: int, since: int) -> RunFollowPage:
        self._store.pages += 1
        page = await super().page(after, since)
        if page.is_last and self._store.between:
            await say(self._store, self._store.run, [self._store.between.pop()])
        return page


@pytest.fixture
async def counting(store_url: str) -> AsyncIterator[Counting]:
    async with await Counting.open(store_url) as counting:
        counting.between = []
        yield counting


async def test_many_viewers_at_the_end_share_one_read(counting: Counting) -> None:
    run = await begin(counting)
    async with serving(counting) as client:
        async with asyncio.timeout(PATIENCE):
            streams = [follow(client, run, "socket") for _ in range(VIEWERS)]
            open_now = [await reader.__aenter__() for reader in streams]
            for stream in open_now:
                await frames_to(stream, "status")
            await say(counting, run, [RunEvent(kind="log", message="first")])
            for stream in open_now:
                await frames_to(stream, "status", await last_of(counting, run))
            before = counting.pages
            for number in range(5):
                (version,) = await say(counting, run, [RunEvent(kind="log", message=str(number))])
                for stream in open_now:
                    frame = await stream.frame()
                    assert frame is not None
                    assert (frame["kind"], frame["seq"]) == ("event", version)
        # Where some ask again before the others have come, a page may be read a second time.
        assert counting.pages - before <= 5 * 3
        for reader in streams:
            await reader.__aexit__(None, None, None)


@pytest.mark.parametrize("way", WAYS)
async def test_event_committed_between_last_page_and_wait_is_sent_once(counting: Counting, way: str) -> None:
    run = counting.run = await begin(counting)
    await do_phase(counting, run, "scan", MARKET)
    counting.between = [RunEvent(kind="log", message="between"), RunEvent(kind="log", message="and again")]
    async with serving(counting) as client, follow(client, run, way) as stream:
        told = (await frames_to(stream, "status"))[1:-1]
        told += [await stream.frame(), await stream.frame()]
    assert [frame["event"]["message"] for frame in told[-2:]] == ["and again", "between"]
    assert held(told) == (await seen(counting, run)).items


async def test_without_a_server_too(counting: Counting) -> None:
    run = counting.run = await begin(counting)
    counting.between = [RunEvent(kind="log", message="between")]
    frames: list[RunFrame] = []
    async with asyncio.timeout(PATIENCE):
        async for frame in counting.runs.follow(run.rollout_id):
            frames.append(frame)
            if frame.event is not None:
                break
    assert [frame.kind for frame in frames] == ["hello", "status", "event"]


class Silent(WaitingCalls):
    """Waiting calls of a store that announces no commit to other processes."""

    def committed(self, working_set: WorkingSet, committed: Committed | None) -> None:
        super().committed(working_set, None)


@ON_BOTH_DATABASES
@pytest.mark.parametrize("is_announced", [True, False])
async def test_commits_of_another_process_reach_the_stream_even_unannounced(
    store: Store, store_url: str, is_announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_announced:
        monkeypatch.setattr(sql_core, "WaitingCalls", Silent)
        monkeypatch.setattr(sql_core, "FALLBACK_SECONDS", 0.05)
    run = await begin(store)
    async with await open_store(store_url) as other, serving(store) as client, follow(client, run, "events") as stream:
        await frames_to(stream, "status")
        for number in range(3):
            (version,) = await say(other, run, [RunEvent(kind="log", message=str(number))])
            assert (await frames_to(stream, "event"))[-1]["seq"] == version


@pytest.mark.parametrize("way", WAYS)
async def test_a_reader_that_takes_nothing_is_sent_away_and_can_go_on(store: Store, way: str) -> None:
    run = await begin(store)
    for number in range(300):
        await say(store, run, [RunEvent(kind="log", message=f"{number} " + "x" * 50_000)])
    last = await last_of(store, run)
    async with serving(store, write_seconds=0.3) as client:
        reader = NotReading(client.port, way, places(run))
        try:
            await until(lambda: len(client.app.state.parked) == 1)
            await client.quiet()
            *frames, farewell = await reader.rest()
        finally:
            reader.close()
        assert (farewell["kind"], farewell["error_type"], farewell["retryable"]) == ("error", "Unavailable", True)
        assert farewell["seq"] == frames[-1]["seq"] < last
    # This server has the default time limit for slow readers.
    async with serving(store) as client, follow(client, run, way, ("after", str(farewell["seq"]))) as stream:
        rest: list[Json] = []
        while not rest or rest[-1]["seq"] < last:
            frame = await stream.frame()
            assert frame is not None
            rest.append(frame)
    assert held([*frames, *rest]) == (await seen(store, run)).items


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_stops_says_so_and_the_next_one_goes_on(store: Store, way: str) -> None:
    run = await auto_run(store, tickers=("RIG",))
    async with serving(store) as client, follow(client, run, way) as stream:
        frames = await frames_to(stream, "terminal")
        client.server.should_exit = True
        last = await stream.frame()
        assert last is not None
        assert (last["kind"], last["error_type"], last["retryable"]) == ("error", "Unavailable", True)
        assert last["seq"] == frames[-1]["seq"]
        assert await stream.frame() is None
    again = await rerun(store, run, phase="risk", scopes=["RIG"])
    await ended(store, again.rollout)
    async with serving(store) as client, follow(client, run, way, ("after", str(last["seq"]))) as stream:
        frames += await frames_to(stream, "terminal")
    assert held(frames) == (await seen(store, run)).items


async def test_a_reader_cannot_be_in_the_middle_of_nothing(store: Store) -> None:
    run = await begin(store)
    with pytest.raises(Invalid, match="until"):
        await anext(aiter(store.runs.follow(run.rollout_id, after=1, until=0)))


def test_last_frame_of_a_run_has_the_kind_of_its_error_under_a_name_of_its_own() -> None:
    frame = orjson.loads(last_frame(NotFound.rollout("ro-1"), partial(ending, seq=7)).text)
    assert (frame["kind"], frame["error_type"], frame["error_kind"], frame["seq"]) == (
        "error",
        "NotFound",
        "rollout",
        7,
    )
