"""Add runs: their events, forks, checkpoints and artifacts, the head of a rollout, and blobs.

A rollout is a task for an agent, and a run is the execution of a rollout in one or more attempts. A node is a step of
the run, such as one agent. A span is a recorded operation of an attempt, and may belong to a node. A fork starts an
attempt that builds on an earlier attempt. The head is the attempt whose history counts as the current history of the
rollout. A blob is a large value that is stored only once. A projection is a table whose rows are computed from the
events of the log.
"""

from collections.abc import Iterator
from typing import Any

import orjson
import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError
from sqlalchemy.types import TypeEngine

revision = "0004"
down_revision = "0003"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
number: TypeEngine[float] = sa.Double()

_SQLITE_TRIGGERS = (
    (
        "CREATE TRIGGER blobs_refuse_insert BEFORE INSERT ON blobs"
        " WHEN EXISTS (SELECT 1 FROM blobs WHERE hash = NEW.hash)"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: INSERT over a row of blobs refused'); END"
    ),
    (
        "CREATE TRIGGER blobs_refuse_update BEFORE UPDATE ON blobs"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: UPDATE of blobs refused'); END"
    ),
    (
        "CREATE TRIGGER blobs_refuse_delete BEFORE DELETE ON blobs"
        " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of blobs refused'); END"
    ),
)
_POSTGRES = (
    "ALTER TABLE blobs ALTER COLUMN body SET STORAGE EXTERNAL",
    (
        "CREATE TRIGGER blobs_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON blobs"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    ),
    "ALTER TABLE blobs ENABLE ALWAYS TRIGGER blobs_refuse_change",
)
_NEW_PROJECTIONS = ("run_events", "forks", "fork_masks", "checkpoints", "artifacts", "run_keys")
# This query finds the database roles that may use the existing tables, because they need access to the new tables too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'idempotency' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)

# Values for existing rows. Forks did not exist before this revision, so each later attempt repeated the work of the
# first attempt. The latest attempt is therefore the head. `tries` counts the attempts at the same work, so it is the
# number of the attempt.
_HEAD = "CASE WHEN attempt_count > 0 THEN attempt_count END"
_HEAD_BEFORE = "CASE WHEN sequence_id > 1 THEN sequence_id - 1 END"


def upgrade() -> None:
    """Add the tables of runs, and insert a row into `run_events` for each stored span that belongs to a node."""
    if op.get_bind().dialect.name == "postgresql":
        _widen_on_postgres()
    else:
        _widen_on_sqlite()
    _create_blobs()
    _create_runs()
    _guard()
    _fill()


def _widen_on_postgres() -> None:
    for column in (sa.Column("head", sa.Integer()), sa.Column("run_version", sa.BigInteger())):
        op.add_column("rollouts", column)
    for column in _attempt_columns(is_nullable=True):
        op.add_column("attempts", column)
    op.execute(f"UPDATE rollouts SET head = {_HEAD}")  # noqa: S608 (a constant)
    op.execute(f"UPDATE attempts SET tries = sequence_id, head_before = {_HEAD_BEFORE}")  # noqa: S608 (a constant)
    op.alter_column("attempts", "tries", nullable=False)


def _attempt_columns(*, is_nullable: bool) -> list[sa.Column[Any]]:
    return [
        sa.Column("tries", sa.Integer(), nullable=is_nullable),
        sa.Column("fork_version", sa.BigInteger()),
        sa.Column("base", sa.Integer()),
        sa.Column("base_version", sa.BigInteger()),
        sa.Column("head_before", sa.Integer()),
    ]


def _widen_on_sqlite() -> None:
    """Create the tables `rollouts` and `attempts` again with more columns, and copy their rows.

    ALTER TABLE of SQLite cannot add a required column without a default, and cannot choose the place of a new column.
    """
    for table in ("rollouts", "attempts"):
        op.rename_table(table, f"{table}_before")
    _create_rollouts()
    _create_attempts()
    op.execute(f"INSERT INTO rollouts SELECT *, {_HEAD}, NULL FROM rollouts_before")  # noqa: S608 (a constant)
    op.execute(
        f"INSERT INTO attempts SELECT *, sequence_id, NULL, NULL, NULL, {_HEAD_BEFORE} FROM attempts_before"  # noqa: S608 (a constant)
    )
    for table in ("rollouts", "attempts"):
        op.drop_table(f"{table}_before")
    op.create_index("ix_rollouts_first_position", "rollouts", ["first_position"])


