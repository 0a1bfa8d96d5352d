"""Checkpoints: the write-ahead log of SQLite is copied into the file while the writer continues."""

import logging
import sqlite3
import time
from collections.abc import Callable
from threading import Event, Thread

logger = logging.getLogger("store.db.drivers.sqlite_checkpoints")

FRAMES = 4000
"""The length at which the log is copied, in pages."""
_COMMIT_COPIES_AT = 4
"""The multiple of that length at which SQLite copies inside of a COMMIT, if a long reader lets the log grow."""
_READER_MILLISECONDS = 50
"""The maximum time for which the writer waits for readers of the log, so that the log can restart."""
_RETRY_SECONDS = (0.05, 2.0)
"""The first and the maximum pause after a reader has prevented a restart of the log. The pause doubles each time."""


class Checkpointer:
    """Thread that copies pages while the writer continues to commit.

    The automatic checkpoint of SQLite runs inside of a COMMIT and delays all callers of this commit. Here a thread
    copies nearly all of the log. The writer copies the rest between two batches and restarts the log: the next commit
    overwrites its beginning. The log stays below twice the length at which it is copied, unless a reader still reads an
    old state of the database. A log that restarts is truncated to that length, so a larger file means that the log has
    grown again.

    Args:
        writer: the connection that writes; its checkpoints are configured here.
        connect: returns another connection to the file.
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
        self._thread: Thread | None = None
        self._is_wanted = Event()
        self._is_copied = Event()
        self._is_copying = False
        self._is_closed = False

    def advance(self, log_bytes: int) -> None:
        """Start to copy a log that is larger than `limit`, or finish when the thread is done.

        Called in the writer's thread, between two batches. A writer that is faster than the thread waits for it.

        Args:
            log_bytes: the size of the log's file.
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
            if _copy(self._writer, "RESTART", _READER_MILLISECONDS):
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
            except sqlite3.Error:
                # The writer then copies everything. If that fails too, its callers get the error.
                logger.warning("the write-ahead log could not be copied into the file", exc_info=True)
            self._is_copied.set()
        if connection is not None:
            connection.close()


def _copy(connection: sqlite3.Connection, mode: str, milliseconds: int) -> bool:
    """Copy as far as readers allow, and wait for them for `milliseconds`; return whether the checkpoint is complete."""
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
