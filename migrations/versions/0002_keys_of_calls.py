"""Add idempotency keys of calls, and drop the index that found commits by time.

Commits are now found by time with a binary search.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the table of idempotency keys.

    Drop the index of commit times, because each commit wrote one more page for it.
    """
    op.create_table(
        "idempotency",
        sa.Column("key", text, nullable=False),
        sa.Column("scope", text, nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("reply", text, nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", "scope", name=op.f("pk_idempotency")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_idempotency_expires_at"), "idempotency", ["expires_at"])
    op.drop_index(op.f("ix_commits_recorded_at"), table_name="commits")


def downgrade() -> None:
    """Remove the table of idempotency keys, and restore the index.

    The loss is small, because keys expire after a day.
    """
    op.drop_table("idempotency")
    op.create_index("ix_commits_recorded_at", "commits", ["recorded_at"])
