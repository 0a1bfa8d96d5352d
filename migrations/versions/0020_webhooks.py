"""Add the tables of webhooks and of their deliveries, beside the log. They contain no payload of users."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# This query finds the database roles that may use the existing tables, because they need access to the new tables too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'idempotency' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the tables. On Postgres, grant access to the roles that have access to the other tables."""
    op.create_table(
        "webhooks",
        sa.Column("webhook_id", text, nullable=False),
        sa.Column("url", text, nullable=False),
        sa.Column("secret", text, nullable=False),
        sa.Column("conditions", text, nullable=False),
        sa.Column("states", text, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("webhook_id", name=op.f("pk_webhooks")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("delivery_id", text, nullable=False),
        sa.Column("webhook_id", text, nullable=False),
        sa.Column("type", text, nullable=False),
        sa.Column("body", text, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("status", text, nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("sender", text),
        sa.Column("attempted_at", sa.BigInteger()),
        sa.Column("response_status", sa.BigInteger()),
        sa.Column("error", text),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("pk_webhook_deliveries")),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        quote = bind.dialect.identifier_preparer.quote_identifier
        for role in bind.execute(_USERS).scalars().all():
            for table in ("webhooks", "webhook_deliveries"):
                bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {quote(role)}")


def downgrade() -> None:
    """Remove the tables, with the secrets of the webhooks."""
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
