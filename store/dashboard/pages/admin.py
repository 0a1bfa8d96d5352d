"""The admin page: API keys, operations, partitions, and facts about the database."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, Protocol, TypeVar

from store.dashboard.page import Done, PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.queries import log_list
from store.db.queries.operation_runs import Operation, OperationRun
from store.db.schema import history, partitions
from store.errors import Conflict, Forbidden, Invalid, NotFound, StoreError
from store.operations.requested import RequestedRemoval
from store.operations.run import RunOutcome
from store.operations.schedule import UNCONFIGURED, Schedule, ScheduledOperation
from store.runtime.clock import MICROSECONDS, system_clock
from store.sql.api_keys import ROLES, Key, Keys, Role
from store.sql.store import SQLStore

logger = logging.getLogger("store.dashboard")

pages = Pages()
T = TypeVar("T")

LIFETIMES: Final = {"": "never", "1": "1 day", "7": "7 days", "30": "30 days", "90": "90 days", "365": "1 year"}
"""The lifetimes that the form for a new key offers, by number of days."""
DELAYS: Final = {"": "now", "3600": "in one hour", "86400": "in one day"}
"""The choices in the form that makes keys required: the delay in seconds, and its text."""
_ROLE_DESCRIPTIONS: Final[dict[Role, str]] = {
    "reader": "reads everything",
    "runner": "runs queued rollouts",
    "algorithm": "enqueues, cancels and re-runs",
    "admin": "all of these; also manages keys and verifies the log",
}
OPERATION_TITLES: Final[dict[Operation, str]] = {
    "verify": "Verify everything",
    "verify_sample": "Verify a sample",
    "backup": "Back up",
    "retention": "Remove payload on schedule",
    "compress": "Compress events",
    "remove": "Remove payload by a policy",
    "archive": "Move payload into an archive",
    "redact": "Remove payload of events",
    "forget": "Remove payload that contains a text",
}
"""The name of each operation on the pages."""
_STARTABLE: Final[tuple[Operation, ...]] = ("verify", "verify_sample", "backup", "compress")
"""The operations that the page can start. Payload that was removed cannot be restored, so no button removes it."""
_DAY: Final = 86_400
_SHOWN: Final = 500


@pages.get("/ui/admin", role="admin")
async def admin(request: PageRequest) -> PageContent:
    """Show API keys, partitions, and facts about the database."""
    shows_all = request.among("all", ("0", "1"), "0") == "1"
    keys = await _keys(request)
    rows = [key for key in keys or () if shows_all or key["state"] == "active"]
    summary = await request.store.core.look(log_list.log_summary)
    operations = await _operations(request)
    values = {
        "takes_keys": keys is not None,
        "enforced_at": None if keys is None else await _enforced_at(request),
        "keys": rows[-_SHOWN:],
        "ended": sum(key["state"] != "active" for key in keys or ()),
        "all": shows_all,
        "partitions": await _partitions(request),
        "whole": summary,
        "quota": _quota(request, summary),
        "schema": history.HEAD,
        "versions": {"rollbook": metadata.version("rollbook"), "python": platform.python_version()},
        "writer": _writer(request),
        "operations": operations,
    }
    hidden = {
        "roles": _ROLE_DESCRIPTIONS,
        "lifetimes": LIFETIMES,
        "bound_to": key_partition(request),
        "now": system_clock(),
        "delays": DELAYS,
        "titles": OPERATION_TITLES,
        "startable": [
            row["operation"]
            for row in operations or ()
            if row["operation"] in _STARTABLE and (row["next_at"] or row["operation"] in UNCONFIGURED)
        ],
    }
    return PageContent("admin.html", values, "Admin", hidden=hidden)


@pages.post("/ui/admin/keys", role="admin")
async def create_key(request: PageRequest) -> PageContent:
    """Create a key, and show it once."""
    role = _role(request)
    bound_to = key_partition(request)
    partition = bound_to or request.one("partition") or None
    days = request.among("days", list(LIFETIMES), "")
    name = request.one("name").strip() or None

    async def make(keys: Keys) -> tuple[Key, str]:
        expires = float(days) * _DAY if days else None
        return await keys.create(role, partition=partition, name=name, expires_seconds=expires)

    key, text = await _with_keys(request, make, create=True)
    logger.info("%s made the key %s with the role %s", request.visitor.actor, key.key_id, key.role)
    values = {"key": _shown(key, system_clock(), request), "is_enforced": await _enforced_at(request) is not None}
    # The secret is not a value of the page, so that the JSON version of the page does not contain it.
    return PageContent("admin_key.html", values, "New key", 201, hidden={"secret": text})


@pages.post("/ui/admin/enforce", role="admin")
async def enforce_keys(request: PageRequest) -> Done:
    """Require a key for every request, from now on or after a delay.

    Raises:
        Conflict: there is no active admin key for all partitions.
        Forbidden: the visitor's key is valid for one partition only.
    """
    if key_partition(request) is not None:
        raise Forbidden("only a key for all partitions may set the time from which keys are required")
    delay = request.among("delay", list(DELAYS), "")

    async def enforce(keys: Keys) -> int:
        now = system_clock()
        unrevoked = await keys.unrevoked()
        heads = [key for key in unrevoked if key.role == "admin" and key.partition is None and not key.has_expired(now)]
        if not heads:
            raise Conflict(
                "there is no active admin key for all partitions, so no visitor could open this page",
                "create a key with the role admin for all partitions first",
            )
        return await keys.enforce(in_seconds=float(delay or 0))

    await _with_keys(request, enforce)
    logger.info("%s set a rule: a key is required, starting %s", request.visitor.actor, DELAYS[delay])
    return Done(
        request.url("admin"),
        f"Every request needs a key, starting {DELAYS[delay]}. Servers apply this within five seconds.",
    )


@pages.post("/ui/admin/keys/{key_id}/revoke", role="admin")
async def revoke_key(request: PageRequest) -> Done:
    """Revoke a key permanently.

    Raises:
        Conflict: the key is the one with which this visitor is logged in.
        Forbidden: the visitor's key is valid for one partition only, and the key to revoke is not limited to that
            partition.
    """
    key_id = request.ids["key_id"]
    if key_id == _own_key(request):
        raise Conflict(
            f"{key_id} is the key that you are logged in with",
            "to revoke it, log in with another admin key, or use `rollbook keys revoke`",
        )
    bound_to = key_partition(request)

    async def end(keys: Keys) -> Key:
        key = next((key for key in await keys.all() if key.key_id == key_id), None)
        if key is None:
            raise NotFound("key", key_id, f"there is no key {key_id!r}")
        if bound_to is not None and key.partition != bound_to:
            raise Forbidden(f"the key {key_id} is not limited to the partition {bound_to!r}")
        return await keys.revoke(key_id)

    key = await _with_keys(request, end)
    logger.info("%s revoked the key %s", request.visitor.actor, key.key_id)
    return Done(request.url("admin"), f"The key {key.key_id} is revoked. Servers refuse it after at most five seconds.")


@pages.post("/ui/admin/operations/{operation}/run", role="admin")
async def run_operation(request: PageRequest) -> Done:
    """Start an operation now.

    Raises:
        Invalid: the operation is unknown, or cannot be started from a page.
        Conflict: this server runs no operations, the operation is running, or a setting that it needs is missing.
    """
    startable: dict[str, Operation] = {name: name for name in _STARTABLE}
    operation = startable.get(request.ids["operation"])
    if operation is None:
        raise Invalid("operation", f"must be one of {', '.join(_STARTABLE)}")
    scheduler = scheduler_of(request)
    if scheduler is None:
        reason = (
            "this server runs no operations; operations need `rollbook serve` with a database and without --read-only"
        )
        raise Conflict(reason, "run `rollbook verify` or `rollbook backup` instead")
    await scheduler.start(request.store, request.partition, operation)
    logger.info("%s started the operation %s of %s", request.visitor.actor, operation, request.partition)
    return Done(request.url("admin"), f"{OPERATION_TITLES[operation]}: started. The result appears below.")


async def _keys(request: PageRequest) -> list[dict[str, Any]] | None:
    """Return the keys that the visitor may see, the oldest first; None if the server uses no keys."""
    if not request.extra.get("keys_url"):
        return None
    try:
        keys = await _with_keys(request, Keys.all, read_only=True)
    except NotFound:
        # Keys are stored in the default partition, which does not exist yet.
        keys = []
    bound_to, now = key_partition(request), system_clock()
    return [_shown(key, now, request) for key in keys if bound_to is None or key.partition == bound_to]


async def _enforced_at(request: PageRequest) -> int | None:
    """Return the time in microseconds from which keys are required; None if keys are not required."""
    try:
        return (await _with_keys(request, Keys.rules, read_only=True)).enforced_at
    except NotFound:
        return None


async def _with_keys(
    request: PageRequest, work: Callable[[Keys], Awaitable[T]], *, create: bool = False, read_only: bool = False
) -> T:
    """Open the keys of the server's database, call `work` with them, and return the result.

    Raises:
        Invalid: the server uses no keys.
    """
    url = request.extra.get("keys_url")
    if not url:
        raise Invalid("keys", "this server uses no keys: its store is in memory, or it was started without keys")

    async def run() -> T:
        keys = await Keys.open(url, create=create, read_only=read_only)
        try:
            return await work(keys)
        finally:
            await keys.close()

    # Writing to SQLite blocks the event loop, so this runs in a thread with an event loop of its own.
    return await asyncio.to_thread(lambda: asyncio.run(run()))


def _shown(key: Key, now: int, request: PageRequest) -> dict[str, Any]:
    """Return the public fields of a key, without its hash."""
    return {
        "key_id": key.key_id,
        "role": key.role,
        "partition": key.partition,
        "name": key.name,
        "state": key.state(now),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "used_at": key.used_at,
        "is_own": key.key_id == _own_key(request),
    }


def _role(request: PageRequest) -> Role:
    role_name = request.among("role", ROLES, "reader")
    return next(role for role in ROLES if role == role_name)


def _own_key(request: PageRequest) -> str | None:
    return request.visitor.actor.removeprefix("key:") if request.visitor.has_key else None


def key_partition(request: PageRequest) -> str | None:
    """Return the only partition for which the visitor's key is valid; None if the key is valid for all partitions."""
    return request.extra.get("key_partition")


