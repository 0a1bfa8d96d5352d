"""Copying what was committed from SQLite's write-ahead log into the file, beside the writer and not in its way."""

import logging
import math
import sqlite3
from collections.abc import Callable
from threading import Event, Thread

logger = logging.getLogger("store.db.drivers.sqlite_checkpoints")

# When the log is copied, in pages; and beyond which the writer's own COMMIT does it, as it would without us.
FRAMES = 4000
FRAMES_AT_MOST = 4 * FRAMES
# A page may hold many rows, and a row take many pages.
_ROWS_PER_FRAME = (1 / 20, 10)


class Checkpointer:
    """Copies pages in a thread of its own while the writer goes on committing.

    SQLite begins its log anew once all of it is in the file, and a busy writer always adds to it meanwhile. So the
    thread copies nearly all, and the writer the rest, between two batches. What SQLite does by itself is as right, but
    stops the writer, and everybody who waits for a commit, for the whole of it.

    Args:
        connect: makes a connection to the file.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._thread: Thread | None = None
        self._is_wanted = Event()
        self.is_copied = False
        """The thread has done its part, and the writer may do the rest."""
        self._is_copying = False
        self._is_closed = False
        # SQLite tells how long the log is only when it copies; rows are counted, and how many make a page is learnt.
        self._rows = 0
        self._rows_wanted: float = FRAMES
        self._copied_rows = self._copied_frames = 0
        self.rows_left: float = FRAMES
        """The rows after which `committed` has something to do."""

    def committed(self, rows: int) -> None:
        """Count the rows of commits, and begin to copy when they have become many."""
        self._rows += rows
        if self._rows >= self._rows_wanted and not self._is_copying:
            self._is_copying = True
            self._copied_rows, self._copied_frames = self._rows, 0
            if self._thread is None:
                self._thread = Thread(target=self._copy_when_wanted, name="store checkpoints", daemon=True)
                self._thread.start()
            self._is_wanted.set()
        self.rows_left = math.inf if self._is_copying else self._rows_wanted - self._rows

    def finish(self, writer: sqlite3.Connection) -> None:
        """Copy the rest, if nearly all is copied; in the writer's thread, outside of its transactions."""
        if not self.is_copied:
            return
        self.is_copied = self._is_copying = False
        self._rows -= self._copied_rows
        if self._copied_frames > 0:
            least, most = _ROWS_PER_FRAME
            self._rows_wanted = FRAMES * min(max(least, self._copied_rows / self._copied_frames), most)
        self.rows_left = self._rows_wanted - self._rows
        _copy(writer)

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
                self._copied_frames = _copy(connection)
            except sqlite3.Error:
                # The writer does all of it then, and meets the same trouble where somebody is told of it.
                logger.warning("the write-ahead log could not be copied into the file", exc_info=True)
            self.is_copied = True
        if connection is not None:
            connection.close()


def _copy(connection: sqlite3.Connection) -> int:
    """Copy as much as no reader forbids; return the pages in the log, 0 or less if another process is copying."""
    try:
        _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return 0
        raise
    return frames
