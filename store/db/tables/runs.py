"""Tables of runs.

The rows are computed from the events of the log. A row comes from one event and never changes, with two exceptions: the
retraction of an artifact changes the row of the artifact, and a row of `run_keys` covers all events of one call.

Common columns: `version` is the number of the event among the events of its rollout, `position` is the place of the
event in the log, and `attempt` is the `sequence_id` of the attempt.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, SmallInteger

from store.db.columns import Str, keyed


def _of_a_run() -> tuple[Column[object], ...]:
    return (
        Column("rollout_id", Str, primary_key=True),
        Column("version", BigInteger, primary_key=True, autoincrement=False),
        Column("position", BigInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
    )


run_events = keyed(
    "run_events",
    *_of_a_run(),
    # For an event about a whole phase, the type of the event, such as `phase.started`. For a span, a kind such as
    # `result`, which is derived from the attributes of the span. For other events, the kind that the caller gave.
    Column("kind", Str, nullable=False),
    Column("node_id", Str),
    Column("scope", Str),
    Column("parent_node_id", Str),
    Column("phase", Str),
    Column("agent", Str),
    Column("node_exec", Str),
    Column("status", Str),
    Column("service", Str),
    Column("metrics", Str),
    Column("prompt_sha256", Str),
    Column("response_sha256", Str),
    Index(None, "rollout_id", "scope", "node_id", "version"),
)

forks = keyed(
    "forks",
    *_of_a_run(),
    Column("kind", Str, nullable=False),
    Column("base", Integer, nullable=False),
    Column("base_version", BigInteger, nullable=False),
    Column("rerun_seq", Integer, nullable=False),
    Column("phase", Str),
    Column("entry", Str),
    Column("scopes", Str),
    Column("checkpoints", Str),
    Column("cascade", Str),
    Column("graph", Str),
    Column("degraded", Str),
    Column("request_id", Str),
)

# The masks of forks. `version` is the version of the fork's event. A mask that lists several scopes, nodes or phases
# has one row for each combination. Null in one of these columns matches every value.
fork_masks = keyed(
    "fork_masks",
    Column("rollout_id", Str, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("scope", Str),
    Column("node_id", Str),
    Column("phase", Str),
    # 1 if the mask also hides events whose parent node is `node_id`; otherwise 0.
    Column("children", SmallInteger, nullable=False),
)

checkpoints = keyed(
    "checkpoints",
    *_of_a_run(),
    Column("checkpoint_id", Str, nullable=False),
    Column("scope", Str, nullable=False),
    Column("name", Str, nullable=False),
    Column("after_phase", Str),
    Column("parent_id", Str),
    Column("graph", Str),
    Column("external", Str),
)

artifacts = keyed(
    "artifacts",
    *_of_a_run(),
    Column("artifact_id", Str, nullable=False),
    Column("scope", Str, nullable=False),
    Column("name", Str, nullable=False),
    Column("phase", Str),
    Column("media_type", Str),
    # The version of the event that retracted the artifact. Null if the artifact was not retracted.
    Column("retracted", BigInteger),
    # With this index, the artifacts of a scope are found in all runs.
    Index(None, "scope", "name", "position"),
)

# For each call to which the caller gave a key: the versions of the first and of the last event that the call wrote. The
# versions of the events of a call are consecutive.
run_keys = keyed(
    "run_keys",
    Column("rollout_id", Str, primary_key=True),
    Column("key", Str, primary_key=True),
    Column("kind", Str, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("last_version", BigInteger, nullable=False),
    Column("attempt_id", Str),
)

RUNS = (run_events, forks, fork_masks, checkpoints, artifacts, run_keys)
