"""A run's log that is truncated: readers are notified once, read it again, and miss no later event."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store import open_store
from store.client import HTTPStore
from store.errors import Incompatible, Invalid
from store.interface.store import Store
from store.models import AttemptedRollout, RunEvent
from store.sql import core, waiters
from store.sql.store import SQLStore
from tests.journal.database_helpers import tamper
from tests.runs.following import Reader
from tests.runs.trading import MARKET
from tests.runs.trading_runs import begin, do_phase, say, seen
from tests.server.api import ON_BOTH_DATABASES
from tests.server.stream_clients import Json, serving
from tests.server.test_run_streams import follow, frames_to, held, places
from tests.server.test_streams import WAYS


@pytest.fixture
async def store(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SQLStore]:
    """A store that outlasts the end of its log."""
    # On Postgres, nothing wakes the readers of a log that another program has cut. They look again after this time.
    for module in (core, waiters):
        monkeypatch.setattr(module, "FALLBACK_SECONDS", 0.1)
    async with await open_store(store_url) as opened:
        assert isinstance(opened, SQLStore)
        yield opened


async def at_work(store: Store) -> AttemptedRollout:
    """Return a run that has said something, so that one word more is one event more."""
    run = await begin(store)
    await do_phase(store, run, "scan", MARKET)
    return run


async def append_lost_event(store: Store, run: AttemptedRollout) -> int:
    (version,) = await say(store, run, [RunEvent(kind="log", message="lost")])
    return version


async def cut_back(url: str, store: SQLStore, run: AttemptedRollout) -> None:
    """Put the log back to before the run's last event, as a backup would."""
    last = (await store.log.history(run.rollout_id))[-1]
    assert (last.type, last.body) == ("run.event", {"message": "lost"})
    await tamper(
        url,
        f"DELETE FROM bodies WHERE position = {last.position}",
        f"DELETE FROM commits WHERE commit_id = (SELECT commit_id FROM events WHERE position = {last.position})",
        f"DELETE FROM events WHERE position = {last.position}",
    )


async def mended(store: SQLStore, run: AttemptedRollout, message: str) -> int:
    """Make the tables what the log says, and let the run go on."""
    await store.log.rebuild()
    (version,) = await say(store, run, [RunEvent(kind="log", message=message)])
    return version


def messages(frames: list[Json]) -> list[str | None]:
    return [event.message for event in held(frames)]


@ON_BOTH_DATABASES
@pytest.mark.parametrize("way", WAYS)
async def test_run_stream_ends_with_a_gap_when_the_log_is_cut_back(store_url: str, store: SQLStore, way: str) -> None:
    run = await at_work(store)
    async with serving(store) as client:
        async with follow(client, run, way) as stream:
            await frames_to(stream, "status")
            lost = await append_lost_event(store, run)
            assert messages(await frames_to(stream, "event", lost)) == ["lost"]
            await cut_back(store_url, store, run)
            (gap,) = await frames_to(stream, "gap")
            # The last of its stream, at the place where it stood.
            assert await stream.frame() is None
        assert (gap["error_type"], gap["retryable"], gap["seq"]) == ("Incompatible", False, lost)
        assert "restored" in gap["detail"]
        version = await mended(store, run, "said instead")
        async with follow(client, run, way) as stream:
            anew = await frames_to(stream, "status")
            await say(store, run, [RunEvent(kind="log", message="and live")])
            anew += await frames_to(stream, "event", version + 1)
        assert held(anew) == (await seen(store, run)).items
        assert messages(anew)[-2:] == ["said instead", "and live"]
        await client.quiet()


@pytest.mark.parametrize("way", WAYS)
async def test_gap_reaches_all_streams_and_new_streams_read_the_new_log(
    store_url: str, store: SQLStore, way: str
) -> None:
    run = await at_work(store)
    async with serving(store) as client:
        async with follow(client, run, way) as one, follow(client, run, way) as other:
            lost = await append_lost_event(store, run)
            for stream in (one, other):
                await frames_to(stream, "event", lost)
            await cut_back(store_url, store, run)
            await frames_to(one, "gap")
            version = await mended(store, run, "said instead")
            # The other has not left yet, and what was read for it does not count any more.
            async with follow(client, run, way) as third:
                anew = await frames_to(third, "status")
                if anew[-1]["seq"] < version:
                    anew += await frames_to(third, "event", version)
                assert held(anew) == (await seen(store, run)).items
            await frames_to(other, "gap")
        await client.quiet()


async def test_stream_from_a_version_beyond_the_gap_is_refused(store_url: str, store: SQLStore) -> None:
    run = await at_work(store)
    async with serving(store) as client:
        async with follow(client, run, "events") as stream:
            lost = await append_lost_event(store, run)
            await frames_to(stream, "event", lost)
            await cut_back(store_url, store, run)
            await frames_to(stream, "gap")
        await store.log.rebuild()
        events, socket = places(run)
        beyond = ("after", str(lost))
        status, answer = await client.get(events, [beyond])
        assert (status, answer["error_type"]) == (422, "Invalid")
        async with client.socket([beyond], path=socket) as stream:
            (refused,) = await frames_to(stream, "error")
            assert (refused["code"], refused["retryable"]) == ("future_cursor", False)


async def test_client_raises_incompatible_at_a_gap_and_follows_from_the_start(store_url: str, store: SQLStore) -> None:
    run = await at_work(store)
    async with serving(store) as client, HTTPStore(client.url) as distant:
        lost = await append_lost_event(store, run)
        with pytest.raises(Incompatible, match="restored"):
            await _follow_over_the_gap(distant, store_url, store, run, lost)
        version = await mended(store, run, "said instead")
        anew = Reader(distant, run)
        await anew.read(version)
        assert anew.events == (await seen(store, run)).items
        assert anew.events[-1].message == "said instead"
        with pytest.raises(Invalid, match="beyond the last event"):
            await Reader(distant, run, seq=version + 1).read(version + 1)


async def _follow_over_the_gap(distant: HTTPStore, url: str, store: SQLStore, run: AttemptedRollout, lost: int) -> None:
    async for frame in distant.runs.follow(run.rollout_id):
        if frame.kind == "event" and frame.seq == lost:
            await cut_back(url, store, run)
