"""Add a table with the names that users of the dashboard gave to filters, columns and sorting of a page."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# This query finds the database roles that may use the existing tables, because they need access to the new table too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'operation_runs' AND privilege_type = :privilege AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the table. On Postgres, grant access to the users of `operation_runs`."""
    op.create_table(
        "saved_views",
        sa.Column("page", text, nullable=False),
        sa.Column("name", text, nullable=False),
        sa.Column("query", text, nullable=False),
        sa.Column("actor", text, nullable=False),
        sa.Column("saved_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("page", "name", name=op.f("pk_saved_views")),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    if bind.dialect.name != "postgresql":
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for held, granted in (("SELECT", "SELECT"), ("UPDATE", "SELECT, INSERT, UPDATE, DELETE")):
        for role in bind.execute(_USERS, {"privilege": held}).scalars().all():
            bind.exec_driver_sql(f"GRANT {granted} ON saved_views TO {quote(role)}")


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("saved_views")
