"""Create the tables of a store: the log, the projections and the signals.

The log is the append-only list of all events. Projections are tables whose rows are computed from the log. Signals are
values that are not recorded in the log, such as heartbeats and counters.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
number: TypeEngine[float] = sa.Double()

_SEQUENCES = (
    "CREATE SEQUENCE commit_seq AS bigint CACHE 1",
    "CREATE SEQUENCE event_seq AS bigint CACHE 1",
)

_STORAGE = (
    "ALTER TABLE rollouts SET (fillfactor = 80)",
    "ALTER TABLE attempts SET (fillfactor = 80)",
    "ALTER TABLE workers SET (fillfactor = 80)",
    "ALTER TABLE span_counters SET (fillfactor = 80)",
    "ALTER TABLE attempt_signals SET (fillfactor = 80)",
    "ALTER TABLE worker_signals SET (fillfactor = 80)",
    "ALTER TABLE queue SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
    "ALTER TABLE bodies ALTER COLUMN body SET STORAGE EXTERNAL",
)

_SQLITE_TRIGGERS = (
    (
        "CREATE TRIGGER commits_refuse_insert BEFORE INSERT ON commits"
        " WHEN NEW.commit_id <= (SELECT max(commit_id) FROM commits)"
        " OR EXISTS (SELECT 1 FROM commits WHERE batch_key = NEW.batch_key)"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: INSERT over a row of commits refused'); END"
    ),
    (
        "CREATE TRIGGER commits_refuse_update BEFORE UPDATE ON commits"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: UPDATE of commits refused'); END"
    ),
    (
        "CREATE TRIGGER commits_refuse_delete BEFORE DELETE ON commits"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of commits refused'); END"
    ),
    (
        "CREATE TRIGGER events_refuse_insert BEFORE INSERT ON events"
        " WHEN NEW.position <= (SELECT max(position) FROM events)"
        " OR EXISTS (SELECT 1 FROM events WHERE stream = NEW.stream AND version = NEW.version)"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: INSERT over a row of events refused'); END"
    ),
    (
        "CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: UPDATE of events refused'); END"
    ),
    (
        "CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of events refused'); END"
    ),
    (
        "CREATE TRIGGER bodies_refuse_insert BEFORE INSERT ON bodies"
        " WHEN EXISTS (SELECT 1 FROM bodies WHERE position = NEW.position)"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: INSERT over a row of bodies refused'); END"
    ),
    (
        "CREATE TRIGGER bodies_refuse_update BEFORE UPDATE ON bodies"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: UPDATE of bodies refused'); END"
    ),
    (
        "CREATE TRIGGER bodies_refuse_delete BEFORE DELETE ON bodies WHEN NOT EXISTS (SELECT 1 FROM dropped d"
        " JOIN events e ON e.position = d.event_position AND e.type = 'body.dropped'"
        " WHERE d.position = OLD.position)"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of bodies refused'); END"
    ),
    (
        "CREATE TRIGGER dropped_refuse_insert BEFORE INSERT ON dropped"
        " WHEN EXISTS (SELECT 1 FROM dropped WHERE position = NEW.position)"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: INSERT over a row of dropped refused'); END"
    ),
    (
        "CREATE TRIGGER dropped_refuse_update BEFORE UPDATE ON dropped"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: UPDATE of dropped refused'); END"
    ),
    (
        "CREATE TRIGGER dropped_refuse_delete BEFORE DELETE ON dropped"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of dropped refused'); END"
    ),
)

_POSTGRES_TRIGGERS = (
    """CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log is append-only: % of % refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$""",
    """CREATE FUNCTION refuse_unordered_delete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept bigint;
