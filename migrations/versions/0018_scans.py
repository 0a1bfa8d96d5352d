"""Add the table of results of scanners.

A projection is a table whose rows are computed from the events of the log.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0018"
down_revision = "0017"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# This query finds the database roles that may use the existing tables, because they need access to the new table too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'idempotency' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the table. It stays empty, because no log contains results yet."""
    op.create_table(
        "scans",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt_id", text, nullable=False),
        sa.Column("scanner", text, nullable=False),
        sa.Column("version", text, nullable=False),
        sa.Column("is_match", sa.Integer()),
        sa.Column("error", text),
        sa.PrimaryKeyConstraint("rollout_id", "position", name="pk_scans"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_scans_scanner_version_rollout_id", "scans", ["scanner", "version", "rollout_id"])
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        quote = bind.dialect.identifier_preparer.quote_identifier
        for role in bind.execute(_USERS).scalars().all():
            bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON scans TO {quote(role)}")


def downgrade() -> None:
    """Remove the table. If the log contains results, raise an error instead."""
    query = sa.text("SELECT count(*) FROM events WHERE type IN ('scanner.added', 'rollout.scanned')")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
    op.drop_table("scans")
