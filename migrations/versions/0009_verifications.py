"""Add a table for the result of the last verification, which metrics report."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

# Finds the database roles that may update the table `batches`. They also need access to the new table.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'batches' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the table. On Postgres, grant access to the users of `batches`."""
    op.create_table(
        "verifications",
        sa.Column("one", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("verified_at", sa.BigInteger(), nullable=False),
        sa.Column("commits", sa.BigInteger(), nullable=False),
        sa.Column("differences", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_verifications")),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    if bind.dialect.name != "postgresql":
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for role in bind.execute(_USERS).scalars().all():
        bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON verifications TO {quote(role)}")


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("verifications")
