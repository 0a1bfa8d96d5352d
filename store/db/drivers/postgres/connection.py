"""Connections to Postgres, and the check that the network has not lost them.

A connection is half-open if the server, or a device on the way such as a NAT gateway, has forgotten it without a
message. A statement on such a connection would wait for its time limit, which is a minute. The kernel notices most of
these connections (`_keep_alive`). Some devices confirm all packets, so the kernel notices nothing. An `AnswerMonitor`
therefore asks the server whether it still executes a statement that has no answer. Decision 80.
"""

import asyncio
import contextlib
import socket
import struct
from typing import Any
from weakref import WeakSet

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (asyncpg has no type hints)

from store.db.schema.postgres_types import TypesConnection

_driver: Any = asyncpg
# The time limit for the connection of a check, and for each statement on this connection.
_PROBE_SECONDS = 5.0
# A statement without an answer for this time is checked.
_SILENT_SECONDS = 5.0
# The time between two searches for statements without an answer.
_STEP_SECONDS = 2.0
# A statement that the server executes is checked again after this time.
_ACTIVE_SECONDS = 10.0
# The time between the two checks of a session, in which an answer can arrive.
_ARRIVAL_SECONDS = 1.0
# A connection is quiet if it sent and received no data for this time. It is shorter than `_SILENT_SECONDS`.
_QUIET_SECONDS = 4.0
_CLOSE_SECONDS = 5.0
# With these values, the kernel gives up a connection after about 11 seconds without a packet of the peer. Not every
# system has all options.
_TCP_OPTIONS = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPALIVE", 5),
    ("TCP_KEEPINTVL", 2),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 10_000),
)
# The position in Linux's `struct tcp_info` of the milliseconds since data was sent, an ACK was sent, and data was
# received.
_LAST_DATA = struct.Struct("=44xIII")

_IDENTITY = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
# A session that executes a statement does not wait for its client, except for data of COPY. If the role may not see
# the state of a session, the columns are null.
_WORKS = (
    "SELECT wait_event IS DISTINCT FROM 'ClientRead'"
    " OR coalesce(state_change > clock_timestamp() - make_interval(secs => $3), true)"
    " FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
)
_END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"


class PostgresConnection(TypesConnection):
    """A connection whose statements an `AnswerMonitor` may observe."""

    _transport: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        self.monitor: AnswerMonitor | None = None
        self.session: tuple[int, object] | None = None
        """The process id of the session on the server, and the time of its start; None if they are not known."""
        self.is_borrowed = False
        """Whether a reader uses the connection at present."""
        _keep_alive(self.get_socket())

    def get_socket(self) -> Any:
        """Return the socket of the connection; None if it is not known."""
        return self._transport.get_extra_info("socket")

    def observed(self) -> "Observation":
        """Return a context manager for the time in which a statement waits for its answer."""
        return Observation(self)

    def borrow(self) -> None:
        """Note that a reader uses the connection."""
        self.is_borrowed = True

    def release(self) -> None:
        """Note that no reader uses the connection any more."""
        self.is_borrowed = False

    def is_quiet(self) -> bool:
        """Return whether neither end sent data lately, as far as this system can tell."""
        if self._transport.get_write_buffer_size():
            return False
        if not hasattr(socket, "TCP_INFO"):
            return True
        info = self.get_socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size)
        sent, _, received = _LAST_DATA.unpack_from(info)
        return min(sent, received) >= 1000 * _QUIET_SECONDS

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run a script, or a statement with arguments."""
        with Observation(self):
            return await super().execute(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    async def fetch(self, *args: Any, **kwargs: Any) -> Any:
        """Return all rows of a statement."""
        with Observation(self):
            return await super().fetch(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    async def fetchrow(self, *args: Any, **kwargs: Any) -> Any:
        """Return the first row of a statement; None if it has no rows."""
        with Observation(self):
            return await super().fetchrow(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    async def copy_records_to_table(self, *args: Any, **kwargs: Any) -> Any:
        """Insert rows with COPY."""
        with Observation(self):
            return await super().copy_records_to_table(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 (the name is asyncpg's)
        """End the session. Without an answer within the timeout, close only this end."""
        await super().close(timeout=timeout or _CLOSE_SECONDS)  # pyright: ignore[reportUnknownMemberType]


class PooledConnection(PostgresConnection):
    """A connection to a connection pooler in transaction mode, such as pgbouncer.

    Each transaction may run in a different session of the database, so no session state lasts longer than a
    transaction, and no `AnswerMonitor` observes the connection.
    """

    def get_reset_query(self) -> str:
        """Return an empty string: there is no session state to reset when the connection returns to asyncpg's pool."""
        return ""


