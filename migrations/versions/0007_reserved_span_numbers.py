"""Add reserved span numbers to the span counters.

A span is a recorded step of a rollout, which is a task for an agent, and each rollout has a counter that numbers its
spans. An event of the rollout can reserve a block of numbers. The counter now also contains the last number of the
block.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column `reserved` to the span counters. The column is null, because no log contains reservations yet."""
    op.add_column("span_counters", sa.Column("reserved", sa.BigInteger()))


def downgrade() -> None:
    """Remove the column `reserved`. If the log contains reservations, raise an error instead."""
    _check_unused()
    op.drop_column("span_counters", "reserved")


def _check_unused() -> None:
    query = sa.text("SELECT count(*) FROM events WHERE type = 'span.numbers_reserved'")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
