"""Add the index of the rollouts of a group."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the index. Rollouts without a group are not in it."""
    has_group = sa.column("group_id", sa.Text()).is_not(None)
    op.create_index(
        op.f("ix_rollouts_group_id_first_position"),
        "rollouts",
        ["group_id", "first_position"],
        sqlite_where=has_group,
        postgresql_where=has_group,
    )


def downgrade() -> None:
    """Remove the index."""
    op.drop_index(op.f("ix_rollouts_group_id_first_position"), table_name="rollouts")
