"""Tables of the index of usage: the calls of models and of tools that attempts recorded. Decisions 109 and 126."""

from sqlalchemy import BigInteger, Column, MetaData, Table, Text

from store.db.columns import Number, Str

metadata = MetaData()


def _rollout() -> tuple[Column[object], ...]:
    """Return the columns by which sums are divided. All of them can be null."""
    return (
        Column("step", BigInteger),
        Column("group_id", Str),
        Column("mode", Str),
        Column("resources_id", Str),
        Column("resources_version", BigInteger),
    )


def _numbers() -> tuple[Column[object], ...]:
    """Return the columns of tokens and costs. Null means that no call reported the number."""
    return (
        Column("tokens_in", BigInteger),
        Column("tokens_out", BigInteger),
        Column("tokens_cached", BigInteger),
        Column("tokens_written", BigInteger),
        Column("tokens_reasoning", BigInteger),
        Column("cost", Number),
    )


# The sums of the calls of an attempt. An unknown model is an empty text, because columns of keys are never null.
usage_sums = Table(
    "usage_sums",
    metadata,
    Column("rollout_id", Str, primary_key=True),
    Column("attempt_id", Str, primary_key=True),
    Column("model", Str, primary_key=True),
    # `reported`, `counted` or `unknown`: the basis of the cost of the calls.
    Column("source", Text, primary_key=True),
    # `span` or `event`. Events of runs count only for attempts without spans of calls.
    Column("origin", Text, primary_key=True),
    *_rollout(),
    # 0 if later spans changed the model or the source of all calls of the row.
    Column("calls", BigInteger, nullable=False),
    *_numbers(),
    sqlite_with_rowid=False,
)

# The calls with a response id, which several spans can record. Each number is the maximum over the spans of the call.
usage_calls = Table(
    "usage_calls",
    metadata,
    Column("rollout_id", Str, primary_key=True),
    Column("attempt_id", Str, primary_key=True),
    Column("response_id", Str, primary_key=True),
    Column("model", Str, nullable=False),
    *_numbers(),
    # The number of tool calls in the response.
    Column("tools", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# The tool calls of attempts with spans of calls of models or of tools.
usage_tools = Table(
    "usage_tools",
    metadata,
    Column("rollout_id", Str, primary_key=True),
    Column("attempt_id", Str, primary_key=True),
    # The tool calls in responses of models.
    Column("requested", BigInteger, nullable=False),
    # The spans with a response. Without one, and without spans of tools, the numbers are unknown.
    Column("answered", BigInteger, nullable=False),
    # The spans of tools, and the spans of tools with an error.
    Column("executed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    # The spans whose attributes were removed, or are too large to be read. With such spans, the numbers are unknown.
    Column("unread", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# The rollouts, with the version of resources that their latest attempt was given.
usage_rollouts = Table(
    "usage_rollouts",
    metadata,
    Column("rollout_id", Str, primary_key=True),
    *_rollout(),
    sqlite_with_rowid=False,
)

# The sums of all attempts with the same values in all columns up to `source`. There are far fewer rows than attempts.
usage_totals = Table(
    "usage_totals",
    metadata,
    # The values of these columns as a JSON array.
    Column("key", Str, primary_key=True),
    *_rollout(),
    Column("model", Str, nullable=False),
    Column("source", Text, nullable=False),
    Column("calls", BigInteger, nullable=False),
    *_numbers(),
    sqlite_with_rowid=False,
)

USAGE = (usage_sums, usage_calls, usage_tools, usage_rollouts, usage_totals)
