"""Add the table of blocks, and let the data of events be stored in blocks.

The data of an event is its JSON text without payload. Until this revision, a trigger refused every change of an event.
Now the data of an event may be replaced by a reference to a block that contains its position. Nothing else in the row
changes.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0015"
down_revision = "0014"

# Finds the database roles with a privilege on the table `events`. They also need it on the new table.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'events' AND privilege_type = :privilege AND grantee NOT IN (current_user, 'PUBLIC')"
)

_REFUSED = " BEGIN SELECT RAISE(ABORT, 'the log is append-only: {what} of {table} refused'); END"
_EVENTS = "CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events{condition}" + _REFUSED.format(
    what="UPDATE", table="events"
)
_IN_A_BLOCK = (
    "NEW.position IS OLD.position AND NEW.commit_id IS OLD.commit_id AND NEW.stream IS OLD.stream"
    " AND NEW.version IS OLD.version AND NEW.command IS OLD.command AND NEW.type IS OLD.type"
    " AND NEW.shape IS OLD.shape AND NEW.at IS OLD.at AND NEW.actor IS OLD.actor AND NEW.cause IS OLD.cause"
    " AND NEW.body_hash IS OLD.body_hash"
    " AND substr(OLD.data, 1, 1) IS NOT '@' AND EXISTS (SELECT 1 FROM data_blocks b"
    " WHERE b.first_position = CAST(substr(NEW.data, 2) AS INTEGER) AND NEW.data IS '@' || b.first_position"
    " AND NEW.position BETWEEN b.first_position AND b.last_position)"
)
_BLOCK = "CREATE TRIGGER data_blocks_refuse_{verb} BEFORE {event} ON data_blocks{condition}"
_OVERLAPS = " WHEN NEW.first_position <= (SELECT last_position FROM data_blocks ORDER BY first_position DESC LIMIT 1)"
_SQLITE_UPGRADE = (
    "DROP TRIGGER events_refuse_update",
    _EVENTS.format(condition=f" WHEN NOT ({_IN_A_BLOCK})"),
    _BLOCK.format(verb="insert", event="INSERT", condition=_OVERLAPS)
    + _REFUSED.format(what="INSERT over a row", table="data_blocks"),
    *(
        _BLOCK.format(verb=verb.lower(), event=verb, condition="") + _REFUSED.format(what=verb, table="data_blocks")
        for verb in ("UPDATE", "DELETE")
    ),
)
_SQLITE_DOWNGRADE = ("DROP TRIGGER events_refuse_update", _EVENTS.format(condition=""), "DROP TABLE data_blocks")

_REFUSE_UPDATE = """CREATE FUNCTION refuse_changed_event() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    other boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT 1 FROM changed n FULL JOIN original o ON o.position = n.position'
        ' LEFT JOIN %I.data_blocks b'
        ' ON b.first_position = CASE WHEN n.data ~ ''^@[0-9]{1,18}$'' THEN substr(n.data, 2)::bigint END'
        ' AND n.position BETWEEN b.first_position AND b.last_position'
        ' WHERE b.first_position IS NULL OR n.data <> ''@'' || b.first_position OR left(o.data, 1) = ''@'''
        ' OR (o.commit_id, o.stream, o.version, o.command, o.type, o.shape, o.at, o.actor, o.cause, o.body_hash)'
        ' IS DISTINCT FROM'
        ' (n.commit_id, n.stream, n.version, n.command, n.type, n.shape, n.at, n.actor, n.cause, n.body_hash))',
        TG_TABLE_SCHEMA
    ) INTO other;
    IF other THEN
        RAISE EXCEPTION 'the log is append-only: UPDATE of % refused', TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$"""
_CHANGE = (
    "CREATE TRIGGER {table}_refuse_change BEFORE {update}DELETE OR TRUNCATE ON {table}"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
)
_ALWAYS = "ALTER TABLE {0} ENABLE ALWAYS TRIGGER {0}_{1}"
_POSTGRES_UPGRADE = (
    "ALTER TABLE data_blocks ALTER COLUMN body SET STORAGE EXTERNAL",
    _REFUSE_UPDATE,
    "DROP TRIGGER events_refuse_change ON events",
    _CHANGE.format(table="events", update=""),
    _ALWAYS.format("events", "refuse_change"),
    (
        "CREATE TRIGGER events_refuse_update AFTER UPDATE ON events"
        " REFERENCING OLD TABLE AS original NEW TABLE AS changed"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_changed_event()"
    ),
    _ALWAYS.format("events", "refuse_update"),
    _CHANGE.format(table="data_blocks", update="UPDATE OR "),
    _ALWAYS.format("data_blocks", "refuse_change"),
)
_POSTGRES_DOWNGRADE = (
    "DROP TRIGGER events_refuse_update ON events",
    "DROP TRIGGER events_refuse_change ON events",
    "DROP TABLE data_blocks",
    "DROP FUNCTION refuse_changed_event()",
    _CHANGE.format(table="events", update="UPDATE OR "),
    _ALWAYS.format("events", "refuse_change"),
)


def upgrade() -> None:
    """Add the table, and replace the trigger. On Postgres, grant access to the users of `events`."""
    op.create_table(
        "data_blocks",
        sa.Column(
            "first_position", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("first_position", name=op.f("pk_data_blocks")),
    )
    bind = op.get_bind()
    _run(_POSTGRES_UPGRADE, _SQLITE_UPGRADE)
    if bind.dialect.name == "postgresql":
        quote = bind.dialect.identifier_preparer.quote_identifier
        for privilege in ("SELECT", "INSERT"):
            for role in bind.execute(_USERS, {"privilege": privilege}).scalars().all():
                bind.exec_driver_sql(f"GRANT {privilege} ON data_blocks TO {quote(role)}")


def downgrade() -> None:
    """Remove the table. If it contains a block, raise an error instead."""
    count: int = op.get_bind().execute(sa.text("SELECT count(*) FROM data_blocks")).scalar_one()
    if count:
        raise CommandError(
            f"the data of events is stored in {count} blocks, which revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
    _run(_POSTGRES_DOWNGRADE, _SQLITE_DOWNGRADE)


def _run(on_postgres: tuple[str, ...], on_sqlite: tuple[str, ...]) -> None:
    bind = op.get_bind()
    for statement in on_postgres if bind.dialect.name == "postgresql" else on_sqlite:
        # `op.execute` is not used, because it would interpret ":name" and "%" in the statements.
        bind.exec_driver_sql(statement)
