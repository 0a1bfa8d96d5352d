"""Add annotations, which are labels and notes on rollouts. A rollout is a task for an agent.

A projection is a table whose rows are computed from the events of the log.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0006"
down_revision = "0005"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

_NEW_PROJECTIONS = ("labels", "notes")
# This query finds the database roles that may use the existing tables, because they need access to the new tables too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'idempotency' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the tables of annotations. They stay empty, because no log contains annotations yet."""
    op.create_table(
        "labels",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("label", text, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "label", name="pk_labels"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_labels_label_rollout_id", "labels", ["label", "rollout_id"])
    op.create_table(
        "notes",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "version", name="pk_notes"),
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
    """Remove the tables of annotations. If the log contains annotations, raise an error instead."""
    _check_unused()
    op.drop_table("notes")
    op.drop_table("labels")


def _check_unused() -> None:
    query = sa.text("SELECT count(*) FROM events WHERE type = 'rollout.annotated'")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
