"""Add the time from which servers of this database require API keys.

Before this revision, a server required keys as soon as the database had a key. A database with an unrevoked key still
requires keys after the upgrade: the new row contains the time 0, so keys are required since 1970.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

# This query finds the database roles that may update the table `keys`, because they need access to the new table too.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'keys' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)


def upgrade() -> None:
    """Add the table, and require keys if an unrevoked key exists. On Postgres, grant access to the users of `keys`."""
    op.create_table(
        "key_policy",
        sa.Column("one", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("enforced_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_key_policy")),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    bind.execute(
        sa.text(
            "INSERT INTO key_policy (one, enforced_at) SELECT 1, 0"
            " WHERE EXISTS (SELECT 1 FROM keys WHERE revoked_at IS NULL)"
        )
    )
    if bind.dialect.name != "postgresql":
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for role in bind.execute(_USERS).scalars().all():
        bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON key_policy TO {quote(role)}")


def downgrade() -> None:
    """Remove the table. The older version requires keys as soon as the database has a key."""
    op.drop_table("key_policy")
