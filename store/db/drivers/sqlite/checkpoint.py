"""Checkpoints: the write-ahead log of SQLite is copied into the database file while the writer continues. Decision 17.

In this module, "the log" is the write-ahead log.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from threading import Event, Thread

from store.runtime.limited_log import LimitedLog

logger = logging.getLogger("store.db.drivers.sqlite_checkpoints")

FRAMES = 4000
"""The length at which the log is copied, as a number of pages."""
_COMMIT_COPIES_AT = 4
"""If a long read lets the log grow to this multiple of `FRAMES`, SQLite itself copies the log inside of a COMMIT."""
_READER_MILLISECONDS = 50
"""The maximum time for which the writer waits for readers of the log, so that the log can restart."""
_RETRY_SECONDS = (0.05, 2.0)
"""The first and the maximum pause after a reader or a full disk has prevented a restart of the log.

The pause doubles each time.
"""


class Checkpointer:
    """Thread that copies pages while the writer continues to commit.

    The automatic checkpoint of SQLite runs inside of a COMMIT and delays all callers of this commit. Here a thread
    copies nearly all of the log. The writer copies the rest between two batches and restarts the log: the next commit
    overwrites the beginning of the log. The log stays below twice the length at which it is copied, unless a reader
    still reads an old state of the database. A log that restarts is truncated to the length at which it is copied, so a
    larger file means that the log has grown again.

    Args:
        writer: the connection that writes. The constructor sets the pragmas of this connection for checkpoints.
        connect: a function that returns a new connection to the same file, for the thread.
    """

    def __init__(self, writer: sqlite3.Connection, connect: Callable[[], sqlite3.Connection]) -> None:
        self._writer = writer
        self._connect = connect
        (page_bytes,) = writer.execute("PRAGMA page_size").fetchone()
        # Each page in the log has a header of 24 bytes, and the log has a header of 32 bytes.
        self.limit = 32 + FRAMES * (page_bytes + 24)
        """The size in bytes at which the log is copied."""
        writer.execute(f"PRAGMA journal_size_limit = {self.limit}").fetchall()
        writer.execute(f"PRAGMA wal_autocheckpoint = {_COMMIT_COPIES_AT * FRAMES}").fetchall()
        self._starts_at = 0.0
        self._pause = _RETRY_SECONDS[0]
        self._limited = LimitedLog(logger)
        self._thread: Thread | None = None
        self._is_wanted = Event()
        self._is_copied = Event()
        self._is_copying = False
        self._is_closed = False

    def advance(self, log_bytes: int) -> None:
        """Let the thread start to copy the log, or finish a checkpoint if the thread has copied the log.

        The writer must call this in its own thread, between two batches, if the log is larger than `limit`. If the log
        grows to one and a half times `limit` meanwhile, this call waits for the thread.

        Args:
            log_bytes: the size of the log's file in bytes.
        """
        if not self._is_copying:
            if time.monotonic() < self._starts_at:
                return
            self._is_copying = True
            if self._thread is None:
                self._thread = Thread(target=self._copy_when_wanted, name="store checkpoints", daemon=True)
                self._thread.start()
            self._is_wanted.set()
        if self._is_copied.is_set() or log_bytes > 1.5 * self.limit:
            self._is_copied.wait()
            self._is_copied.clear()
            self._is_copying = False
            is_copied = False
            try:
                is_copied = _copy(self._writer, "RESTART", _READER_MILLISECONDS)
            finally:
                if is_copied:
                    self._pause = _RETRY_SECONDS[0]
                else:
                    self._starts_at = time.monotonic() + self._pause
                    self._pause = min(2 * self._pause, _RETRY_SECONDS[1])

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._is_wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _copy_when_wanted(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            self._is_wanted.wait()
            self._is_wanted.clear()
            if self._is_closed:
                break
            try:
                connection = connection or self._connect()
                _copy(connection, "PASSIVE", 0)
            except sqlite3.Error as error:
                # The writer then copies the whole log. If this also fails, the log grows until a later copy succeeds.
                self._limited.warning("the write-ahead log could not be copied into the file", error)
            self._is_copied.set()
        if connection is not None:
            connection.close()


def _copy(connection: sqlite3.Connection, mode: str, milliseconds: int) -> bool:
    """Copy the log as far as readers allow, and wait at most `milliseconds` for them.

    Return whether the whole log was copied.
    """
    connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
    try:
        is_blocked, _, _ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return False
        raise
    finally:
        connection.execute("PRAGMA busy_timeout = 0")
    return not is_blocked
