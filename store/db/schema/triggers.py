"""Triggers that make the log append-only, and the check of triggers, unique keys and indexes.

The triggers refuse accidental changes and changes by other programs. The owner of the database can drop a trigger, so
`verify` compares the names and texts of the triggers with the expected names and texts. A trigger of another program
may change the effect of a statement, so `verify` reports every unexpected trigger on a table of the store.

A body may be deleted only if an event of the type `body.dropped` or `store.bodies_dropped` ordered the deletion and the
table `dropped` contains the body's position. Blobs may be deleted only while the last event of the log has the type
`store.blobs_dropped`. A body may be compressed again: its uncompressed length stays, and the store can read its new
codec. A dictionary may be emptied while no body is compressed with it. The data of an event may be replaced by a
reference to a block that contains its position. Triggers, unique keys and indexes are called guards.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Index, Table, UniqueConstraint

from store.db.dialect import Guard, Guards, Sql
from store.db.tables.core import metadata

__all__ = ["expected", "guards", "missing", "statements", "trigger_names"]

_ORDERED = (
    "SELECT 1 FROM dropped d JOIN events e ON e.position = d.event_position"
    " AND e.type IN ('body.dropped', 'store.bodies_dropped')"
    " WHERE d.position = OLD.position"
)
_COMPRESSED_AGAIN = (
    "NEW.position IS OLD.position AND NEW.raw_len IS OLD.raw_len AND NEW.codec IS NOT OLD.codec"
    " AND (NEW.codec IN (0, 1) OR EXISTS"
    " (SELECT 1 FROM dictionaries d WHERE d.codec = NEW.codec AND length(d.content) > 0))"
)
_EMPTIED = (
    "NEW.codec IS OLD.codec AND NEW.hash IS OLD.hash AND NEW.type IS OLD.type AND length(NEW.content) = 0"
    " AND NOT EXISTS (SELECT 1 FROM bodies b WHERE b.codec >= 16 AND b.codec = OLD.codec)"
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
_BLOBS_ORDERED = "(SELECT type FROM events ORDER BY position DESC LIMIT 1) IS 'store.blobs_dropped'"
# The conditions under which SQLite refuses to insert a row. REPLACE would delete a conflicting row without firing a
# trigger for DELETE, so a trigger for INSERT must refuse the new row. `max(position)` takes one step to the end of the
# table.
_TAKEN = {
    "commits": "NEW.commit_id <= (SELECT max(commit_id) FROM commits)",
    "events": (
        "NEW.position <= (SELECT max(position) FROM events)"
        " OR EXISTS (SELECT 1 FROM events WHERE stream = NEW.stream AND version = NEW.version)"
    ),
    "data_blocks": (
        "NEW.first_position <= (SELECT last_position FROM data_blocks ORDER BY first_position DESC LIMIT 1)"
    ),
    "bodies": "EXISTS (SELECT 1 FROM bodies WHERE position = NEW.position)",
    "dictionaries": "NEW.codec <= (SELECT max(codec) FROM dictionaries)",
    "blobs": "EXISTS (SELECT 1 FROM blobs WHERE hash = NEW.hash)",
    "dropped": "EXISTS (SELECT 1 FROM dropped WHERE position = NEW.position)",
}

_REFUSE_CHANGE = """
BEGIN
    RAISE EXCEPTION 'the log is append-only: % of % refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
"""
# The statement names the tables with the schema of the trigger, so that the search path of the session has no effect.
# The trigger fires after the statement, because one statement may delete a body and also insert the event and the row
# of `dropped`.
_REFUSE_UNORDERED = """
DECLARE
    kept bigint;
BEGIN
    EXECUTE format(
        'SELECT g.position FROM gone g WHERE NOT EXISTS (SELECT 1 FROM %1$I.dropped d'
        ' JOIN %1$I.events e ON e.position = d.event_position'
        ' AND e.type IN (''body.dropped'', ''store.bodies_dropped'')'
        ' WHERE d.position = g.position) LIMIT 1',
        TG_TABLE_SCHEMA
    ) INTO kept;
    IF kept IS NOT NULL THEN
        RAISE EXCEPTION 'the log is append-only: DELETE of % refused: no event ordered position % dropped',
            TG_TABLE_NAME, kept USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
