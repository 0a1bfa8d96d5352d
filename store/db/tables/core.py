"""Every table of a partition, defined once for both databases.

Three families. The *log* (`commits`, `events`, `bodies`, `blobs`, `dropped`) is append-only: triggers refuse anything
else. The *projections* are folds of the log: they can be rebuilt from it and are proven equal to it. The *signals*
(heartbeats, counters, the watchdog's alarm clock, keys of calls) are neither facts nor folds; `verify` leaves them out,
but for the counters, which may never fall behind the log.

Times ending in `_at` are integer microseconds since the epoch; those ending in `_time` are float seconds exactly as a
caller sent them.
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
    # A cache would hand each connection a stretch of its own, and order would no longer be commit order.
    return Sequence(name, data_type=BigInteger, cache=1)


# A column that is written once, with the row: an upsert leaves it, and its index, alone.
_ONCE = {"once": True}


def settable(table: Table) -> list[str]:
    """Return the columns that a row's later versions may change: neither its key nor what is written once."""
    return [column.name for column in table.columns if not (column.primary_key or column.info.get("once"))]


# -- the store itself ------------------------------------------------------------------------------------------------

store_info = keyed(
    "store_info",
    Column("store_id", Str, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("log_format", Integer, nullable=False),
    family="store",
)

# One row, read with every batch: an epoch that changes when a rollout goes back to an old place in the queue, so that
# every process forgets how far it had advanced in it.
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
    # Running totals, so that statistics cost one row at any point of the log.
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
    # Last, so that a scan of the rest never reads its overflow pages.
    Column("body", LargeBinary, nullable=False),
    info={"family": "log"},
)

# Bodies that recur, and the long texts in them: once for however many events name them by the SHA-256, in hex, of
# their uncompressed bytes.
blobs = Table(
    "blobs",
    metadata,
    Column("hash", Str, primary_key=True),
    Column("codec", SmallInteger, nullable=False),
    Column("raw_len", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    info={"family": "log"},
)

# Which body was dropped, and the event that ordered it: the only thing that lets a body go.
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
    # The attempt whose view is the rollout's, by its sequence id; null before the first.
    Column("head", Integer),
    # The version of the last event that a plan to fork rests on.
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
    # How many attempts of its rerun_seq there are up to this one.
    Column("tries", Integer, nullable=False),
    # The event whose masks apply to its view: its own fork's, or that of the attempt it retries.
    Column("fork_version", BigInteger),
    Column("base", Integer),
    Column("base_version", BigInteger),
    # Where the rollout's head was before it started.
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
    # The latest resources are those written last.
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

# A row exists exactly while its rollout is queuing or requeuing; the order is the order of the log.
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

# When the watchdog has to look at a rollout again: never later than its true deadline, perhaps earlier.
watch = keyed(
    "watch",
    Column("rollout_id", Str, primary_key=True),
    Column("check_at", BigInteger, nullable=False, index=True),
    family="signal",
)

# Keys of batches that wrote no event, so that a lost answer to COMMIT can be resolved; pruned after an hour.
batches = keyed(
    "batches",
    Column("batch_key", Str, primary_key=True),
    Column("at", BigInteger, nullable=False, index=True),
    family="signal",
)

# Keys of calls that may be sent twice, with what it takes to answer again; pruned after a day.
idempotency = keyed(
    "idempotency",
    Column("key", Str, primary_key=True),
    Column("scope", Str, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    # The last event there was when the call had been decided: as the answer showed things, they stood there.
    Column("position", BigInteger, nullable=False),
    # JSON: the ids and numbers of the answer, without its payload.
    Column("reply", Str, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    family="signal",
)

# -- access ----------------------------------------------------------------------------------------------------------

# The keys of clients, by their hashes; those of the default partition count for the whole database. They are neither
# events nor signals, and the log does not have them.
keys = keyed(
    "keys",
    Column("key_id", Str, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("role", Str, nullable=False),
    # Null for all of them.
    Column("partition", Str),
    Column("name", Str),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    # To the minute, and a little late.
    Column("used_at", BigInteger),
    family="access",
)

LOG = (commits, events, bodies, blobs, dropped)
PROJECTIONS = (rollouts, attempts, spans, rewards, resources, workers, queue, *RUNS, *THREADS, *ANNOTATIONS)
SIGNALS = (span_counters, attempt_signals, worker_signals, watch, batches, idempotency, queue_epoch)
