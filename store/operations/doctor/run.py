"""All checks of a diagnosis, and the function that runs them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from store.db.url import passwords
from store.errors import StoreError
from store.operations.doctor import database, machine, postgres, server, sqlite
from store.operations.doctor.results import CheckResult, Diagnosis, Verdict, of_error, problem, skipped
from store.operations.doctor.target import POSTGRES, SERVER, SQLITE, Target

DEFAULT_PORT: Final = 4747
"""The default port of `rollbook serve`."""
_PATIENCE_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and the conditions under which it is made."""

    name: str
    run: Callable[[Target], Awaitable[Verdict]]
    kind: str | None = None
    """The kind of store that the check needs, as in `Target`; `database` for all kinds except servers; None for all."""
    needs: tuple[str, ...] = ()
    """The names of earlier checks. If one was skipped or found a problem, this check is skipped."""

    def concerns(self, target: Target) -> bool:
        """Return whether the check is made for a store of this kind."""
        return self.kind in {None, target.kind} or (self.kind == "database" and target.kind != SERVER)


_PORT: Final = Check("port", machine.check_port, "database")
CHECKS: Final = (
    Check("file", sqlite.check_file, SQLITE),
    Check("file system", sqlite.check_file_system, SQLITE),
    Check("connection", postgres.check_connection, POSTGRES),
    Check("server", server.check_answer, SERVER),
    Check("schema", database.check_schema, "database", ("file", "file system", "connection")),
    Check("SQLite version", sqlite.check_version, SQLITE),
    Check("permission", sqlite.check_permission, SQLITE, ("file",)),
    Check("write-ahead log", sqlite.check_write_ahead_log, SQLITE, ("file",)),
    Check("disk space", sqlite.check_disk_space, SQLITE, ("file",)),
    Check("Postgres server", postgres.check_server, POSTGRES, ("connection",)),
    Check("free connections", postgres.check_free_connections, POSTGRES, ("connection",)),
    Check("clock", postgres.check_clock, POSTGRES, ("connection",)),
    Check("timeouts", postgres.check_timeouts, POSTGRES, ("connection",)),
    Check("durability", postgres.check_durability, POSTGRES, ("connection",)),
    Check("role", postgres.check_role, POSTGRES, ("schema",)),
    Check("guards", database.check_guards, "database", ("schema",)),
    Check("sequences", database.check_sequences, "database", ("schema",)),
    Check("log and tables", database.check_counts, "database", ("schema",)),
    Check("last verification", database.check_last_verification, "database", ("schema",)),
    Check("time of the log", database.check_time, "database", ("schema",)),
    Check("running attempts", database.check_attempts, "database", ("schema",)),
    Check("heartbeats", database.check_heartbeats, "database", ("schema",)),
    Check("queue", database.check_queue, "database", ("schema",)),
    Check("server database", server.check_database, SERVER, ("server",)),
    Check("access", server.check_access, SERVER, ("server",)),
    Check("version", server.check_version, SERVER, ("access",)),
    Check("clock", server.check_clock, SERVER, ("server",)),
    Check("open files", machine.check_open_files),
    _PORT,
)
"""All checks, in the order in which they are made."""


async def diagnose(url: str, *, port: int | None = DEFAULT_PORT, api_key: str | None = None) -> Diagnosis:
    """Check a store and this machine, and return the results.

    The checks only read: no store is created or upgraded, and no overdue attempt is ended. A check that fails with an
    error is a problem, and the other checks still run. The results contain no passwords and no keys. The checks of the
    log are cheap and find only a part of all damage; `log.verify` finds all of it.

    Args:
        url: the URL of a SQLite file, a Postgres database or a server.
        port: the port that a server on this machine would use; None skips the check of the port.
        api_key: the key for a server; None if there is none.

    Raises:
        Invalid: the URL does not name a store, or is `memory://`; or no request can contain the key.
    """
    began = time.monotonic()
    target = Target.of(url, port=DEFAULT_PORT if port is None else port, api_key=api_key)
    secrets = passwords(target.url) | {target.api_key or ""} - {""}
    results: dict[str, CheckResult] = {}
    try:
        for check in CHECKS:
            if check.concerns(target) and (check is not _PORT or port is not None):
                verdict = await _verdict_of(check, target, results)
                remedy = None if verdict.remedy is None else _without(secrets, verdict.remedy)
                text = _without(secrets, verdict.text)
                results[check.name] = CheckResult(
                    name=check.name, outcome=verdict.outcome, found=text, remedy=remedy, problem=verdict.problem
                )
    finally:
        # A database that does not answer must not delay the results.
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await target.opened.aclose()
    return Diagnosis(db=target.url.shown, checks=list(results.values()), seconds=time.monotonic() - began)


async def _verdict_of(check: Check, target: Target, results: dict[str, CheckResult]) -> Verdict:
    for needed in check.needs:
        if needed in results and results[needed].outcome in {"problem", "skipped"}:
            return skipped(f"the check of the {needed} did not succeed")
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), target.store_errors():
            return await check.run(target)
    except StoreError as error:
        return of_error(error, target.option)
    except TimeoutError:
        text = f"the check did not end within {_PATIENCE_SECONDS:g} s"
        return problem(text, f"when the database is less busy, run: rollbook doctor {target.option}", "unavailable")
    except Exception as error:  # noqa: BLE001 (a damaged database may raise any error, and the other checks must run)
        return problem(f"the check failed with {type(error).__name__}: {error}", f"rollbook verify {target.option}")


def _without(secrets: Iterable[str], text: str) -> str:
    # A short password may be a part of an ordinary word, or of a longer password.
    for secret in sorted(secrets, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text