"""
# Only a search could find the events that refer to a blob, so this trigger only checks the last event. `verify` finds a
# blob that was deleted although an event with payload refers to it.
_REFUSE_BLOBS = """
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
"""
# `changed` and `original` are the rows after and before the statement.
_REFUSE_CHANGED_EVENT = """
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
"""
_REFUSE_CHANGED_BODY = """
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
"""
_REFUSE_NEEDED_DICTIONARY = """
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
"""
_OLD_AND_NEW = " REFERENCING OLD TABLE AS original NEW TABLE AS changed"


class _Trigger(NamedTuple):
    """A trigger of Postgres, fired once per statement."""

    table: str
    name: str
    when: str
    """`BEFORE` or `AFTER`."""
    on: tuple[str, ...]
    """The kinds of statements that fire the trigger, such as `UPDATE`."""
    function: str
    source: str
    rest: str = ""
    """Further text of the statement that creates the trigger."""

    @property
    def type_bits(self) -> int:
        """The value of `pg_trigger.tgtype` for this trigger."""
        bits = {"INSERT": 4, "DELETE": 8, "UPDATE": 16, "TRUNCATE": 32}
        return (2 if self.when == "BEFORE" else 0) + sum(bits[event] for event in self.on)


_POSTGRES = (
    *(
        _Trigger(table, f"{table}_refuse_change", "BEFORE", on, "refuse_change", _REFUSE_CHANGE)
        for table, on in {
            "commits": ("UPDATE", "DELETE", "TRUNCATE"),
            "events": ("DELETE", "TRUNCATE"),
            "data_blocks": ("UPDATE", "DELETE", "TRUNCATE"),
            "bodies": ("TRUNCATE",),
            "dictionaries": ("DELETE", "TRUNCATE"),
            "blobs": ("UPDATE", "TRUNCATE"),
            "dropped": ("UPDATE", "DELETE", "TRUNCATE"),
        }.items()
    ),
    _Trigger(
        *("events", "events_refuse_update", "AFTER", ("UPDATE",)),
        *("refuse_changed_event", _REFUSE_CHANGED_EVENT, _OLD_AND_NEW),
    ),
    _Trigger(
        *("bodies", "bodies_refuse_delete", "AFTER", ("DELETE",)),
        *("refuse_unordered_delete", _REFUSE_UNORDERED),
        rest=" REFERENCING OLD TABLE AS gone",
    ),
    _Trigger(
        "bodies",
        "bodies_refuse_update",
        "AFTER",
        ("UPDATE",),
        "refuse_changed_body",
        _REFUSE_CHANGED_BODY,
        _OLD_AND_NEW,
    ),
    _Trigger(
        *("dictionaries", "dictionaries_refuse_update", "AFTER", ("UPDATE",)),
        *("refuse_needed_dictionary", _REFUSE_NEEDED_DICTIONARY, _OLD_AND_NEW),
    ),
    _Trigger("blobs", "blobs_refuse_delete", "AFTER", ("DELETE",), "refuse_unordered_blobs", _REFUSE_BLOBS),
)

_IN_SQLITE = """
SELECT 'trigger', tbl_name, name, sql FROM sqlite_master WHERE type = 'trigger'
UNION ALL
SELECT 'unique', t.name,
    (SELECT group_concat(name, ',')
        FROM (SELECT i.name FROM pragma_table_info(t.name, 'main') i WHERE i.pk > 0 ORDER BY i.pk)),
    ''
