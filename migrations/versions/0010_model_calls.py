"""Add a table with the calls of models that spans recorded, so that the tokens of a call are counted once.

A span is a recorded step of a rollout, which is a task for an agent. Several spans can record the same call, with the
same response id.
"""

from collections.abc import Iterator
from typing import Any

import orjson
import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0010"
down_revision = "0009"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# Finds the database roles that may update the table `span_counters`. They also need access to the new table.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'span_counters' AND privilege_type = 'UPDATE' AND grantee NOT IN (current_user, 'PUBLIC')"
)
_SPANS = sa.text(
    "SELECT position, stream, data FROM events WHERE position > :after AND type = 'span.recorded'"
    " ORDER BY position LIMIT 5000"
)
_UPSERT = (
    "INSERT INTO model_calls (rollout_id, attempt_id, response_id, tokens_in, tokens_out)"
    " VALUES (:rollout_id, :attempt_id, :response_id, :tokens_in, :tokens_out)"
    " ON CONFLICT (rollout_id, attempt_id, response_id) DO UPDATE SET"
    " tokens_in = {greatest}(model_calls.tokens_in, excluded.tokens_in),"
    " tokens_out = {greatest}(model_calls.tokens_out, excluded.tokens_out)"
)


def upgrade() -> None:
    """Add the table, and fill it from the recorded spans. On Postgres, grant access to the users of the counters."""
    op.create_table(
        "model_calls",
        sa.Column("rollout_id", text, nullable=False),
        sa.Column("attempt_id", text, nullable=False),
        sa.Column("response_id", text, nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "attempt_id", "response_id", name=op.f("pk_model_calls")),
        sqlite_with_rowid=False,
    )
    bind = op.get_bind()
    is_postgres = bind.dialect.name == "postgresql"
    upsert = sa.text(_UPSERT.format(greatest="greatest" if is_postgres else "max"))
    for page in _pages():
        calls = [call for _, stream, data in page if (call := _call(stream, orjson.loads(data))) is not None]
        if calls:
            bind.execute(upsert, calls)
    if not is_postgres:
        return
    quote = bind.dialect.identifier_preparer.quote_identifier
    for role in bind.execute(_USERS).scalars().all():
        bind.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON model_calls TO {quote(role)}")


def _pages() -> Iterator[list[Any]]:
    after = -1
    while page := list(op.get_bind().execute(_SPANS, {"after": after})):
        yield page
        after = page[-1].position


def _call(stream: str, data: dict[str, Any]) -> dict[str, Any] | None:
    answer = data.get("response_id")
    if answer is None:
        return None
    return {
        "rollout_id": stream.removeprefix("rollout/"),
        "attempt_id": data["attempt_id"],
        "response_id": answer,
        "tokens_in": data.get("tokens_in") or 0,
        "tokens_out": data.get("tokens_out") or 0,
    }


def downgrade() -> None:
    """Remove the table. If the log contains spans that record a call again, raise an error instead."""
    _check_unused()
    op.drop_table("model_calls")


def _check_unused() -> None:
    query = sa.text("SELECT count(*) FROM events WHERE type = 'span.recorded' AND shape > 1")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
