"""Tables of runs: projections with one row per event."""

from sqlalchemy import BigInteger, Column, Index, Integer, SmallInteger

from store.db.columns import Str, keyed


def _of_a_run() -> tuple[Column[object], ...]:
    return (
        Column("rollout_id", Str, primary_key=True),
        Column("version", BigInteger, primary_key=True, autoincrement=False),
        Column("position", BigInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
    )


# `version` is the event's number in its rollout's stream, and `attempt` is the attempt's sequence id. A row comes from
# one event and never changes, except by a retraction.
run_events = keyed(
    "run_events",
    *_of_a_run(),
    # For a phase, the type of its event; for a span, the kind that semconv determines.
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

# The masks of a fork, one row per combination. Null matches any scope, node or phase.
fork_masks = keyed(
    "fork_masks",
    Column("rollout_id", Str, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("scope", Str),
    Column("node_id", Str),
    Column("phase", Str),
    # 1 if the mask also hides the events whose parent is the node.
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
    # The version of the event that retracted the artefact.
    Column("retracted", BigInteger),
    # This index finds the artefacts of all runs for a scope.
    Index(None, "scope", "name", "position"),
)

# The events that a call with a caller's key wrote. Their versions are consecutive.
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