BEGIN
    EXECUTE format(
        'SELECT g.position FROM gone g WHERE NOT EXISTS (SELECT 1 FROM %1$I.dropped d'
        ' JOIN %1$I.events e ON e.position = d.event_position AND e.type = ''body.dropped'''
        ' WHERE d.position = g.position) LIMIT 1',
        TG_TABLE_SCHEMA
    ) INTO kept;
    IF kept IS NOT NULL THEN
        RAISE EXCEPTION 'the log is append-only: DELETE of % refused: no event ordered position % dropped',
            TG_TABLE_NAME, kept USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$""",
    (
        "CREATE TRIGGER commits_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON commits"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    ),
    "ALTER TABLE commits ENABLE ALWAYS TRIGGER commits_refuse_change",
    (
        "CREATE TRIGGER events_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON events"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    ),
    "ALTER TABLE events ENABLE ALWAYS TRIGGER events_refuse_change",
    (
        "CREATE TRIGGER bodies_refuse_change BEFORE UPDATE OR TRUNCATE ON bodies"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    ),
    "ALTER TABLE bodies ENABLE ALWAYS TRIGGER bodies_refuse_change",
    (
        "CREATE TRIGGER dropped_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON dropped"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    ),
    "ALTER TABLE dropped ENABLE ALWAYS TRIGGER dropped_refuse_change",
    (
        "CREATE TRIGGER bodies_refuse_delete AFTER DELETE ON bodies REFERENCING OLD TABLE AS gone"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_unordered_delete()"
    ),
    "ALTER TABLE bodies ENABLE ALWAYS TRIGGER bodies_refuse_delete",
)


def upgrade() -> None:
    """Create the tables, indexes and triggers of an empty store."""
    on_postgres = op.get_bind().dialect.name == "postgresql"
    for statement in _SEQUENCES if on_postgres else ():
        op.execute(statement)
    _create_store()
    _create_log()
    _create_projections()
    _create_signals()
    for statement in (*_STORAGE, *_POSTGRES_TRIGGERS) if on_postgres else _SQLITE_TRIGGERS:
        # `op.execute` is not used, because it would interpret ":name" and "%" in the statements.
        op.get_bind().exec_driver_sql(statement)


def _create_store() -> None:
    op.create_table(
        "store_info",
        sa.Column("store_id", text, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("log_format", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("store_id", name="pk_store_info"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "queue_epoch",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_queue_epoch"),
    )
    op.execute("INSERT INTO queue_epoch (id, epoch) VALUES (1, 0)")


def _create_log() -> None:
    op.create_table(
        "commits",
        sa.Column("commit_id", big_id, sa.Sequence("commit_seq"), autoincrement=True, nullable=False),
        sa.Column("batch_key", text, nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.Column("writer", text, nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("rollouts", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("spans", sa.BigInteger(), nullable=False),
        sa.Column("resources", sa.BigInteger(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("body_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("commit_id", name="pk_commits"),
        sa.UniqueConstraint("batch_key", name="uq_commits_batch_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_commits_recorded_at", "commits", ["recorded_at"])
    op.create_table(
        "events",
        sa.Column("position", big_id, sa.Sequence("event_seq"), autoincrement=True, nullable=False),
        sa.Column("commit_id", sa.BigInteger(), nullable=False),
        sa.Column("stream", text, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("command", sa.SmallInteger(), nullable=False),
        sa.Column("type", text, nullable=False),
        sa.Column("shape", sa.SmallInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", text),
        sa.Column("cause", sa.BigInteger()),
        sa.Column("data", text, nullable=False),
        sa.Column("body_hash", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("position", name="pk_events"),
        sa.UniqueConstraint("stream", "version", name="uq_events_stream_version"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "bodies",
        sa.Column("position", big_id, autoincrement=False, nullable=False),
        sa.Column("codec", sa.SmallInteger(), nullable=False),
        sa.Column("raw_len", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_bodies"),
    )
    op.create_table(
        "dropped",
        sa.Column("position", big_id, autoincrement=False, nullable=False),
        sa.Column("event_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_dropped"),
    )


def _create_projections() -> None:
    op.create_table(
        "rollouts",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("status", text, nullable=False),
        sa.Column("mode", text),
        sa.Column("resources_id", text),
        sa.Column("resources_version", sa.BigInteger()),
        sa.Column("config", text, nullable=False),
        sa.Column("start_at", sa.BigInteger(), nullable=False),
        sa.Column("end_at", sa.BigInteger()),
        sa.Column("group_id", text),
        sa.Column("step", sa.BigInteger()),
        sa.Column("plan_key", text),
        sa.Column("input_sha256", text, nullable=False),
        sa.Column("input_position", sa.BigInteger(), nullable=False),
        sa.Column("metadata_position", sa.BigInteger(), nullable=False),
        sa.Column("queued_position", sa.BigInteger()),
        sa.Column("attempt_count", sa.Integer(), nullable=False),
        sa.Column("rerun_seq", sa.Integer(), nullable=False),
        sa.Column("last_reward", number),
        sa.Column("spans", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("error", text),
        sa.Column("stream_version", sa.BigInteger(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_rollouts"),
        sa.UniqueConstraint("plan_key", name="uq_rollouts_plan_key"),
    )
    op.create_index("ix_rollouts_first_position", "rollouts", ["first_position"])
    op.create_table(
        "attempts",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("attempt_id", text, nullable=False),
        sa.Column("sequence_id", sa.Integer(), nullable=False),
        sa.Column("status", text, nullable=False),
        sa.Column("worker_id", text),
        sa.Column("start_at", sa.BigInteger(), nullable=False),
        sa.Column("end_at", sa.BigInteger()),
        sa.Column("last_heartbeat_time", number),
        sa.Column("heartbeat_stamped_at", sa.BigInteger()),
        sa.Column("metadata_position", sa.BigInteger()),
        sa.Column("via", text, nullable=False),
        sa.Column("rerun_seq", sa.Integer(), nullable=False),
        sa.Column("resources_version", sa.BigInteger()),
        sa.Column("owner", text),
        sa.Column("error", text),
        sa.Column("released_position", sa.BigInteger()),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "attempt_id", name="pk_attempts"),
    )
    op.create_table(
        "spans",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("attempt_id", text, nullable=False),
        sa.Column("span_id", text, nullable=False),
        sa.Column("sequence_id", sa.BigInteger(), nullable=False),
        sa.Column("trace_id", text, nullable=False),
        sa.Column("parent_id", text),
        sa.Column("name", text, nullable=False),
        sa.Column("start_time", number),
        sa.Column("end_time", number),
        sa.Column("status_code", text, nullable=False),
        sa.Column("status_message", text),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "attempt_id", "span_id", name="pk_spans"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rewards",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("attempt_id", text, nullable=False),
        sa.Column("name", text),
        sa.Column("value", number, nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "position", "ordinal", name="pk_rewards"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "resources",
        sa.Column("resources_id", text, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("create_at", sa.BigInteger(), nullable=False),
        sa.Column("update_at", sa.BigInteger(), nullable=False),
        sa.Column("body_position", sa.BigInteger(), nullable=False),
        sa.Column("stream_version", sa.BigInteger(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("resources_id", name="pk_resources"),
    )
    op.create_index("ix_resources_last_position", "resources", ["last_position"])
    op.create_table(
        "workers",
        sa.Column("worker_id", text, nullable=False),
        sa.Column("status", text, nullable=False),
        sa.Column("current_rollout_id", text),
        sa.Column("current_attempt_id", text),
        sa.Column("last_busy_at", sa.BigInteger()),
        sa.Column("last_idle_at", sa.BigInteger()),
        sa.Column("stream_version", sa.BigInteger(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name="pk_workers"),
    )
    op.create_table(
        "queue",
        sa.Column("position", big_id, autoincrement=False, nullable=False),
        sa.Column("rollout_id", text, nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_queue"),
    )


def _create_signals() -> None:
    op.create_table(
        "span_counters",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_span_counters"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "attempt_signals",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("attempt_id", text, nullable=False),
        sa.Column("beat_time", number),
        sa.Column("stamped_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "attempt_id", name="pk_attempt_signals"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "worker_signals",
        sa.Column("worker_id", text, nullable=False),
        sa.Column("heartbeat_stats", text),
        sa.Column("last_heartbeat_at", sa.BigInteger()),
        sa.Column("last_dequeue_at", sa.BigInteger()),
        sa.Column("last_busy_at", sa.BigInteger()),
        sa.Column("last_idle_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("worker_id", name="pk_worker_signals"),
    )
    op.create_table(
        "watch",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("check_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_watch"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_watch_check_at", "watch", ["check_at"])
    op.create_table(
        "batches",
        sa.Column("batch_key", text, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("batch_key", name="pk_batches"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_batches_at", "batches", ["at"])


def downgrade() -> None:
    """Remove all tables of the store. If the log contains events, raise an error instead."""
    count: int = op.get_bind().execute(sa.text("SELECT count(*) FROM events")).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events, which a downgrade would delete; delete the database instead"
        )
    for name in reversed(_TABLES):
        op.drop_table(name)
    if op.get_bind().dialect.name == "postgresql":
        for statement in (
            "SEQUENCE commit_seq",
            "SEQUENCE event_seq",
            "FUNCTION refuse_change",
            "FUNCTION refuse_unordered_delete",
        ):
            op.execute(f"DROP {statement}")


_TABLES = (
    "store_info",
    "queue_epoch",
    "commits",
    "events",
    "bodies",
    "dropped",
    "rollouts",
    "attempts",
    "spans",
    "rewards",
    "resources",
    "workers",
    "queue",
    "span_counters",
    "attempt_signals",
    "worker_signals",
    "watch",
    "batches",
)
