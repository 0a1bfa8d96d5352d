"""${message}."""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Expand only: what an older program reads and writes stays, and no row of the log is touched."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Undo `upgrade`; refuse if the log contains events that the older program cannot read."""
    ${downgrades if downgrades else "pass"}