class OperationScheduler(Protocol):
    """The scheduler that runs the operations of a server."""

    schedule: Schedule

    async def operations(self, store: SQLStore) -> Sequence[ScheduledOperation]:
        """Return all operations of a partition that are scheduled, were run, or can be started."""
        ...

    async def start(self, store: SQLStore, partition: str, operation: Operation) -> None:
        """Start an operation now, and return without waiting for its end."""
        ...

    async def remove(
        self, store: SQLStore, partition: str, removal: RequestedRemoval, actor: str, *, wait_seconds: float
    ) -> RunOutcome | None:
        """Start a removal of payload, and return its outcome; return None if it is still running after the wait."""
        ...


def scheduler_of(request: PageRequest) -> OperationScheduler | None:
    """Return the scheduler of the server; None if the server runs no operations."""
    return request.extra.get("scheduler")


async def _operations(request: PageRequest) -> list[dict[str, Any]] | None:
    """Return the operations of the partition; None if this server runs no operations."""
    scheduler = scheduler_of(request)
    if scheduler is None:
        return None
    now = system_clock()
    return [_operation(operation, now) for operation in await scheduler.operations(request.store)]


def _operation(scheduled: ScheduledOperation, now: int) -> dict[str, Any]:
    last = scheduled.last or OperationRun(scheduled.operation)
    return {
        "operation": scheduled.operation,
        "state": None if scheduled.last is None else last.state(now),
        "attempted_at": last.attempted_at or None,
        "runner": last.runner,
        "error": last.error,
        "runs": last.runs,
        "failures": last.failures,
        "ended_at": last.ended_at,
        "seconds": None if last.ended_at is None else (last.ended_at - (last.started_at or 0)) / MICROSECONDS,
        "commit_id": last.commit_id,
        "differences": last.differences,
        "version": last.version,
        "detail": last.detail,
        "next_at": scheduled.next_at,
    }


