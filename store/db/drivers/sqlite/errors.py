"""Translation of SQLite's errors to the store's errors."""

import sqlite3

from store.errors import Incompatible, ReadOnly, StoreError, Unavailable

# The maximum wait for a lock of SQLite. Callers get an error afterwards. Other processes normally hold the lock only
# for milliseconds.
LOCK_SECONDS = 30.0


def translate(error: sqlite3.Error) -> StoreError:
    """Return the error of the store that corresponds to an error of SQLite."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name == "SQLITE_IOERR_WRITE":
        # A quota or a file-size limit was reached, or the disk is broken. SQLite writes the commit mark last, so the
        # transaction was not committed.
        return Unavailable.disk_full(f"{error}, or a quota or a limit of file sizes was reached")
    match name.split("_")[1] if "_" in name else "":
        case "BUSY" | "LOCKED":
            return Unavailable(f"another process has locked the database: {error}")
        case "FULL":
            return Unavailable.disk_full(str(error))
        case "READONLY" | "PERM" | "AUTH":
            return ReadOnly(f"write ({error})")
        case "IOERR" | "CANTOPEN" | "NOMEM" | "PROTOCOL":
            return Unavailable(f"the database file cannot be used: {error}")
        case "CORRUPT" | "NOTADB":
            return Incompatible(f"the file is not a sound SQLite database: {error}", "restore a backup")
        case _:
            return Incompatible(f"SQLite refused a statement: {error}", "run `rollbook verify`")


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether the error means that another connection holds the lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
