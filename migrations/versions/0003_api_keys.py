"""Add API keys for servers that use this database. Only the hashes of the keys are stored."""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0003"
down_revision = "0002"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# This query finds the database roles that may use the existing tables, because they need access to the new table too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'idempotency' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the table of API keys. On Postgres, grant access to the roles that have access to the other tables."""
    op.create_table(
        "keys",
        sa.Column("key_id", text, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("role", text, nullable=False),
        sa.Column("partition", text),
        sa.Column("name", text),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.Column("used_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_keys")),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    if bind.dialect.name != "postgresql":
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for role in bind.execute(_USERS).scalars().all():
        bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON keys TO {quote(role)}")


def downgrade() -> None:
    """Remove the table of keys. If a key is not revoked, raise an error instead, because it protects the servers."""
    count: int = op.get_bind().execute(sa.text("SELECT count(*) FROM keys WHERE revoked_at IS NULL")).scalar_one()
    if count:
        raise CommandError(
            f"{count} keys are not revoked; without keys, the servers would accept every client, so revoke them first"
        )
    op.drop_table("keys")
