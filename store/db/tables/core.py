"""Tables of a store, defined once for SQLite and Postgres.

Each partition has all of these tables.

There are three main groups. The *log* (`commits`, `events`, `data_blocks`, `bodies`, `dictionaries`, `blobs`,
`dropped`) is append-only: triggers refuse other changes, except those that a removal or a compaction needs. The
*projections* are computed from the events of the log. `rebuild` computes their rows again, and `verify` checks that the
stored rows are equal to the computed rows. The *signals* (heartbeats, counters, times of the watchdog's next checks,
idempotency keys, known calls of models) are written beside the events. `verify` checks only one table of signals,
`span_counters`: for each rollout, `value` must not be smaller than a span number in the log, and `reserved` must be the
greatest span number that the log reserves.

Columns that end in `_at` are integer microseconds since the epoch. Columns that end in `_time` are float seconds
exactly as a caller sent them.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Sequence, SmallInteger, Table, UniqueConstraint

from store.db.columns import BigId, Number, Str, keyed, metadata
from store.db.tables.annotations import ANNOTATIONS, labels, notes
from store.db.tables.runs import RUNS, artifacts, checkpoints, fork_masks, forks, run_events, run_keys
from store.db.tables.scans import scans
from store.db.tables.scores import SCORES, scores
from store.db.tables.threads import THREADS, thread_checkpoints, thread_writes, threads
from store.db.tables.trainer_metrics import METRICS, metrics

__all__ = [
    "ANNOTATIONS",
    "LOG",
    "METRICS",
    "PROJECTIONS",
    "RUNS",
    "SCORES",
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
    "data_blocks",
    "dictionaries",
    "dropped",
    "events",
    "fork_masks",
    "forks",
    "idempotency",
    "key_policy",
    "keys",
    "labels",
    "metadata",
    "metrics",
    "notes",
    "operation_runs",
    "queue",
    "queue_epoch",
    "resources",
    "rewards",
    "rollouts",
    "run_events",
    "run_keys",
    "saved_views",
    "scans",
    "scores",
    "settable",
    "span_counters",
    "spans",
    "store_info",
    "thread_checkpoints",
    "thread_writes",
    "threads",
    "verifications",
    "watch",
    "webhook_deliveries",
    "webhooks",
    "worker_signals",
    "workers",
]


def _log_table(name: str, *columns: Column[object] | UniqueConstraint) -> Table:
    return Table(name, metadata, *columns, sqlite_autoincrement=True, info={"family": "log"})


def _sequence(name: str) -> Sequence:
    # With a larger cache, each connection would get a range of numbers, and the numbers would not follow the order of
    # commits.
    return Sequence(name, data_type=BigInteger, cache=1)


# Marks a column that is written only when the row is inserted. An upsert of an existing row changes neither the column
# nor the index of the column.
_ONCE = {"once": True}


def settable(table: Table) -> list[str]:
    """Return the columns that may change after a row was inserted: all except the key and columns written once."""
    return [column.name for column in table.columns if not (column.primary_key or column.info.get("once"))]


store_info = keyed(
    "store_info",
    Column("store_id", Str, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("log_format", Integer, nullable=False),
    family="store",
)

# This table has one row, and every batch reads it. Each process remembers the position up to which it has read the
# queue, and continues there. If a rollout returns to an earlier place in the queue, `epoch` is increased. Each process
# then reads the queue from the beginning again.
queue_epoch = Table(
    "queue_epoch",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    info={"family": "signal"},
)

commits = _log_table(
    "commits",
    Column("commit_id", BigId, _sequence("commit_seq"), primary_key=True, autoincrement=True),
    # The key of the batch. The column has no index. With an index, each commit would write one more page.
    Column("batch_key", Str, nullable=False),
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

# Decisions 69 and 72.
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
    # JSON text, or a reference to the row of `data_blocks` that contains this text.
    Column("data", Str, nullable=False),
    Column("body_hash", LargeBinary),
    UniqueConstraint("stream", "version"),
)

# The data of events, compressed together. A block is stored once, and the column `data` of its events then contains `@`
# and the first position of the block. Blocks never overlap. See `store.db.data_blocks`.
data_blocks = Table(
    "data_blocks",
    metadata,
    # The positions of the first and of the last event of the block.
    Column("first_position", BigId, primary_key=True, autoincrement=False),
    Column("last_position", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    info={"family": "log"},
)

bodies = Table(
    "bodies",
    metadata,
    Column("position", BigId, primary_key=True, autoincrement=False),
    Column("codec", SmallInteger, nullable=False),
    Column("raw_len", Integer, nullable=False),
    # `body` is the last column, so that a scan of the other columns does not read the overflow pages of bodies.
    Column("body", LargeBinary, nullable=False),
    info={"family": "log"},
)

# Finds the bodies that are compressed with a dictionary. New bodies are not, so inserts do not change the index.
# `store.db.schema.ddl` adds the same condition for Postgres. With `postgresql_where=` here, SQLAlchemy would import its
# Postgres dialect in every program.
Index("ix_bodies_codec", bodies.c.codec, sqlite_where=bodies.c.codec >= 16)

# The dictionaries with which bodies are compressed. `bodies.codec` of such a body is the number of its dictionary.
# Numbers are never used again. A dictionary contains parts of the bodies from which it was trained. If one of them is
# removed, the other bodies are stored in another form, and `samples` and `content` are emptied.
dictionaries = Table(
    "dictionaries",
    metadata,
    Column("codec", SmallInteger, primary_key=True, autoincrement=False),
    # The type of the events whose bodies are compressed with it.
    Column("type", Str, nullable=False),
    # The SHA-256 of the content.
    Column("hash", LargeBinary, nullable=False),
    Column("trained_at", BigInteger, nullable=False),
    # The positions of the bodies from which it was trained, in ascending order, as 64-bit integers (little-endian).
    Column("samples", LargeBinary, nullable=False),
    Column("content", LargeBinary, nullable=False),
    info={"family": "log"},
)

# Bodies and long texts that may occur repeatedly. Each is stored once, and events refer to it by its hash: the SHA-256
# of the uncompressed bytes. The column `hash` contains the hash in hex.
blobs = Table(
    "blobs",
    metadata,
    Column("hash", Str, primary_key=True),
    Column("codec", SmallInteger, nullable=False),
    Column("raw_len", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    info={"family": "log"},
)

# The positions of removed bodies, each with the position of the event that ordered the removal. A trigger refuses to
# delete a body that has no such row.
dropped = Table(
    "dropped",
    metadata,
    Column("position", BigId, primary_key=True, autoincrement=False),
    Column("event_position", BigInteger, nullable=False),
    info={"family": "log"},
)

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
    Column("group_id", Str, info=_ONCE),
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
    # The `sequence_id` of the head. The head is the attempt whose history counts as the current history of the rollout.
    # Null before the first attempt.
    Column("head", Integer),
    # The version of the last event of the rollout that affects plans for forks (see `attempts.fork_version`). A plan
    # that was made before this event is out of date. Null if there is no such event.
    Column("run_version", BigInteger),
    info={"family": "projection"},
)

# The rollouts of a group are read by pages of groups and by the page of a rollout, see decision 121.
Index(
    "ix_rollouts_group_id_first_position",
    rollouts.c.group_id,
    rollouts.c.first_position,
    sqlite_where=rollouts.c.group_id.is_not(None),
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
    # The number of this attempt among the attempts with the same `rerun_seq`: 1, 2, 3 … `rerun_seq` is the number of
    # the re-run to which the attempt belongs: 0 for the first attempt and its retries.
    Column("tries", Integer, nullable=False),
    # A fork starts an attempt that builds on an earlier attempt, its base, and hides a part of the base's events. These
    # columns are null for an attempt without a fork. The retry of a forked attempt has the same values as that attempt.
    # `fork_version`: the version of the event that records the fork and what the fork hides.
    # `base`: the `sequence_id` of the base.
    # `base_version`: events of the base after this version do not count.
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
    # The position of the last event that added or updated the resources. The resources with the greatest
    # `last_position` are the latest, which rollouts use by default.
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

# A row exists exactly while the status of its rollout is `queuing` or `requeuing`. `position` is the position of the
# event that put the rollout into the queue.
queue = Table(
    "queue",
    metadata,
    Column("position", BigId, primary_key=True, autoincrement=False),
    Column("rollout_id", Str, nullable=False),
    info={"family": "projection"},
)
QUEUE_ORDER = (queue.c.position,)
"""The columns by which the queue is sorted. Other columns than `position` stand behind `rollout_id` in the table."""

span_counters = keyed(
    "span_counters",
    Column("rollout_id", Str, primary_key=True),
    Column("value", BigInteger, nullable=False),
    # The greatest span number that an event of the rollout reserves; 0 if no event reserves numbers. Null if the
    # rollout's events were not searched for reservations yet.
    Column("reserved", BigInteger),
    family="signal",
)

# The calls of models that spans of an attempt recorded, each with the maximum of `tokens_in` and the maximum of
# `tokens_out` over its spans. Several spans can record the same call, for example a span of the proxy and a span of the
# agent, and the tokens of the call are counted once. A row is read when a span is recorded. The event of the span
# contains what was counted.
model_calls = keyed(
    "model_calls",
    Column("rollout_id", Str, primary_key=True),
    Column("attempt_id", Str, primary_key=True),
    Column("response_id", Str, primary_key=True),
    Column("tokens_in", BigInteger, nullable=False),
    Column("tokens_out", BigInteger, nullable=False),
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

# For each rollout with a time limit, the time at which the watchdog checks the rollout next. This time is never later
# than the deadline of the rollout.
watch = keyed(
    "watch",
    Column("rollout_id", Str, primary_key=True),
    Column("check_at", BigInteger, nullable=False, index=True),
    family="signal",
)

# The keys of batches that wrote no event. If the reply to a COMMIT is lost, the presence of the key proves that the
# COMMIT succeeded. The keys are deleted after an hour.
batches = keyed(
    "batches",
    Column("batch_key", Str, primary_key=True),
    Column("at", BigInteger, nullable=False, index=True),
    family="signal",
)

# The idempotency keys of calls, with the data for the reply to a repeated call. A row is deleted after a day.
idempotency = keyed(
    "idempotency",
    Column("key", Str, primary_key=True),
    Column("scope", Str, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    # The position of the log's last event when the call was executed. The reply to a repeated call shows the state at
    # this position.
    Column("position", BigInteger, nullable=False),
    # JSON text with the ids and numbers of the reply, but without the reply's payload.
    Column("reply", Str, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    family="signal",
)

# API keys. The table contains the hash of each key, not the key. Only the default partition uses this table: its rows
# are the keys for all partitions of the database. No event of the log mentions API keys.
keys = keyed(
    "keys",
    Column("key_id", Str, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("role", Str, nullable=False),
    # The partition that may be accessed with the key. Null means all partitions.
    Column("partition", Str),
    Column("name", Str),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    # The time of the last use. It is accurate to the minute, and it is written with a short delay.
    Column("used_at", BigInteger),
    family="access",
)

# The time from which servers require a key. There is at most one row, and only the default partition uses this table.
# Without a row, servers require no keys, and check a key only if a client sends one.
key_policy = keyed(
    "key_policy",
    Column("one", BigInteger, primary_key=True, autoincrement=False),
    Column("enforced_at", BigInteger, nullable=False),
    family="access",
)

# The last run of each operation on this partition: verification, backup, retention. There is one row for each kind of
# operation that was ever run. The last five columns describe the last run that ended normally.
operation_runs = keyed(
    "operation_runs",
    Column("operation", Str, primary_key=True),
    # The process that runs the operation now, as `host:pid`. Null if no process does.
    Column("runner", Str),
    # The time until which no other process may run the operation. The runner extends it while it works.
    Column("lease_until", BigInteger),
    # The start of the last run, regardless of its outcome.
    Column("attempted_at", BigInteger, nullable=False),
    Column("runs", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False),
    # The end and the error of the last run, if it failed.
    Column("failed_at", BigInteger),
    Column("error", Str),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    # The last commit of the log in the state that the run read.
    Column("commit_id", BigInteger),
    # The number of differences that a verification found. Null for other operations.
    Column("differences", BigInteger),
    # The version of Rollbook, and what the run did, in words.
    Column("version", Str),
    Column("detail", Str),
    family="report",
)

# The names that users of the dashboard gave to the filters, columns and sorting of a page. Decision 122.
saved_views = keyed(
    "saved_views",
    # The path of the page below `/ui/`, such as `rollouts`.
    Column("page", Str, primary_key=True),
    Column("name", Str, primary_key=True),
    Column("query", Str, nullable=False),
    Column("actor", Str, nullable=False),
    Column("saved_at", BigInteger, nullable=False),
    family="report",
)

# Webhooks of this partition. `conditions` and `states` are JSON: the settings and the last states by condition. The
# secret is stored as text, because each signature needs it. No event mentions webhooks.
webhooks = keyed(
    "webhooks",
    Column("webhook_id", Str, primary_key=True),
    Column("url", Str, nullable=False),
    Column("secret", Str, nullable=False),
    Column("conditions", Str, nullable=False),
    Column("states", Str, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    family="access",
)

# The messages of webhooks. `status` is `waiting`, `delivered` or `failed`.
webhook_deliveries = keyed(
    "webhook_deliveries",
    Column("delivery_id", Str, primary_key=True),
    Column("webhook_id", Str, nullable=False),
    Column("type", Str, nullable=False),
    Column("body", Str, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("status", Str, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    # The time of the next attempt. While a process sends the message, the time at which another process may repeat it.
    Column("next_at", BigInteger),
    # The process that sends the message now. Null if no process does.
    Column("sender", Str),
    Column("attempted_at", BigInteger),
    # The result of the last attempt: the status of the response, or the error.
    Column("response_status", BigInteger),
    Column("error", Str),
    family="report",
)

# The result of the last verification, as versions before revision 0012 store it. A server of such a version that is
# still open writes to this table. Nothing reads it.
verifications = keyed(
    "verifications",
    Column("one", BigInteger, primary_key=True, autoincrement=False),
    Column("verified_at", BigInteger, nullable=False),
    Column("commits", BigInteger, nullable=False),
    Column("differences", BigInteger, nullable=False),
    family="report",
)

LOG = (commits, events, data_blocks, bodies, dictionaries, blobs, dropped)
PROJECTIONS = (
    *(rollouts, attempts, spans, rewards, resources, workers, queue),
    *(*RUNS, *THREADS, *ANNOTATIONS, *SCORES, *METRICS),
)
SIGNALS = (span_counters, model_calls, attempt_signals, worker_signals, watch, batches, idempotency, queue_epoch)