class Observation:
    """Context manager for the time in which a statement waits for its answer."""

    __slots__ = ("_connection",)

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        if (monitor := self._connection.monitor) is not None:
            monitor.begin(self._connection)

    def __exit__(self, *_: object) -> None:
        if (monitor := self._connection.monitor) is not None:
            monitor.end(self._connection)


class AnswerMonitor:
    """Monitor of statements without an answer. It ends the connection of a statement that the server does not execute.

    Such a statement fails with an error, as after any other loss of the connection. The session on the server is
    ended too, because it may hold the lock of the writer. If the server does not answer the check, nothing is done.

    Args:
        dsn: the address of the server, for the connections of the checks.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connections: WeakSet[PostgresConnection] = WeakSet()
        self._due: dict[PostgresConnection, float] = {}
        """The statements without an answer, and the time of their next check."""
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None

    async def add(self, connection: Any) -> None:
        """Observe the statements of a new connection."""
        assert isinstance(connection, PostgresConnection)
        row = await connection.fetchrow(_IDENTITY)
        # A pooler reports a process id of its own, and may use another session for each transaction. So its connections
        # are not observed.
        if row is not None and row[0] == connection.get_server_pid() and _is_tcp(connection.get_socket()):
            connection.session = (row[0], row[1])
            connection.monitor = self
            self._connections.add(connection)

    def begin(self, connection: PostgresConnection) -> None:
        """Note that a statement was sent."""
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + _SILENT_SECONDS
        if self._timer is None:
            self._timer = loop.call_later(_SILENT_SECONDS, self._check_due, loop)

    def end(self, connection: PostgresConnection) -> None:
        """Note that a statement has its answer, or has failed."""
        self._due.pop(connection, None)

    def drop_idle(self) -> None:
        """Close the idle connections, because the cause that broke another connection may have broken them too."""
        for connection in list(self._connections):
            if not (connection.is_closed() or connection.is_borrowed or connection.is_in_transaction()) and (
                connection not in self._due and connection.is_quiet()
            ):
                connection.terminate()

    def close(self) -> None:
        """End the checks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._check is not None:
            self._check.cancel()

    def _check_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        silent = {connection: due for connection, due in self._due.items() if due <= now and connection.is_quiet()}
        if silent and (self._check is None or self._check.done()):
            self._check = loop.create_task(self._break_lost(silent))
        if self._due:
            self._timer = loop.call_later(_STEP_SECONDS, self._check_due, loop)

    async def _break_lost(self, silent: dict[PostgresConnection, float]) -> None:
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            probe = await _driver.connect(self._dsn, timeout=_PROBE_SECONDS, command_timeout=_PROBE_SECONDS)
            try:
                await self._compare(probe, silent)
            finally:
                await probe.close(timeout=_CLOSE_SECONDS)

    async def _compare(self, probe: Any, silent: dict[PostgresConnection, float]) -> None:
        loop = asyncio.get_running_loop()
        lost = {connection: due for connection, due in silent.items() if not await _executes(probe, connection)}
        for connection in silent.keys() - lost.keys():
            if self._due.get(connection) == silent[connection]:
                self._due[connection] = loop.time() + _ACTIVE_SECONDS
        if not lost:
            return
        await asyncio.sleep(_ARRIVAL_SECONDS)
        broken = 0
        for connection, due in lost.items():
            if await _executes(probe, connection) or self._due.get(connection) != due:
                continue
            assert connection.session is not None  # only such connections are observed
            await probe.fetch(_END, *connection.session)
            if self._due.get(connection) == due:
                connection.terminate()
                broken += 1
        if broken:
            self.drop_idle()


async def _executes(probe: Any, connection: PostgresConnection) -> bool:
    """Return whether the session of a connection executes a statement, or has just ended a statement."""
    assert connection.session is not None  # only such connections are observed
    return bool(await probe.fetchval(_WORKS, *connection.session, _QUIET_SECONDS))


def _is_tcp(end: Any) -> bool:
    return end is not None and end.family in {socket.AF_INET, socket.AF_INET6}


def _keep_alive(end: Any) -> None:
    """Make the kernel close a socket whose peer no longer answers."""
    if not _is_tcp(end):
        return
    with contextlib.suppress(OSError):  # a system may lack an option that its headers name
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP_OPTIONS:
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
