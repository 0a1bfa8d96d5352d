"""Allow the removal of bodies and blobs that an event of the stream `store` ordered.

A body is the payload of an event. A blob is a large value that is stored once under its hash. A trigger refuses to
delete a body unless an event ordered its removal. Another refuses to delete blobs unless the last event of the log is
`store.blobs_dropped`.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0011"
down_revision = "0010"

_BODIES = (
    "CREATE TRIGGER bodies_refuse_delete BEFORE DELETE ON bodies WHEN NOT EXISTS (SELECT 1 FROM dropped d"
    " JOIN events e ON e.position = d.event_position{condition} WHERE d.position = OLD.position)"
    " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of bodies refused'); END"
)
_BLOBS = (
    "CREATE TRIGGER blobs_refuse_delete BEFORE DELETE ON blobs{condition}"
    " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of blobs refused'); END"
)
_SQLITE_DROPS = ("DROP TRIGGER bodies_refuse_delete", "DROP TRIGGER blobs_refuse_delete")
_SQLITE_UPGRADE = (
    *_SQLITE_DROPS,
    _BODIES.format(condition=" AND e.type IN ('body.dropped', 'store.bodies_dropped')"),
    _BLOBS.format(
        condition=" WHEN NOT ((SELECT type FROM events ORDER BY position DESC LIMIT 1) IS 'store.blobs_dropped')"
    ),
)
_SQLITE_DOWNGRADE = (
    *_SQLITE_DROPS,
    _BODIES.format(condition=" AND e.type = 'body.dropped'"),
    _BLOBS.format(condition=""),
)

_REFUSE_UNORDERED = """CREATE OR REPLACE FUNCTION refuse_unordered_delete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept bigint;
BEGIN
    EXECUTE format(
        'SELECT g.position FROM gone g WHERE NOT EXISTS (SELECT 1 FROM %1$I.dropped d'
{condition}
        ' WHERE d.position = g.position) LIMIT 1',
        TG_TABLE_SCHEMA
    ) INTO kept;
    IF kept IS NOT NULL THEN
        RAISE EXCEPTION 'the log is append-only: DELETE of % refused: no event ordered position % dropped',
            TG_TABLE_NAME, kept USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$"""
_REFUSE_BLOBS = """CREATE FUNCTION refuse_unordered_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ordered boolean;
BEGIN
    EXECUTE format(
        'SELECT e.type = ''store.blobs_dropped'' FROM %I.events e ORDER BY e.position DESC LIMIT 1', TG_TABLE_SCHEMA
    ) INTO ordered;
    IF ordered IS NOT TRUE THEN
        RAISE EXCEPTION 'the log is append-only: DELETE of % refused: the last event does not order it',
            TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$"""
_CHANGE = (
    "CREATE TRIGGER blobs_refuse_change BEFORE UPDATE{delete} OR TRUNCATE ON blobs"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
)
_ALWAYS = "ALTER TABLE blobs ENABLE ALWAYS TRIGGER "
_POSTGRES_UPGRADE = (
    _REFUSE_UNORDERED.replace(
        "{condition}",
        "        ' JOIN %1$I.events e ON e.position = d.event_position'\n"
        "        ' AND e.type IN (''body.dropped'', ''store.bodies_dropped'')'",
    ),
    _REFUSE_BLOBS,
    "DROP TRIGGER blobs_refuse_change ON blobs",
    _CHANGE.format(delete=""),
    _ALWAYS + "blobs_refuse_change",
    (
        "CREATE TRIGGER blobs_refuse_delete AFTER DELETE ON blobs"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_unordered_blobs()"
    ),
    _ALWAYS + "blobs_refuse_delete",
)
_POSTGRES_DOWNGRADE = (
    _REFUSE_UNORDERED.replace(
        "{condition}", "        ' JOIN %1$I.events e ON e.position = d.event_position AND e.type = ''body.dropped'''"
    ),
    "DROP TRIGGER blobs_refuse_delete ON blobs",
    "DROP FUNCTION refuse_unordered_blobs()",
    "DROP TRIGGER blobs_refuse_change ON blobs",
    _CHANGE.format(delete=" OR DELETE"),
    _ALWAYS + "blobs_refuse_change",
)


def upgrade() -> None:
    """Replace the triggers."""
    _run(_POSTGRES_UPGRADE, _SQLITE_UPGRADE)


def downgrade() -> None:
    """Restore the triggers. If the log contains an event that ordered a removal, raise an error instead."""
    query = sa.text("SELECT count(*) FROM events WHERE type IN ('store.bodies_dropped', 'store.blobs_dropped')")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"the log contains {count} events that revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
    _run(_POSTGRES_DOWNGRADE, _SQLITE_DOWNGRADE)


def _run(on_postgres: tuple[str, ...], on_sqlite: tuple[str, ...]) -> None:
    bind = op.get_bind()
    for statement in on_postgres if bind.dialect.name == "postgresql" else on_sqlite:
        # `op.execute` is not used, because it would interpret ":name" and "%" in the statements.
        bind.exec_driver_sql(statement)
