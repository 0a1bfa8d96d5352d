"""${message}."""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Only add to the schema: keep all that an older program reads and writes, and change no row of the log."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Undo `upgrade`. If the log contains events that the older program cannot read, raise an error instead."""
    ${downgrades if downgrades else "pass"}
