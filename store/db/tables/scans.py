"""Table of the results of scanners. Decision 117."""

from sqlalchemy import BigInteger, Column, Index, Integer

from store.db.columns import Str, keyed

# One row for each event. Of the rows with the same attempt, scanner and version, only the last may have `is_match`.
scans = keyed(
    "scans",
    Column("rollout_id", Str, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt_id", Str, nullable=False),
    Column("scanner", Str, nullable=False),
    # The version of the scanner.
    Column("version", Str, nullable=False),
    # 1 for a match, 0 for no match; null if the scanner failed. Then `error` is the class of the error.
    Column("is_match", Integer),
    Column("error", Str),
    Index(None, "scanner", "version", "rollout_id"),
)
