"""Add threads, which contain the checkpoints that LangGraph's checkpointers save.

A projection is a table whose rows are computed from the events of the log.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0005"
down_revision = "0004"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

_NEW_PROJECTIONS = ("threads", "thread_checkpoints", "thread_writes")
# This query finds the database roles that may use the existing tables, because they need access to the new tables too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'idempotency' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the tables of threads. They stay empty, because no log contains threads yet."""
    op.create_table(
        "threads",
        sa.Column("thread_id", text, nullable=False),
        sa.Column("stream_version", sa.BigInteger(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", name="pk_threads"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "thread_checkpoints",
        sa.Column("thread_id", text, nullable=False),
        sa.Column("ns", text, nullable=False),
        sa.Column("checkpoint_id", text, nullable=False),
        sa.Column("parent_id", text),
        sa.Column("run_id", text),
        sa.Column("source", text),
        sa.Column("step", sa.BigInteger()),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("body_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", "ns", "checkpoint_id", name="pk_thread_checkpoints"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_thread_checkpoints_run_id", "thread_checkpoints", ["run_id"])
    op.create_table(
        "thread_writes",
        sa.Column("thread_id", text, nullable=False),
        sa.Column("ns", text, nullable=False),
        sa.Column("checkpoint_id", text, nullable=False),
        sa.Column("task_id", text, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("channel", text, nullable=False),
        sa.Column("task_path", text, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("body_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", "ns", "checkpoint_id", "task_id", "number", name="pk_thread_writes"),
        sqlite_with_rowid=False,
    )
    _let_in()


def _let_in() -> None:
    bind = op.get_bind()
    if bind.dialect.name != "postgresql":
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for role in bind.execute(_USERS).scalars().all():
        for table in _NEW_PROJECTIONS:
            bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {quote(role)}")


def downgrade() -> None:
    """Remove the tables of threads. If the log contains events of threads, raise an error instead."""
    _check_unused()
    for name in ("thread_writes", "thread_checkpoints", "threads"):
        op.drop_table(name)


def _check_unused() -> None:
    query = sa.text("SELECT count(*) FROM events WHERE type LIKE 'thread.%'")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
