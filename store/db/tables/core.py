"""Tables of a partition, defined once for both databases.

There are three groups. The *log* (`commits`, `events`, `bodies`, `blobs`, `dropped`) is append-only: triggers refuse
other changes. The *projections* are folds of the log: they are computed from its events, `rebuild` computes them again,
and `verify` checks that they are equal. The *signals* (heartbeats, counters, times of the watchdog's next checks,
idempotency keys) are neither events nor folds. Of the signals, `verify` checks only the span counters, which must not
fall behind the log and must contain the last reservation of the log.

Columns that end in `_at` are integer microseconds since the epoch. Columns that end in `_time` are float seconds
exactly as a caller sent them.
"""

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, Sequence, SmallInteger, Table, UniqueConstraint

from store.db.columns import BigId, Number, Str, keyed, metadata
from store.db.tables.annotations import ANNOTATIONS, labels, notes
from store.db.tables.runs import RUNS, artifacts, checkpoints, fork_masks, forks, run_events, run_keys
from store.db.tables.threads import THREADS, thread_checkpoints, thread_writes, threads

__all__ = [
    "ANNOTATIONS",
    "LOG",
    "PROJECTIONS",
    "RUNS",
    "SIGNALS",
    "THREADS",
    "artifacts",
    "attempt_signals",
    "attempts",
    "batches",
    "blobs",
    "bodies",
    "checkpoints",
    "commits",
    "dropped",
    "events",
    "fork_masks",
    "forks",
    "idempotency",
    "keys",
    "labels",
    "metadata",
    "notes",
    "queue",
    "queue_epoch",
    "resources",
    "rewards",
    "rollouts",
    "run_events",
    "run_keys",
    "settable",
    "span_counters",
    "spans",
    "store_info",
    "thread_checkpoints",
    "thread_writes",
    "threads",
    "watch",
    "worker_signals",
    "workers",
]


def _log_table(name: str, *columns: Column[object] | UniqueConstraint) -> Table:
    return Table(name, metadata, *columns, sqlite_autoincrement=True, info={"family": "log"})


def _sequence(name: str) -> Sequence:
    # With a cache each connection would get a range of numbers, and their order would not be the order of commits.
    return Sequence(name, data_type=BigInteger, cache=1)


# A column that is written once, with the row. An upsert does not touch it or its index.
_ONCE = {"once": True}


def settable(table: Table) -> list[str]:
    """Return the columns that may change after a row was inserted: all except the key and columns written once."""
    return [column.name for column in table.columns if not (column.primary_key or column.info.get("once"))]


# -- the store itself ------------------------------------------------------------------------------------------------

