"""Servers that violate the protocol of Postgres: typed errors, and working calls after the violation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from collections.abc import AsyncGenerator, Iterator
from urllib.parse import quote, urlsplit

import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.db.schema import partitions
from store.db.schema import postgres as schema
from store.errors import Unavailable
from store.sql.store import SQLStore
from tests.faults.sessions import parked

pytestmark = [
    pytest.mark.postgres,
    # asyncpg leaves the socket open if it fails while it constructs a connection.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def message(kind: bytes, content: bytes) -> bytes:
    """Return a message of Postgres's protocol."""
    return kind + struct.pack("!i", len(content) + 4) + content


SETTINGS = {"server_version": "16.0", "server_encoding": "UTF8", "client_encoding": "UTF8"}
AUTHENTICATED = message(b"R", struct.pack("!i", 0))
READY = message(b"Z", b"I")
WELCOME = (
    AUTHENTICATED
    + b"".join(message(b"S", f"{name}\0{value}\0".encode()) for name, value in SETTINGS.items())
    + message(b"K", struct.pack("!ii", 1, 2))
    + READY
)
ROW = message(b"D", struct.pack("!h", 3) + b"abc")
NOT_UTF8 = message(b"S", b"\xff\0\xfe\0")
UNEXPECTED = (
    message(b"1", b"") + message(b"t", struct.pack("!h", 0)) + message(b"T", struct.pack("!h", 200) + b"ab") + READY
)

# Each pair has the answer to the startup message, and the answer to every later message.
ANSWERS = {
    "no settings": (AUTHENTICATED + READY, b""),
    "a version that is none": (AUTHENTICATED + message(b"S", b"server_version\0banana\0") + READY, b""),
    "settings not in UTF-8": (AUTHENTICATED + NOT_UTF8 + READY, b""),
    "an empty message": (message(b"R", b""), b""),
    "a negative length": (b"R" + struct.pack("!i", -5), b""),
    "the protocol of the web": (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
    "random bytes": (WELCOME, bytes(range(256))),
    "an unknown message": (WELCOME, message(b"!", b"abc")),
    "a row without columns": (WELCOME, ROW + READY),
    "an unexpected order": (WELCOME, UNEXPECTED),
    "a result not in UTF-8": (WELCOME, message(b"C", b"\xff\0") + READY),
    "a broken error": (WELCOME, message(b"E", b"garbage") + READY),
}


@contextlib.asynccontextmanager
async def server(answers: str) -> AsyncGenerator[str]:
    """Run a server that gives the same answers to every client, and yield its URL."""
    first, later = ANSWERS[answers]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                startup = await reader.read(65536)
                if startup[4:8] == struct.pack("!i", 80877103):  # a request for TLS
                    writer.write(b"N")
                    await reader.read(65536)
                writer.write(first)
                while await reader.read(65536):
                    writer.write(later)
        finally:
            writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"postgresql://user:secret@127.0.0.1:{listening.sockets[0].getsockname()[1]}/data"


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up early on a server whose messages are incomplete."""
    for limit in ("_CONNECT_SECONDS", "_ANSWER_SECONDS", "_CLOSE_SECONDS"):
        monkeypatch.setattr(schema, limit, 0.1)


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """Delete connections that asyncpg left half made, so that their warnings do not appear in later tests."""
    yield
    gc.collect()


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("answers", ANSWERS)
async def test_messages_that_cannot_be_read_are_typed_errors(answers: str) -> None:
    async with server(answers) as url:
        for call in (open_store(url), partitions.migrate(url), partitions.names(url)):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+/data (cannot be reached|sent a message)") as told:
                await call
            assert "secret" not in str(told.value)


@pytest.mark.parametrize("answers", ["no settings", "an empty message", "an unexpected order"])
async def test_the_command_migrate_prints_one_line(answers: str) -> None:
    async with server(answers) as url:
        printed = await asyncio.to_thread(CliRunner().invoke, app, ["migrate", "--db", url])
    assert printed.exit_code == 4
    assert "check that host and port are those of Postgres" in " ".join(printed.stderr.split())
    assert "Traceback" not in printed.stderr


class Garbling:
    """A way to a Postgres that replaces the answers on all connections that are open when `garble` is called.

    Attributes:
        welcome: replaces the first answer on each new connection; empty for the answer of Postgres.
        times: how many answers were replaced.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.query = self._target.query
        self._open: set[asyncio.StreamWriter] = set()
        self._garbled: dict[asyncio.StreamWriter, bytes] = {}
        self.welcome = b""
        self.times = 0

    def garble(self, answer: bytes) -> None:
        self._garbled = dict.fromkeys(self._open, answer)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening:
            yield self._target._replace(netloc=f"{self._target.username}@127.0.0.1:{port}", query=self.query).geturl()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._open.add(writer)
        if self.welcome:
            self._garbled[writer] = self.welcome
        back = asyncio.create_task(self._answer(from_server, writer))
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    to_server.write(data)
        finally:
            self._open.discard(writer)
            back.cancel()
            for one in (writer, to_server):
                one.transport.abort()

    async def _answer(self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await from_server.read(65536):
                garbage = self._garbled.get(writer)
                self.times += garbage is not None
                writer.write(data if garbage is None else garbage)
        writer.close()


@pytest.mark.parametrize("garbage", [NOT_UTF8 + READY, UNEXPECTED], ids=["not UTF-8", "unexpected"])
async def test_an_open_store_survives_messages_that_cannot_be_read(postgres_url: str, garbage: bytes) -> None:
    way = Garbling(postgres_url)
    async with way.listening() as url, await open_store(url) as store, await open_store(postgres_url) as other:
        await store.enqueue_rollout("first")
        claim = await store.dequeue_rollout("w1")
        assert claim is not None
        waiting = asyncio.create_task(store.dequeue_rollout("w1", wait_seconds=30))
        ended = asyncio.create_task(store.wait_for_rollouts([claim.rollout_id], timeout=30))
        assert isinstance(store, SQLStore)
        await parked(store, claimers=1, finishers=1)
        way.garble(garbage)
        # The connections of the writer and of the listener, then one of those for reads.
        await store.add_resources({})
        (told,) = await asyncio.gather(store.query_rollouts(), return_exceptions=True)
        # If there is no error, a waiting call had that connection, and repeated its read.
        if isinstance(told, BaseException):
            assert isinstance(told, Unavailable)
            assert "sent a message that is not of the Postgres protocol" in str(told)
        assert way.times >= 3
        await other.update_rollout(claim.rollout_id, status="succeeded")
        await other.enqueue_rollout("second")
        assert [one.status for one in await ended] == ["succeeded"]
        second = await waiting
        assert second is not None
        assert second.input == "second"
        report = await store.log.verify()
        assert report.ok, report.differences


async def test_waiting_calls_survive_a_listener_whose_messages_cannot_be_read(postgres_url: str) -> None:
    way = Garbling(postgres_url)
    way.query = ""
    async with way.listening() as direct, await open_store(f"{postgres_url}&direct={quote(direct)}") as store:
        # asyncpg answers this message with an `InternalClientError`.
        way.welcome = message(b"R", b"")
        waiting = asyncio.create_task(store.dequeue_rollout("w1", wait_seconds=30))
        while not way.times:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.01)
        async with await open_store(postgres_url) as other:
            await other.enqueue_rollout("elsewhere")
        claim = await waiting
        assert claim is not None
        assert claim.input == "elsewhere"
        assert way.times > 0
