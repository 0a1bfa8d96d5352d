"""Reserved span numbers: the counter of a rollout contains the end of the block that the rollout's stream reserves."""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add a column to the span counters. It is null, because no log contains reservations yet."""
    op.add_column("span_counters", sa.Column("reserved", sa.BigInteger()))


def downgrade() -> None:
    """Remove the column; refuse if the log contains reservations."""
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