async def _partitions(request: PageRequest) -> list[dict[str, Any]] | None:
    """Return the partitions of the database that the visitor may see; None if the partitions are unknown."""
    bound_to, url = key_partition(request), request.extra.get("keys_url")
    if bound_to is not None:
        return [_partition(request, bound_to)]
    if not url:
        return None
    try:
        return [_partition(request, name) for name in await partitions.names(url)]
    except StoreError as error:
        logger.warning("the partitions are not known: %s", error)
        return None


def _partition(request: PageRequest, name: str) -> dict[str, Any]:
    is_here = name == request.partition
    # The shown partition may be served at `/` as well as under its name, so its link keeps the prefix of this request.
    return {"name": name, "url": f"{request.base}/ui/" if is_here else f"/p/{name}/ui/", "is_here": is_here}


def _quota(request: PageRequest, summary: log_list.LogSummary) -> list[dict[str, Any]]:
    """Return the limits of the partition, and the number of events and bytes that the partition has."""
    limits: Mapping[str, int] = request.extra.get("limits", {})
    used = {"events": summary.events, "bytes": summary.size_bytes}
    return [{"kind": kind, "limit": limit, "used": used.get(kind)} for kind, limit in limits.items()]


def _writer(request: PageRequest) -> dict[str, Any]:
    statistics = request.store.core.writer_statistics
    waiting, waiting_bytes = request.store.core.inbox
    return {
        "commits": statistics.commits,
        "calls": statistics.calls,
        "events": statistics.events,
        "retries": statistics.retries,
        "waiting": waiting,
        "waiting_bytes": waiting_bytes,
    }