FROM sqlite_master t WHERE t.type = 'table'
UNION ALL
SELECT CASE l."unique" WHEN 1 THEN 'unique' ELSE 'index' END, t.name,
    (SELECT group_concat(name, ',') FROM (SELECT i.name FROM pragma_index_info(l.name, 'main') i ORDER BY i.seqno))
    || CASE l.partial WHEN 0 THEN '' ELSE
        (SELECT substr(d.sql, instr(d.sql, ' WHERE ')) FROM sqlite_master d WHERE d.type = 'index' AND d.name = l.name)
    END,
    ''
FROM sqlite_master t, pragma_index_list(t.name, 'main') l
WHERE t.type = 'table' AND l.origin <> 'pk'
"""
_IN_POSTGRES = """
SELECT 'trigger'::text, c.relname::text, t.tgname::text,
    t.tgenabled::text || ' ' || t.tgtype || CASE WHEN t.tgqual IS NULL AND t.tgattr = '' THEN '' ELSE ' conditional' END
    || p.prosrc
FROM pg_trigger t
    JOIN pg_class c ON c.oid = t.tgrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_proc p ON p.oid = t.tgfoid
WHERE n.nspname = $1::text AND NOT t.tgisinternal
UNION ALL
SELECT 'rule', c.relname::text, r.rulename::text, pg_get_ruledef(r.oid)
FROM pg_rewrite r
    JOIN pg_class c ON c.oid = r.ev_class
    JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND r.rulename <> '_RETURN'
UNION ALL
SELECT CASE WHEN i.indisunique THEN 'unique' ELSE 'index' END, c.relname::text,
    (SELECT string_agg(a.attname, ',' ORDER BY k.nth) FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (number, nth)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number)
    || coalesce(' WHERE ' || pg_get_expr(i.indpred, i.indrelid), ''),
    ''
FROM pg_index i
    JOIN pg_class c ON c.oid = i.indrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND i.indisvalid AND i.indimmediate AND i.indexprs IS NULL
"""


@cache
def statements(database: str) -> tuple[str, ...]:
    """Return the statements that create the triggers, for `sqlite` or `postgresql`. Names of tables are unqualified."""
    if database == "sqlite":
        return tuple(_sqlite_triggers().values())
    functions = dict.fromkeys((trigger.function, trigger.source) for trigger in _POSTGRES)
    return (
        *(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${source}$$" for name, source in functions),
        *(statement for trigger in _POSTGRES for statement in _create(trigger)),
    )


def trigger_names(database: str) -> tuple[str, ...]:
    """Return the names of all triggers of the log, for `sqlite` or `postgresql`."""
    return tuple(guard.name for guard in expected(database) if guard.kind == "trigger")


@cache
def expected(database: str) -> tuple[Guard, ...]:
    """Return the triggers, unique keys and indexes that an intact database has, for `sqlite` or `postgresql`."""
    if database == "sqlite":
        triggers = [
            Guard("trigger", name.partition("_refuse_")[0], name, text) for name, text in _sqlite_triggers().items()
        ]
    else:
        # "A" means that the trigger always fires, even in sessions that apply replicated changes.
        triggers = [Guard("trigger", t.table, t.name, f"A {t.type_bits}{t.source}") for t in _POSTGRES]
    keys = [
        Guard("unique", table.name, ",".join(key), "") for table in metadata.tables.values() for key in _keys(table)
    ]
    indexes = [
        Guard("index", table.name, ",".join(column.name for column in index.columns) + _condition(database, index), "")
        for table in metadata.tables.values()
        for index in sorted(table.indexes, key=lambda index: str(index.name))
        if not index.unique
    ]
    return (*triggers, *keys, *indexes)


def guards(database: str, schema: str | None = None) -> Guards:
    """Return the guards of a `sqlite` database, or of the schema `schema` of a `postgresql` database."""
    if database == "sqlite":
        return Guards(expected(database), Sql(_IN_SQLITE, (), {}))
    return Guards(expected(database), Sql(_IN_POSTGRES, ("schema",), {"schema": schema}))


def missing(guards: Guards, rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return one sentence for each guard that is missing or changed.

    `rows` are the rows that `guards.in_place` reads.
    """
    definitions = {guard[:3]: guard.definition for guard in map(Guard._make, rows)}
    differences = (_difference(guard, definitions) for guard in guards.expected)
    return [sentence for sentence in differences if sentence]


