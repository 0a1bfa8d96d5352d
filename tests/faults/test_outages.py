"""Restarts, cut connections, freezes and misconfiguration of Postgres: calls survive or fail, and none runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (it ships none)
import pytest

from store import open_store
from store.db.drivers.postgres import dialect as driver
from store.errors import Incompatible, StoreError, Unavailable
from store.interface.store import Store
from store.journal import writer
from store.sql.store import SQLStore
from tests.faults.sessions import parked
from tests.postgres import PostgresServer, with_partition
from tests.torture import Rounds

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

CALLERS = 16


@pytest.fixture(scope="module")
def module_postgres() -> Iterator[PostgresServer]:
    """A server that the tests of this module use one after the other."""
    with PostgresServer.start() as server:
        yield server


@pytest.fixture
def private_postgres(module_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A running server, which the test may stop, crash, freeze and restart."""
    yield module_postgres
    if not module_postgres.is_running:
        module_postgres.restart()


async def assert_sound(store: Store) -> None:
    report = await store.log.verify()
    assert report.ok, report.differences


async def enqueue_until(
    store: Store, stop: asyncio.Event, name: str, acknowledged: list[str], told: list[StoreError]
) -> None:
    """Enqueue one rollout after the other; add the acknowledged inputs to `acknowledged` and errors to `told`."""
    number = 0
    while not stop.is_set():
        number += 1
        try:
            await store.enqueue_rollout(f"{name} {number}")
        except StoreError as error:
            told.append(error)
        else:
            acknowledged.append(f"{name} {number}")


@pytest.mark.torture
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_in_the_middle_loses_nothing_and_doubles_nothing(
    private_postgres: PostgresServer, rounds: Rounds, mode: str
) -> None:
    async with await open_store(with_partition(private_postgres.url)) as store:
        stop, told, acknowledged = asyncio.Event(), list[StoreError](), list[str]()
        callers = [asyncio.create_task(enqueue_until(store, stop, f"c{n}", acknowledged, told)) for n in range(CALLERS)]

        async def calls_go_on() -> None:
            before = len(acknowledged)
            while len(acknowledged) < before + 2 * CALLERS:  # noqa: ASYNC110 - no event signals this
                await asyncio.sleep(0.05)

        for _ in range(rounds(2, few=1)):
            await calls_go_on()
            await asyncio.to_thread(private_postgres.stop, "immediate" if mode == "immediate" else "fast")
            await asyncio.sleep(0.2)
            await asyncio.to_thread(private_postgres.restart)
        await calls_go_on()
        stop.set()
        await asyncio.gather(*callers)
        stored = Counter(rollout.input for rollout in (await store.query_rollouts()).items)
        assert set(acknowledged) <= stored.keys()
        assert set(stored.values()) == {1}
        assert all(type(error) is Unavailable for error in told)
        await assert_sound(store)
    print(f"\n{len(acknowledged):,} calls acknowledged through {mode} restarts, {len(told)} told to try again")


async def test_waiting_calls_survive_a_restart_of_postgres(private_postgres: PostgresServer) -> None:
    url = with_partition(private_postgres.url)
    async with await open_store(url) as store, await open_store(url) as elsewhere:
        rollout = await store.start_rollout("task")
        ended = asyncio.create_task(store.wait_for_rollouts([rollout.rollout_id], timeout=40))
        claimed = asyncio.create_task(store.dequeue_rollout("w1", wait_seconds=40))
        assert isinstance(store, SQLStore)
        await parked(store, claimers=1, finishers=1)
        await asyncio.to_thread(private_postgres.stop, "immediate")
        await asyncio.to_thread(private_postgres.restart)
        await elsewhere.update_rollout(rollout.rollout_id, status="succeeded")
        await elsewhere.enqueue_rollout("another")
        assert [one.status for one in await ended] == ["succeeded"]
        claim = await claimed
        assert claim is not None
        assert claim.input == "another"


