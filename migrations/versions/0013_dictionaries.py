"""Add the dictionaries with which bodies are compressed, and let a body be stored in another form.

A body is the payload of an event. Until this revision, a trigger refused every change of a stored body. Now a body may
be compressed again: its position and its uncompressed length do not change, and the new codec is one that can be read.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0013"
down_revision = "0012"

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# Finds the database roles with a privilege on the table `bodies`. They also need it on the new table.
_USERS = sa.text(
    "SELECT DISTINCT grantee FROM information_schema.table_privileges WHERE table_schema = current_schema()"
    " AND table_name = 'bodies' AND privilege_type = :privilege AND grantee NOT IN (current_user, 'PUBLIC')"
)

_REFUSED = " BEGIN SELECT RAISE(ABORT, 'the log is append-only: {verb} of {table} refused'); END"
_BODIES = "CREATE TRIGGER bodies_refuse_update BEFORE UPDATE ON bodies{condition}" + _REFUSED.format(
    verb="UPDATE", table="bodies"
)
_DICTIONARY = (
    "CREATE TRIGGER dictionaries_refuse_{verb} BEFORE {event} ON dictionaries{when}"
    " BEGIN SELECT RAISE(ABORT, 'the log is append-only: {what} of dictionaries refused'); END"
)
_SQLITE_UPGRADE = (
    "DROP TRIGGER bodies_refuse_update",
    _BODIES.format(
        condition=" WHEN NOT (NEW.position IS OLD.position AND NEW.raw_len IS OLD.raw_len"
        " AND NEW.codec IS NOT OLD.codec AND (NEW.codec IN (0, 1) OR EXISTS"
        " (SELECT 1 FROM dictionaries d WHERE d.codec = NEW.codec AND length(d.content) > 0)))"
    ),
    _DICTIONARY.format(
        verb="insert",
        event="INSERT",
        what="INSERT over a row",
        when=" WHEN NEW.codec <= (SELECT max(codec) FROM dictionaries)",
    ),
    _DICTIONARY.format(
        verb="update",
        event="UPDATE",
        what="UPDATE",
        when=" WHEN NOT (NEW.codec IS OLD.codec AND NEW.hash IS OLD.hash AND NEW.type IS OLD.type"
        " AND length(NEW.content) = 0"
        " AND NOT EXISTS (SELECT 1 FROM bodies b WHERE b.codec >= 16 AND b.codec = OLD.codec))",
    ),
    _DICTIONARY.format(verb="delete", event="DELETE", what="DELETE", when=""),
)
_SQLITE_DOWNGRADE = ("DROP TRIGGER bodies_refuse_update", "DROP TABLE dictionaries", _BODIES.format(condition=""))

_REFUSE_UPDATE = """CREATE FUNCTION refuse_changed_body() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    other boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT 1 FROM changed n FULL JOIN original o ON o.position = n.position'
        ' WHERE o.raw_len IS DISTINCT FROM n.raw_len OR o.codec = n.codec OR NOT (n.codec IN (0, 1) OR EXISTS'
        ' (SELECT 1 FROM %I.dictionaries d WHERE d.codec = n.codec AND octet_length(d.content) > 0)))',
        TG_TABLE_SCHEMA
    ) INTO other;
    IF other THEN
        RAISE EXCEPTION 'the log is append-only: UPDATE of % refused', TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$"""
_REFUSE_DICTIONARY = """CREATE FUNCTION refuse_needed_dictionary() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    other boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT 1 FROM changed n FULL JOIN original o ON o.codec = n.codec'
        ' WHERE o.hash IS DISTINCT FROM n.hash OR o.type IS DISTINCT FROM n.type OR octet_length(n.content) > 0'
        ' OR EXISTS (SELECT 1 FROM %I.bodies b WHERE b.codec >= 16 AND b.codec = n.codec))',
        TG_TABLE_SCHEMA
    ) INTO other;
    IF other THEN
        RAISE EXCEPTION 'the log is append-only: UPDATE of % refused', TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$"""
_TRANSITIONS = " REFERENCING OLD TABLE AS original NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION "
_CHANGE = (
    "CREATE TRIGGER bodies_refuse_change BEFORE {update}TRUNCATE ON bodies"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
)
_ALWAYS = "ALTER TABLE {0} ENABLE ALWAYS TRIGGER {0}_{1}"
_POSTGRES_UPGRADE = (
    "ALTER TABLE dictionaries ALTER COLUMN content SET STORAGE EXTERNAL",
    _REFUSE_UPDATE,
    _REFUSE_DICTIONARY,
    "DROP TRIGGER bodies_refuse_change ON bodies",
    _CHANGE.format(update=""),
    _ALWAYS.format("bodies", "refuse_change"),
    f"CREATE TRIGGER bodies_refuse_update AFTER UPDATE ON bodies{_TRANSITIONS}refuse_changed_body()",
    _ALWAYS.format("bodies", "refuse_update"),
    (
        "CREATE TRIGGER dictionaries_refuse_change BEFORE DELETE OR TRUNCATE ON dictionaries"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    ),
    _ALWAYS.format("dictionaries", "refuse_change"),
    f"CREATE TRIGGER dictionaries_refuse_update AFTER UPDATE ON dictionaries{_TRANSITIONS}refuse_needed_dictionary()",
    _ALWAYS.format("dictionaries", "refuse_update"),
)
_POSTGRES_DOWNGRADE = (
    "DROP TRIGGER bodies_refuse_update ON bodies",
    "DROP TRIGGER bodies_refuse_change ON bodies",
    "DROP TABLE dictionaries",
    "DROP FUNCTION refuse_changed_body()",
    "DROP FUNCTION refuse_needed_dictionary()",
    _CHANGE.format(update="UPDATE OR "),
    _ALWAYS.format("bodies", "refuse_change"),
)


def upgrade() -> None:
    """Add the table, and replace the triggers. On Postgres, grant access to the users of `bodies`."""
    op.create_table(
        "dictionaries",
        sa.Column("codec", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("type", text, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("trained_at", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("codec", name=op.f("pk_dictionaries")),
    )
    is_compressed = sa.text("codec >= 16")
    op.create_index(
        op.f("ix_bodies_codec"), "bodies", ["codec"], sqlite_where=is_compressed, postgresql_where=is_compressed
    )
    bind = op.get_bind()
    _run(_POSTGRES_UPGRADE, _SQLITE_UPGRADE)
    if bind.dialect.name == "postgresql":
        quote = bind.dialect.identifier_preparer.quote_identifier
        for privilege in ("SELECT", "INSERT"):
            for role in bind.execute(_USERS, {"privilege": privilege}).scalars().all():
                bind.exec_driver_sql(f"GRANT {privilege} ON dictionaries TO {quote(role)}")


def downgrade() -> None:
    """Remove the table. If a body is compressed with a dictionary, raise an error instead."""
    query = sa.text("SELECT count(*) FROM bodies WHERE codec > 1")
    count: int = op.get_bind().execute(query).scalar_one()
    if count:
        raise CommandError(
            f"{count} bodies are compressed with dictionaries, which revision {down_revision} cannot read;"
            f" restore a backup from before revision {revision}"
        )
    op.drop_index(op.f("ix_bodies_codec"), table_name="bodies")
    _run(_POSTGRES_DOWNGRADE, _SQLITE_DOWNGRADE)


def _run(on_postgres: tuple[str, ...], on_sqlite: tuple[str, ...]) -> None:
    bind = op.get_bind()
    for statement in on_postgres if bind.dialect.name == "postgresql" else on_sqlite:
        # `op.execute` is not used, because it would interpret ":name" and "%" in the statements.
        bind.exec_driver_sql(statement)
