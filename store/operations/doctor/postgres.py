"""Checks of a Postgres server, of its settings and of the rights of the role."""

from __future__ import annotations

import shlex
import time
from typing import Any, Final

from store.db.schema import postgres as schema
from store.db.tables.core import commits, events
from store.errors import Unavailable
from store.operations.doctor.machine import clocks
from store.operations.doctor.results import Verdict, ok, problem, warning
from store.operations.doctor.target import Target
from store.runtime import postgres_url

_CONNECTIONS_PER_PROCESS: Final = 10
"""Eight connections for reads, one for LISTEN and one for writes."""
_MOST_SKEW_SECONDS: Final = 1.0
_TIMEOUTS: Final = {
    "statement_timeout": 60_000,
    "lock_timeout": 0,
    "idle_in_transaction_session_timeout": 60_000,
    "transaction_timeout": 600_000,
    "idle_session_timeout": 600_000,
}
"""Settings, and the smallest harmless value of each in ms. 0: any value, because the store sets its own timeout."""
_DIRECT: Final = (
    "add the address of the database server to the URL: ?direct=postgresql://USER@HOST/DATABASE, percent-encoded"
)
_DURABLE: Final = ("synchronous_commit", "fsync", "full_page_writes")


async def check_connection(target: Target) -> Verdict:
    """Connect to the server, and check that no connection pooler changes the session."""
    try:
        target.connection = await target.opened.enter_async_context(schema.connected(target.dsn))
    except Unavailable as error:
        host, port = postgres_url.split(target.dsn).host
        command = f"pg_isready -h {shlex.quote(host)} -p {port}"
        return problem(error.reason, f"check the URL, and that the server runs: {command}", "unavailable")
    text = f"connected to the database {await _value(target, 'current_database()::text')}"
    if target.connection.get_server_pid() != await _value(target, "pg_backend_pid()"):
        return warning(f"{text} through a connection pooler, which may give each transaction another session", _DIRECT)
    return ok(text)


async def check_server(target: Target) -> Verdict:
    """Check the version, and whether the server is the primary."""
    text = f"Postgres {await _value(target, 'current_setting($1)', 'server_version')}"
    if await _value(target, "pg_is_in_recovery()"):
        return warning(f"{text} is a replica, which accepts no writes", "use the URL of the primary to write")
    if await _value(target, "current_setting($1)", "default_transaction_read_only") == "on":
        setting = "default_transaction_read_only = off"
        return warning(f"{text} makes transactions read-only by default", await _alter(target, setting))
    return ok(f"{text} is the primary")


async def check_free_connections(target: Target) -> Verdict:
    """Compare the number of connections with the maximum."""
    (row,) = await target.connection.fetch(
        "SELECT current_setting('max_connections')::int AS most,"
        " current_setting('superuser_reserved_connections')::int"
        " + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,"
        " (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used"
    )
    return free_connections(row["most"] - row["reserved"], row["used"])


def free_connections(most: int, used: int) -> Verdict:
    """Return the result for a server that allows `most` connections of ordinary roles and has `used` connections."""
    text = f"{used} of {most} connections are in use"
    if most - used < _CONNECTIONS_PER_PROCESS:
        return warning(
            f"{text}, and a process needs up to {_CONNECTIONS_PER_PROCESS}",
            "ALTER SYSTEM SET max_connections = …, then restart Postgres; or use pgbouncer",
        )
    return ok(text)


async def check_clock(target: Target) -> Verdict:
    """Compare the clock of this machine with the clock of the server."""
    before = time.time()
    server_time = await _value(target, "extract(epoch FROM clock_timestamp())::float8")
    return clocks(server_time, before, time.time(), _MOST_SKEW_SECONDS)


async def check_timeouts(target: Target) -> Verdict:
    """Check that no timeout ends the long reads and the idle connections of a store."""
    rows = await target.connection.fetch(
        "SELECT name, setting::bigint AS ms FROM pg_settings WHERE name = ANY($1::text[])", list(_TIMEOUTS)
    )
    short = {row["name"]: row["ms"] for row in rows if 0 < row["ms"] < _TIMEOUTS[row["name"]]}
    if short:
        settings = ", ".join(f"{name} = {value} ms" for name, value in sorted(short.items()))
        text = f"short timeouts end long reads such as verify, or idle connections: {settings}"
        return warning(text, await _alter(target, *(f"{name} = 0" for name in sorted(short))))
    return ok("no timeout ends the statements or connections of a store early")


async def check_durability(target: Target) -> Verdict:
    """Check that the server has written a commit to disk when it acknowledges the commit."""
    rows = await target.connection.fetch(
        "SELECT name FROM pg_settings WHERE name = ANY($1::text[]) AND setting = 'off'", list(_DURABLE)
    )
    off = sorted(row["name"] for row in rows)
    if not off:
        return ok("the server writes each commit to disk before it acknowledges the commit")
    text = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off, so a crash may lose acknowledged commits"
    if off == ["synchronous_commit"]:
        return warning(text, await _alter(target, "synchronous_commit = on"))
    remedy = "; ".join(f"ALTER SYSTEM SET {name} = on" for name in off)
    return warning(text, f"{remedy}; SELECT pg_reload_conf()")


async def check_role(target: Target) -> Verdict:
    """Check that the role may append to the log."""
    log = target.dialect.qualified
    (row,) = await target.connection.fetch(
        "SELECT current_user::text AS role, pg_has_role(c.relowner, 'USAGE') AS is_owner,"
        " has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
        "  AND has_table_privilege($2, 'INSERT') AND has_sequence_privilege($3, 'USAGE') AS can_append,"
        " has_table_privilege(c.oid, 'UPDATE') OR has_table_privilege(c.oid, 'DELETE') AS can_change"
        " FROM pg_class c WHERE c.oid = $1::regclass",
        *(log(events), log(commits), f'"{target.dialect.schema}".event_seq'),
    )
    role = row["role"]
    if not row["can_append"]:
        quoted = str(role).replace("'", "''")
        text = f"the role {role} can read the log, but cannot append to it"
        return problem(text, f"let the owner run: rollbook migrate {target.option} --app-role '{quoted}'")
    if row["is_owner"]:
        return ok(f"the role {role} owns the log, so the role could also change the log")
    if row["can_change"]:
        text = f"the role {role} may change and delete events"
        return warning(text, f'REVOKE UPDATE, DELETE, TRUNCATE ON {log(events)} FROM "{role}"')
    return ok(f"the role {role} can append to the log, and cannot change it")


async def _value(target: Target, expression: str, *args: object) -> Any:
    (row,) = await target.connection.fetch(f"SELECT {expression} AS value", *args)
    return row["value"]


async def _alter(target: Target, *settings: str) -> str:
    role = str(await _value(target, "current_user::text")).replace('"', '""')
    return "; ".join(f'ALTER ROLE "{role}" SET {setting}' for setting in settings)