store_info = keyed(
    "store_info",
    Column("store_id", Str, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("log_format", Integer, nullable=False),
    family="store",
)

# One row, which every batch reads. Each process reads the queue onwards from the position that it reached last. If a
# rollout returns to a place before that position, `epoch` changes, and each process starts at the queue's beginning.
queue_epoch = Table(
    "queue_epoch",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    info={"family": "signal"},
)

# -- the log ---------------------------------------------------------------------------------------------------------

commits = _log_table(
    "commits",
    Column("commit_id", BigId, _sequence("commit_seq"), primary_key=True, autoincrement=True),
    Column("batch_key", Str, nullable=False, unique=True),
    Column("first_position", BigInteger, nullable=False),
    Column("last_position", BigInteger, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    Column("writer", Str, nullable=False),
    Column("chain_hash", LargeBinary, nullable=False),
    # Totals of the log up to this commit, so that statistics as of any position are read from one row.
    Column("events", BigInteger, nullable=False),
    Column("rollouts", BigInteger, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("spans", BigInteger, nullable=False),
    Column("resources", BigInteger, nullable=False),
    Column("workers", BigInteger, nullable=False),
    Column("body_bytes", BigInteger, nullable=False),
)

events = _log_table(
    "events",
    Column("position", BigId, _sequence("event_seq"), primary_key=True, autoincrement=True),
    Column("commit_id", BigInteger, nullable=False),
    Column("stream", Str, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("command", SmallInteger, nullable=False),
    Column("type", Str, nullable=False),
    Column("shape", SmallInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", Str),
    Column("cause", BigInteger),
    Column("data", Str, nullable=False),
    Column("body_hash", LargeBinary),
    UniqueConstraint("stream", "version"),
)

bodies = Table(
    "bodies",
    metadata,
    Column("position", BigId, primary_key=True, autoincrement=False),
    Column("codec", SmallInteger, nullable=False),
    Column("raw_len", Integer, nullable=False),
    # This is the last column, so that a scan of the other columns does not read its overflow pages.
    Column("body", LargeBinary, nullable=False),
    info={"family": "log"},
)

# Repeated bodies and long texts, stored once. Events refer to them by the SHA-256, in hex, of their uncompressed bytes.
blobs = Table(
    "blobs",
    metadata,
    Column("hash", Str, primary_key=True),
    Column("codec", SmallInteger, nullable=False),
    Column("raw_len", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    info={"family": "log"},
)

# Removed bodies, each with the event that ordered the removal. Without such a row, a body cannot be deleted.
dropped = Table(
    "dropped",
    metadata,
    Column("position", BigId, primary_key=True, autoincrement=False),
    Column("event_position", BigInteger, nullable=False),
    info={"family": "log"},
)

# -- projections -----------------------------------------------------------------------------------------------------

rollouts = Table(
    "rollouts",
    metadata,
    Column("rollout_id", Str, primary_key=True),
    Column("status", Str, nullable=False),
    Column("mode", Str),
    Column("resources_id", Str),
    Column("resources_version", BigInteger),
    Column("config", Str, nullable=False),
    Column("start_at", BigInteger, nullable=False),
    Column("end_at", BigInteger),
    Column("group_id", Str),
    Column("step", BigInteger),
    Column("plan_key", Str, unique=True, info=_ONCE),
    Column("input_sha256", Str, nullable=False),
    Column("input_position", BigInteger, nullable=False),
    Column("metadata_position", BigInteger, nullable=False),
    Column("queued_position", BigInteger),
    Column("attempt_count", Integer, nullable=False),
    Column("rerun_seq", Integer, nullable=False),
    Column("last_reward", Number),
    Column("spans", BigInteger, nullable=False),
    Column("tokens_in", BigInteger, nullable=False),
    Column("tokens_out", BigInteger, nullable=False),
    Column("error", Str),
    Column("stream_version", BigInteger, nullable=False),
    Column("first_position", BigInteger, nullable=False, index=True, info=_ONCE),
    Column("last_position", BigInteger, nullable=False),
    # The sequence id of the head attempt, whose events count as the rollout's current history. Null before the first
    # attempt.
    Column("head", Integer),
    # The stream version of the rollout's last event that a plan for a fork depends on. A plan made for an older version
    # is out of date.
    Column("run_version", BigInteger),
    info={"family": "projection"},
)

attempts = Table(
    "attempts",
    metadata,
    Column("rollout_id", Str, primary_key=True),
    Column("attempt_id", Str, primary_key=True),
    Column("sequence_id", Integer, nullable=False),
    Column("status", Str, nullable=False),
    Column("worker_id", Str),
    Column("start_at", BigInteger, nullable=False),
    Column("end_at", BigInteger),
    Column("last_heartbeat_time", Number),
    Column("heartbeat_stamped_at", BigInteger),
    Column("metadata_position", BigInteger),
    Column("via", Str, nullable=False),
    Column("rerun_seq", Integer, nullable=False),
    Column("resources_version", BigInteger),
    Column("owner", Str),
    Column("error", Str),
    Column("released_position", BigInteger),
    Column("first_position", BigInteger, nullable=False),
    Column("last_position", BigInteger, nullable=False),
    # The number of attempts with the same rerun_seq up to this one.
    Column("tries", Integer, nullable=False),
    # A fork is an attempt that continues another attempt, its base, and hides a part of the base's events. This is the
    # stream version of the fork event that states what is hidden. A retry uses the fork of the attempt that it retries.
    Column("fork_version", BigInteger),
    Column("base", Integer),
    Column("base_version", BigInteger),
    # The value of `rollouts.head` before the attempt started.
    Column("head_before", Integer),
    info={"family": "projection"},
)

spans = keyed(
    "spans",
    Column("rollout_id", Str, primary_key=True),
    Column("attempt_id", Str, primary_key=True),
    Column("span_id", Str, primary_key=True),
    Column("sequence_id", BigInteger, nullable=False),
    Column("trace_id", Str, nullable=False),
    Column("parent_id", Str),
    Column("name", Str, nullable=False),
    Column("start_time", Number),
    Column("end_time", Number),
    Column("status_code", Str, nullable=False),
    Column("status_message", Str),
    Column("position", BigInteger, nullable=False),
)

rewards = keyed(
    "rewards",
    Column("rollout_id", Str, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("attempt_id", Str, nullable=False),
    Column("name", Str),
    Column("value", Number, nullable=False),
)

resources = Table(
    "resources",
    metadata,
    Column("resources_id", Str, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("create_at", BigInteger, nullable=False),
    Column("update_at", BigInteger, nullable=False),
    Column("body_position", BigInteger, nullable=False),
    Column("stream_version", BigInteger, nullable=False),
    Column("first_position", BigInteger, nullable=False),
    # The latest resources are those with the greatest `last_position`, whether they were added or updated there.
    Column("last_position", BigInteger, nullable=False, index=True),
    info={"family": "projection"},
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Str, primary_key=True),
    Column("status", Str, nullable=False),
    Column("current_rollout_id", Str),
    Column("current_attempt_id", Str),
    Column("last_busy_at", BigInteger),
    Column("last_idle_at", BigInteger),
    Column("stream_version", BigInteger, nullable=False),
    Column("first_position", BigInteger, nullable=False),
    Column("last_position", BigInteger, nullable=False),
    info={"family": "projection"},
)

# A row exists exactly while its rollout is queuing or requeuing. The queue is sorted by positions of the log.
queue = Table(
    "queue",
    metadata,
    Column("position", BigId, primary_key=True, autoincrement=False),
    Column("rollout_id", Str, nullable=False),
    info={"family": "projection"},
)

# -- signals ---------------------------------------------------------------------------------------------------------

span_counters = keyed(
    "span_counters",
    Column("rollout_id", Str, primary_key=True),
    Column("value", BigInteger, nullable=False),
    # The greatest number that the rollout's stream reserves. Null if the stream was not searched for reservations yet.
    Column("reserved", BigInteger),
    family="signal",
)

attempt_signals = keyed(
    "attempt_signals",
    Column("rollout_id", Str, primary_key=True),
    Column("attempt_id", Str, primary_key=True),
    Column("beat_time", Number),
    Column("stamped_at", BigInteger, nullable=False),
    family="signal",
)

worker_signals = Table(
    "worker_signals",
    metadata,
    Column("worker_id", Str, primary_key=True),
    Column("heartbeat_stats", Str),
    Column("last_heartbeat_at", BigInteger),
    Column("last_dequeue_at", BigInteger),
    Column("last_busy_at", BigInteger),
    Column("last_idle_at", BigInteger),
    info={"family": "signal"},
)

# The next time at which the watchdog checks a rollout, which is never later than its deadline.
watch = keyed(
    "watch",
    Column("rollout_id", Str, primary_key=True),
    Column("check_at", BigInteger, nullable=False, index=True),
    family="signal",
)

# Keys of batches that wrote no event. If the reply to a COMMIT is lost, the presence of the key proves that the COMMIT
# succeeded. The keys are deleted after an hour.
batches = keyed(
    "batches",
    Column("batch_key", Str, primary_key=True),
    Column("at", BigInteger, nullable=False, index=True),
    family="signal",
)

# Idempotency keys of calls, with the data for the reply to a repeated call. They are deleted after a day.
idempotency = keyed(
    "idempotency",
    Column("key", Str, primary_key=True),
    Column("scope", Str, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    # The position of the log's last event when the call was executed. A repeated call gets the state at this position.
    Column("position", BigInteger, nullable=False),
    # JSON: the ids and numbers of the reply, without its payload.
    Column("reply", Str, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    family="signal",
)

# -- access ----------------------------------------------------------------------------------------------------------

# API keys by their hashes. The keys in the default partition apply to the whole database. They are neither events nor
# signals, and they are not in the log.
keys = keyed(
    "keys",
    Column("key_id", Str, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("role", Str, nullable=False),
    # Null means all partitions.
    Column("partition", Str),
    Column("name", Str),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    # Accurate to the minute, with a short delay.
    Column("used_at", BigInteger),
    family="access",
)

LOG = (commits, events, bodies, blobs, dropped)
PROJECTIONS = (rollouts, attempts, spans, rewards, resources, workers, queue, *RUNS, *THREADS, *ANNOTATIONS)
SIGNALS = (span_counters, attempt_signals, worker_signals, watch, batches, idempotency, queue_epoch)