def foreign(guards: Guards, rows: Iterable[Sequence[Any]]) -> list[Guard]:
    """Return the unexpected triggers and rules on tables of the store. They may change the effect of any statement.

    `rows` are the rows that `guards.in_place` reads.
    """
    expected = {guard[:3] for guard in guards.expected}
    present = map(Guard._make, rows)
    return [
        guard
        for guard in present
        if guard.kind in {"trigger", "rule"} and guard.table in metadata.tables and guard[:3] not in expected
    ]


def _difference(guard: Guard, definitions: Mapping[tuple[str, str, str], str]) -> str | None:
    definition = definitions.get(guard[:3])
    if definition == guard.definition:
        return None
    if guard.kind == "unique":
        return f"table {guard.table}: ({guard.name.replace(',', ', ')}) is not unique any more"
    if guard.kind == "index":
        columns, where, condition = guard.name.partition(" WHERE ")
        return f"table {guard.table}: the index on ({columns.replace(',', ', ')}){where}{condition} is missing"
    state = "is missing" if definition is None else "was changed or disabled"
    return f"table {guard.table}: trigger {guard.name} {state}"


def _condition(database: str, index: Index) -> str:
    """Return the condition of a partial index as the database stores it; the empty text for another index."""
    condition = index.dialect_options["sqlite"]["where"]
    if condition is None:
        return ""
    text = condition.compile(compile_kwargs={"literal_binds": True, "include_table": False})
    return f" WHERE {text}" if database == "sqlite" else f" WHERE ({text})"


def _keys(table: Table) -> list[tuple[str, ...]]:
    unique = [constraint for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
    indexes = [index for index in table.indexes if index.unique]
    return [
        tuple(column.name for column in table.primary_key),
        *sorted(tuple(column.name for column in key.columns) for key in (*unique, *indexes)),
    ]


@cache
def _sqlite_triggers() -> dict[str, str]:
    texts: dict[str, str] = {}
    for table, taken in _TAKEN.items():
        conditions = {
            "insert": f" WHEN {taken}",
            "update": _CHANGEABLE.get(table, ""),
            "delete": _DELETABLE.get(table, ""),
        }
        for verb, condition in conditions.items():
            name = f"{table}_refuse_{verb}"
            refusal = f"the log is append-only: {_SQLITE_VERBS[verb]} of {table} refused"
            texts[name] = (
                f"CREATE TRIGGER {name} BEFORE {verb.upper()} ON {table}{condition}"
                f" BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            )
    return texts


# The tables whose rows may be changed, with the conditions under which SQLite refuses the change.
_CHANGEABLE = {
    "events": f" WHEN NOT ({_IN_A_BLOCK})",
    "bodies": f" WHEN NOT ({_COMPRESSED_AGAIN})",
    "dictionaries": f" WHEN NOT ({_EMPTIED})",
}
# The tables whose rows may be deleted, with the conditions under which SQLite refuses the deletion.
_DELETABLE = {"bodies": f" WHEN NOT EXISTS ({_ORDERED})", "blobs": f" WHEN NOT ({_BLOBS_ORDERED})"}
_SQLITE_VERBS = {"insert": "INSERT over a row", "update": "UPDATE", "delete": "DELETE"}


def _create(trigger: _Trigger) -> tuple[str, str]:
    when = f"{trigger.when} {' OR '.join(trigger.on)} ON {trigger.table}{trigger.rest}"
    return (
        f"CREATE TRIGGER {trigger.name} {when} FOR EACH STATEMENT EXECUTE FUNCTION {trigger.function}()",
        f"ALTER TABLE {trigger.table} ENABLE ALWAYS TRIGGER {trigger.name}",
    )
