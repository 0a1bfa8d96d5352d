"""Remove the unique index on `commits.batch_key`.

A batch is a group of calls that are written in one transaction. The index cost each commit one more page. A writer
looks for the key of a batch only after it lost the reply to a COMMIT. It then knows the id of the commit, so it needs
no index.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

_UNIQUE = "uq_commits_batch_key"
_REFUSED = " BEGIN SELECT RAISE(ABORT, 'the log is append-only: {what} of commits refused'); END"
_OVER_A_ROW = "NEW.commit_id <= (SELECT max(commit_id) FROM commits)"
_KNOWN_KEY = " OR EXISTS (SELECT 1 FROM commits WHERE batch_key = NEW.batch_key)"


def upgrade() -> None:
    """Remove the unique key."""
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(_UNIQUE, "commits", type_="unique")
    else:
        _rebuild(is_unique=False)


def downgrade() -> None:
    """Add the unique key."""
    if op.get_bind().dialect.name == "postgresql":
        op.create_unique_constraint(_UNIQUE, "commits", ["batch_key"])
    else:
        _rebuild(is_unique=True)


def _rebuild(*, is_unique: bool) -> None:
    """Copy the rows into a new table. SQLite cannot add a unique constraint to a table, or remove one."""
    bind = op.get_bind()
    # The sequence of a new table continues after its greatest id. The sequence of the old table may be further ahead,
    # and must not go back.
    last = bind.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'commits'")).scalar()
    op.create_table(
        "new_commits",
        sa.Column("commit_id", sa.Integer(), nullable=False),
        sa.Column("batch_key", text, nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.Column("writer", text, nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("rollouts", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("spans", sa.BigInteger(), nullable=False),
        sa.Column("resources", sa.BigInteger(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("body_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("commit_id", name="pk_commits"),
        *([sa.UniqueConstraint("batch_key", name=_UNIQUE)] if is_unique else []),
        sqlite_autoincrement=True,
    )
    op.execute("INSERT INTO new_commits SELECT * FROM commits ORDER BY commit_id")
    op.drop_table("commits")
    # Without this pragma, the renaming fails if a view, or a trigger on another table, reads `commits`.
    op.execute("PRAGMA legacy_alter_table = ON")
    op.rename_table("new_commits", "commits")
    op.execute("PRAGMA legacy_alter_table = OFF")
    found = bind.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'commits'")).scalar()
    if last is not None and (found is None or last > found):
        bind.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = 'commits'"))
        bind.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES ('commits', :last)"), {"last": last})
    taken = _OVER_A_ROW + _KNOWN_KEY if is_unique else _OVER_A_ROW
    op.execute(
        f"CREATE TRIGGER commits_refuse_insert BEFORE INSERT ON commits WHEN {taken}"
        + _REFUSED.format(what="INSERT over a row")
    )
    for verb in ("update", "delete"):
        op.execute(
            f"CREATE TRIGGER commits_refuse_{verb} BEFORE {verb.upper()} ON commits"
            + _REFUSED.format(what=verb.upper())
        )
