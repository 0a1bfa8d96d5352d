"""Add the table of metrics, which trainers log by training step.

A projection is a table whose rows are computed from the events of the log.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError
from sqlalchemy.types import TypeEngine

revision = "0017"
down_revision = "0016"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
number: TypeEngine[float] = sa.Double()

# This query finds the database roles that may use the existing tables, because they need access to the new table too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'idempotency' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the table. It stays empty, because no log contains metrics yet."""
    op.create_table(
        "metrics",
        sa.Column("name", text, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("value", number),
        sa.Column("mark", text),
        sa.PrimaryKeyConstraint("name", "step", "position", name="pk_metrics"),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        quote = bind.dialect.identifier_preparer.quote_identifier
        for role in bind.execute(_USERS).scalars().all():
            bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON metrics TO {quote(role)}")


def downgrade() -> None:
    """Remove the table. If the log contains metrics, raise an error instead."""
    query = sa.text("SELECT count(*) FROM events WHERE type = 'metrics.logged'")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
    op.drop_table("metrics")