class Proxy:
    """A way to a server that breaks every connection right after it has passed on a COMMIT."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.breaks = 0
        self.broken = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield self._target._replace(netloc=f"{self._target.username}@127.0.0.1:{port}").geturl()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        back = asyncio.create_task(_pass_on(server_reader, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                server_writer.write(data)
                await server_writer.drain()
                if self.breaks and b"COMMIT\0" in data:
                    self.breaks -= 1
                    self.broken += 1
                    back.cancel()
                    # Let it arrive, so that the server does commit.
                    await asyncio.sleep(0.05)
                    break
        back.cancel()
        for one in (writer, server_writer):
            one.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


async def test_a_connection_that_breaks_after_commit_was_sent_doubles_nothing(postgres_url: str) -> None:
    proxy = Proxy(postgres_url)
    async with proxy.listening() as url, await open_store(url) as store:
        await store.enqueue_rollout("before")
        proxy.breaks = 3
        calls = [store.enqueue_rollout(f"{number}") for number in range(20)]
        rollouts = await asyncio.gather(*calls)
        for _ in range(5):
            rollouts.append(await store.enqueue_rollout(f"{len(rollouts)}"))
        assert proxy.broken == 3
        stored = {rollout.rollout_id: rollout.input for rollout in (await store.query_rollouts()).items}
        assert Counter(stored.values()) == Counter(["before", *map(str, range(25))])
        assert {rollout.rollout_id: rollout.input for rollout in rollouts}.items() <= stored.items()
        claims = await store.dequeue_many_rollouts(100)
        assert claims[0].input == "before"
        await assert_sound(store)


async def test_a_database_whose_default_is_repeatable_read_keeps_the_promises(
    postgres_database: Callable[..., str],
) -> None:
    url = with_partition(postgres_database(default_transaction_isolation="repeatable read"))
    async with await open_store(url) as one, await open_store(url) as two:
        stores = [one, two] * 10
        await asyncio.gather(*(store.enqueue_rollout(number) for number, store in enumerate(stores)))
        claims = await asyncio.gather(*(store.dequeue_rollout(f"w{number}") for number, store in enumerate(stores)))
        assert len({claim.rollout_id for claim in claims if claim}) == len(stores)
        await asyncio.gather(
            *(
                store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="succeeded")
                for store, claim in zip(stores, claims, strict=True)
                if claim
            )
        )
        await assert_sound(one)


async def test_a_postgres_that_is_not_there_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(
            Unavailable, match=rf"127.0.0.1:{port}/postgres cannot be reached .*; try again in 1 s"
        ) as told:
            await open_store(f"postgresql://postgres@127.0.0.1:{port}/postgres?partition=nobody")
    assert time.monotonic() - begun < 25
    assert told.value.retryable


async def test_postgres_outage_fails_reads_at_once_and_writes_after_retries(
    private_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_RETRY_SECONDS", 0.5)
    async with await open_store(with_partition(private_postgres.url)) as store:
        await store.enqueue_rollout("before")
        await asyncio.to_thread(private_postgres.stop, "immediate")
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="try again in 1 s"):
            await store.query_rollouts()
        with pytest.raises(Unavailable, match=r"Postgres cannot answer.*try again in 1 s"):
            await store.add_resources({})
        assert time.monotonic() - begun < 25
        await asyncio.to_thread(private_postgres.restart)
        await store.enqueue_rollout("after")
        assert [rollout.input for rollout in (await store.query_rollouts()).items] == ["before", "after"]
        await assert_sound(store)


async def test_a_postgres_that_stopped_answering_does_not_hold_its_callers_for_ever(
    private_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_ANSWER_SECONDS", 3)
    monkeypatch.setattr(writer, "_RETRY_SECONDS", 1)
    monkeypatch.setattr(driver, "_CLOSE_SECONDS", 0.5)
    async with await open_store(with_partition(private_postgres.url)) as store:
        await store.enqueue_rollout("before")
        private_postgres.freeze()
        try:
            begun = time.monotonic()
            with pytest.raises(Unavailable):
                await store.add_resources({})
            assert time.monotonic() - begun < 60
        finally:
            private_postgres.thaw()
        monkeypatch.undo()
        await store.enqueue_rollout("after")
        assert [rollout.input for rollout in (await store.query_rollouts()).items] == ["before", "after"]
        await assert_sound(store)
        monkeypatch.setattr(driver, "_CLOSE_SECONDS", 0.5)
        # A server that does not answer cannot make the end of the store fail either.
        private_postgres.freeze()
        try:
            await store.close()
        finally:
            private_postgres.thaw()


@pytest.mark.parametrize(
    "error,expected",
    [
        (asyncpg.DiskFullError("could not extend file"), Unavailable),
        (asyncpg.AdminShutdownError("terminating connection"), Unavailable),
        (asyncpg.CannotConnectNowError("the database system is starting up"), Unavailable),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), Unavailable),
        (asyncpg.SerializationError("could not serialize access"), Unavailable),
        (asyncpg.DeadlockDetectedError("deadlock detected"), Unavailable),
        (asyncpg.LockNotAvailableError("canceling statement due to lock timeout"), Unavailable),
        (ConnectionResetError("connection reset by peer"), Unavailable),
        (asyncpg.InvalidPasswordError("password authentication failed"), Incompatible),
        (asyncpg.InvalidCatalogNameError("database does not exist"), Incompatible),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_trouble_has_its_type(error: Exception, expected: type[StoreError]) -> None:
    told = driver.translate(error)
    assert type(told) is expected
    assert re.search(re.escape(str(error)), str(told))