def _create_rollouts() -> None:
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
        sa.Column("head", sa.Integer()),
        sa.Column("run_version", sa.BigInteger()),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_rollouts"),
        sa.UniqueConstraint("plan_key", name="uq_rollouts_plan_key"),
    )


def _create_attempts() -> None:
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
        *_attempt_columns(is_nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "attempt_id", name="pk_attempts"),
    )


def _create_blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("hash", text, nullable=False),
        sa.Column("codec", sa.SmallInteger(), nullable=False),
        sa.Column("raw_len", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_blobs"),
    )


def _create_runs() -> None:
    _create_of_a_run(
        "run_events",
        sa.Column("kind", text, nullable=False),
        sa.Column("node_id", text),
        sa.Column("scope", text),
        sa.Column("parent_node_id", text),
        sa.Column("phase", text),
        sa.Column("agent", text),
        sa.Column("node_exec", text),
        sa.Column("status", text),
        sa.Column("service", text),
        sa.Column("metrics", text),
        sa.Column("prompt_sha256", text),
        sa.Column("response_sha256", text),
    )
    op.create_index(
        "ix_run_events_rollout_id_scope_node_id_version", "run_events", ["rollout_id", "scope", "node_id", "version"]
    )
    _create_of_a_run(
        "forks",
        sa.Column("kind", text, nullable=False),
        sa.Column("base", sa.Integer(), nullable=False),
        sa.Column("base_version", sa.BigInteger(), nullable=False),
        sa.Column("rerun_seq", sa.Integer(), nullable=False),
        sa.Column("phase", text),
        sa.Column("entry", text),
        sa.Column("scopes", text),
        sa.Column("checkpoints", text),
        sa.Column("cascade", text),
        sa.Column("graph", text),
        sa.Column("degraded", text),
        sa.Column("request_id", text),
    )
    op.create_table(
        "fork_masks",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("scope", text),
        sa.Column("node_id", text),
        sa.Column("phase", text),
        sa.Column("children", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "version", "ordinal", name="pk_fork_masks"),
        sqlite_with_rowid=False,
    )
    _create_of_a_run(
        "checkpoints",
        sa.Column("checkpoint_id", text, nullable=False),
        sa.Column("scope", text, nullable=False),
        sa.Column("name", text, nullable=False),
        sa.Column("after_phase", text),
        sa.Column("parent_id", text),
        sa.Column("graph", text),
        sa.Column("external", text),
    )
    _create_of_a_run(
        "artifacts",
        sa.Column("artifact_id", text, nullable=False),
        sa.Column("scope", text, nullable=False),
        sa.Column("name", text, nullable=False),
        sa.Column("phase", text),
        sa.Column("media_type", text),
        sa.Column("retracted", sa.BigInteger()),
    )
    op.create_index("ix_artifacts_scope_name_position", "artifacts", ["scope", "name", "position"])
    op.create_table(
        "run_keys",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("key", text, nullable=False),
        sa.Column("kind", text, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("last_version", sa.BigInteger(), nullable=False),
        sa.Column("attempt_id", text),
        sa.PrimaryKeyConstraint("rollout_id", "key", name="pk_run_keys"),
        sqlite_with_rowid=False,
    )


def _create_of_a_run(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(
        name,
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("rollout_id", "version", name=f"pk_{name}"),
        sqlite_with_rowid=False,
    )


def _guard() -> None:
    bind = op.get_bind()
    on_postgres = bind.dialect.name == "postgresql"
    for statement in _POSTGRES if on_postgres else _SQLITE_TRIGGERS:
        bind.exec_driver_sql(statement)
    if not on_postgres:
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for role in bind.execute(_USERS).scalars().all():
        bind.exec_driver_sql(f"GRANT SELECT, INSERT ON blobs TO {quote(role)}")
        for table in _NEW_PROJECTIONS:
            bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {quote(role)}")


# -- the spans of nodes ------------------------------------------------------------------------------------------------

_COLUMNS: list[sa.ColumnClause[Any]] = [
    sa.column(name)
    for name in (
        "rollout_id",
        "version",
        "position",
        "attempt",
        "kind",
        "node_id",
        "scope",
        "parent_node_id",
        "phase",
        "node_exec",
        "status",
        "metrics",
    )
]
_RUN_EVENTS = sa.table("run_events", *_COLUMNS)
_SPANS_OF_NODES = sa.text(
    "SELECT e.position, e.stream, e.version, e.data FROM events e"
    " WHERE e.type = 'span.recorded' AND e.position > :after AND e.data LIKE '%\"node_id\"%'"
    " ORDER BY e.position LIMIT 1000"
)
_SEQUENCE = sa.text("SELECT sequence_id FROM attempts WHERE rollout_id = :rollout_id AND attempt_id = :attempt_id")
_STATUSES = {"OK": "success", "ERROR": "error"}


def _fill() -> None:
    bind = op.get_bind()
    sequences: dict[tuple[str, str], int] = {}
    for page in _pages():
        rows: list[dict[str, Any]] = []
        for position, stream, version, data in page:
            span = orjson.loads(data)
            if not span.get("node_id"):
                continue
            key = (stream.removeprefix("rollout/"), span["attempt_id"])
            if key not in sequences:
                named = {"rollout_id": key[0], "attempt_id": key[1]}
                sequences[key] = bind.execute(_SEQUENCE, named).scalar_one()
            rows.append(_row(key[0], version, position, sequences[key], span))
        if rows:
            bind.execute(sa.insert(_RUN_EVENTS), rows)
    op.execute(
        "UPDATE rollouts SET run_version = (SELECT max(version) FROM run_events r"
        " WHERE r.rollout_id = rollouts.rollout_id) WHERE rollout_id IN (SELECT rollout_id FROM run_events)"
    )


def _pages() -> Iterator[list[Any]]:
    after = 0
    while page := list(op.get_bind().execute(_SPANS_OF_NODES, {"after": after}).all()):
        yield page
        after = page[-1][0]


def _row(rollout_id: str, version: int, position: int, attempt: int, span: dict[str, Any]) -> dict[str, Any]:
    begin, end = span.get("start"), span.get("end")
    metrics = {
        "latency_ms": None if begin is None or end is None else round((end - begin) * 1000, 3),
        "model": span.get("model"),
        "tokens_in": span.get("tokens_in"),
        "tokens_out": span.get("tokens_out"),
    }
    known = {name: value for name, value in metrics.items() if value is not None}
    return {
        "rollout_id": rollout_id,
        "version": version,
        "position": position,
        "attempt": attempt,
        "kind": span.get("kind") or "result",
        "node_id": span["node_id"],
        "scope": span.get("scope"),
        "parent_node_id": span.get("parent_node_id"),
        "phase": span.get("phase"),
        "node_exec": span.get("node_exec"),
        "status": _STATUSES.get(span["status_code"]),
        "metrics": orjson.dumps(known).decode() if known else None,
    }


def downgrade() -> None:
    """Remove the tables of runs. If the log contains events of runs, raise an error instead."""
    _check_unused()
    for name in (*reversed(_NEW_PROJECTIONS), "blobs"):
        op.drop_table(name)
    for table, columns in _NEW_COLUMNS.items():
        for name in columns:
            op.drop_column(table, name)


def _check_unused() -> None:
    query = sa.text(
        "SELECT count(*) FROM events WHERE type IN ('run.event', 'phase.started', 'phase.completed', 'phase.skipped',"
        " 'checkpoint.saved', 'checkpoint.rejected', 'artifact.saved', 'artifact.retracted', 'attempt.forked',"
        " 'rollout.head_moved')"
    )
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )


_NEW_COLUMNS = {
    "rollouts": ("run_version", "head"),
    "attempts": ("head_before", "base_version", "base", "fork_version", "tries"),
}
