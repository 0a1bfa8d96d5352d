"""Table of the metrics of trainers, which are numbers of training steps. Decision 116."""

from sqlalchemy import BigInteger, Column

from store.db.columns import Number, Str, keyed

# One row for each number of an event. Of the rows with one name and step, the last is the number that reads return.
metrics = keyed(
    "metrics",
    Column("name", Str, primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    # Null for a number that is not finite; then `mark` is `NaN`, `Infinity` or `-Infinity`.
    Column("value", Number),
    Column("mark", Str),
)

METRICS = (metrics,)
