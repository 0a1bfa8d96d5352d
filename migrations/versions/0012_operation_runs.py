"""Add a table with the last run of each operation: verification, backup, retention.

The result of the last verification is copied from the table `verifications`. That table stays, because servers of
older versions that are open still write to it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# Finds the database roles with a privilege on the table `verifications`. They also need access to the new table.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'verifications' AND privilege_type = :privilege AND grantee NOT IN (current_user, 'PUBLIC')"
)
# The number of commits is not the id of the last commit if the log has gaps, so the id stays unknown.
_COPY = (
    "INSERT INTO operation_runs (operation, attempted_at, runs, failures, started_at, ended_at, differences)"
    " SELECT 'verify', verified_at, 1, 0, verified_at, verified_at, differences FROM verifications"
)


def upgrade() -> None:
    """Add the table, and copy the last result. On Postgres, grant access to the users of `verifications`."""
    op.create_table(
        "operation_runs",
        sa.Column("operation", text, nullable=False),
        sa.Column("runner", text),
        sa.Column("lease_until", sa.BigInteger()),
        sa.Column("attempted_at", sa.BigInteger(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("failed_at", sa.BigInteger()),
        sa.Column("error", text),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("commit_id", sa.BigInteger()),
        sa.Column("differences", sa.BigInteger()),
        sa.Column("version", text),
        sa.Column("detail", text),
        sa.PrimaryKeyConstraint("operation", name=op.f("pk_operation_runs")),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    bind.exec_driver_sql(_COPY)
    if bind.dialect.name != "postgresql":
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for held, granted in (("SELECT", "SELECT"), ("UPDATE", "SELECT, INSERT, UPDATE, DELETE")):
        for role in bind.execute(_USERS, {"privilege": held}).scalars().all():
            bind.exec_driver_sql(f"GRANT {granted} ON operation_runs TO {quote(role)}")


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("operation_runs")
