"""Table of scores, which versions of reward functions gave to attempts after their end. Decision 94."""

from sqlalchemy import BigInteger, Column

from store.db.columns import Number, Str, keyed
from store.db.tables.scans import scans

# One row for each event. Of the rows with the same attempt, name and version, only the last may have a value.
scores = keyed(
    "scores",
    Column("rollout_id", Str, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt_id", Str, nullable=False),
    Column("name", Str, nullable=False),
    # The version of the reward.
    Column("version", Str, nullable=False),
    # Null if the function failed; then `error` is the error as JSON.
    Column("value", Number),
    # Pairs of a name and a number as JSON; null if there are none.
    Column("dimensions", Str),
    Column("error", Str),
    Column("code_sha256", Str),
)

SCORES = (scores, scans)
