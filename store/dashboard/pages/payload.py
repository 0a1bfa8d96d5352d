"""Pages that remove payload: by a policy, by a text, or of single events.

Payload that a policy selects can also be moved into an archive. The pages count and search. Each removal runs in its
own process, and the admin page shows its result.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from store.dashboard.exclusive import Exclusive
from store.dashboard.page import Done, PageContent, Pages
from store.dashboard.pages.admin import OPERATION_TITLES, key_partition, scheduler_of
from store.dashboard.pages.runs import found_rollout
from store.dashboard.request import PageRequest
from store.db.queries import log_list
from store.errors import Conflict, Forbidden, Invalid
from store.models import RolloutMode
from store.operations.choices import Redaction, Search
from store.operations.policy import FINISHED, RetentionPolicy
from store.operations.requested import MoveToArchive, RemoveByPolicy, RemoveByText, RemoveEvents, RequestedRemoval
from store.runtime.clock import MICROSECONDS, system_clock

logger = logging.getLogger("store.dashboard")

pages = Pages()

SEARCHED_AT_MOST: Final = 200_000
"""The maximum number of events in a log that a page searches. A larger log is searched with the command line."""
SEARCHED_BYTES_AT_MOST: Final = 1_000_000_000
"""The maximum size of a database that a page searches."""
COUNTED_AT_MOST: Final = 2_000_000
"""The maximum number of events in a log for which a page counts the payload that a policy selects."""

_MODES: Final[tuple[RolloutMode, ...]] = ("train", "val", "test")
_CHOICES: Final = {
    "everything": "all payload of the rollout, notes included",
    "input": "the input, and metadata that was recorded with it",
    "metadata": "the metadata, and an input that was recorded with it",
    "span": "the spans with this id, in every attempt",
    "event": "the event with this number",
}
"""The choices of payload of a rollout, with their labels in the form."""
_CONDITIONS: Final = ("older_than_days", "status", "mode", "group", "label", "without_label", "keep_last", "max_mb")
_DAY_SECONDS: Final = 86_400.0
_MB: Final = 1_000_000
_WAIT_SECONDS: Final = 5.0
"""The maximum time for which a page waits for the end of a removal.

Afterwards, the user finds the result on the admin page.
"""
_SHOWN: Final = 100
"""The maximum number of events with the searched text that a page shows."""
_VALUES: Final = 10
_MOST_DAYS: Final = 36_500
_MOST_MB: Final = 1_000_000_000
_ARCHIVE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.archive")
"""The names of archives. They contain no path, and no backup has such a name."""

_FORGET: Final = "run `rollbook forget --match TEXT` on the machine of the database"

_counting = Exclusive("a count of payload")
_searching = Exclusive("a search")


@pages.get("/ui/admin/payload", role="admin")
async def payload(request: PageRequest) -> PageContent:
    """Show the forms that remove payload. With conditions of a policy, also count the payload that the policy selects.

    Raises:
        Conflict: the log is too large for a page, or a count is already running.
    """
    form = {name: request.one(name) for name in _CONDITIONS if name not in {"status", "mode"}}
    form |= {"status": _split(request, "status"), "mode": _split(request, "mode")}
    policy, report, refused = None, None, None
    scheduler = scheduler_of(request)
    if any(form.values()):
        try:
            policy = _policy(request)
        except Invalid as error:
            refused = str(error)
    if policy is not None and not _is_in_memory(request):
        # This import is here because the package imports the drivers of all databases, and most servers never use it.
        from store.operations import remove_payload

        summary = await request.store.core.look(log_list.log_summary)
        if summary.events > COUNTED_AT_MOST:
            reason = f"the log has {summary.events:,} events, and a page counts at most {COUNTED_AT_MOST:,}"
            raise Conflict(reason, "run `rollbook retention` or `rollbook archive` on the machine of the database")
        with _counting.on(request.store):
            report = await remove_payload(_url(request), policy)
    values = {"policy": None if policy is None else str(policy), "report": report, "refused": refused}
    hidden = {
        "form": form,
        "fields": {name: "\n".join(_split(request, name)) for name in _CONDITIONS if _split(request, name)},
        "statuses": FINISHED,
        "modes": _MODES,
        "is_able": _is_able(request),
        "archive": _archive_name(request.partition),
        "has_archives": scheduler is not None and scheduler.schedule.archive_directory is not None,
        "is_bound": key_partition(request) is not None,
    }
    return PageContent("admin_payload.html", values, "Remove payload", 422 if refused else 200, hidden=hidden)


@pages.post("/ui/admin/payload/remove", role="admin")
async def remove_by_policy(request: PageRequest) -> Done:
    """Remove the payload that a policy selects.

    Raises:
        Invalid: a condition is invalid, or there is no condition.
        Conflict: the server runs no operations, another removal is running, or this removal failed.
    """
    return await _remove(request, RemoveByPolicy(policy=_policy(request)))


@pages.post("/ui/admin/payload/archive", role="admin")
async def archive(request: PageRequest) -> Done:
    """Move the payload that a policy selects into a file in the directory for archives.

    Raises:
        Invalid: a condition or the name of the file is invalid.
        Conflict: the server runs no operations or has no directory for archives, another move is running, or this move
            failed.
        Forbidden: the visitor's key is valid for one partition only.
    """
    if key_partition(request) is not None:
        raise Forbidden("only a key for all partitions may write a file on the server")
    scheduler = scheduler_of(request)
    directory: Path | None = None if scheduler is None else scheduler.schedule.archive_directory
    if directory is None:
        raise Conflict(
            "this server has no directory for archives", "start it with --archive-dir, or run `rollbook archive`"
        )
    name = request.one("file").strip()
    if not _ARCHIVE.fullmatch(name):
        raise Invalid("file", "use letters, digits, '.', '_' and '-', and end the name with .archive")
    return await _remove(request, MoveToArchive(policy=_policy(request), file=directory / name))


def _policy(request: PageRequest) -> RetentionPolicy:
    days = _number(request, "older_than_days", _MOST_DAYS)
    if days == 0:
        raise Invalid("older_than_days", "must be more than 0")
    megabytes = _number(request, "max_mb", _MOST_MB)
    return RetentionPolicy.of(
        older_than=None if days is None else days * _DAY_SECONDS,
        statuses=_lines(request, "status"),
        modes=_lines(request, "mode"),
        groups=_lines(request, "group"),
        labels=_lines(request, "label"),
        without_labels=_lines(request, "without_label"),
        keep_last=request.maybe_whole("keep_last", least=1),
        max_bytes=None if megabytes is None else round(megabytes * _MB),
    )


def _lines(request: PageRequest, name: str) -> tuple[str, ...]:
    """Return the values of a parameter. A text with several lines is several values.

    Raises:
        Invalid: there are too many values.
    """
    lines = _split(request, name)
    if len(lines) > _VALUES:
        raise Invalid(name, f"give at most {_VALUES} values")
    return lines


def _split(request: PageRequest, name: str) -> tuple[str, ...]:
    return tuple(line.strip() for text in request.several(name) for line in text.splitlines() if line.strip())


def _number(request: PageRequest, name: str, most: int) -> float | None:
    text = request.one(name).strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise Invalid(name, f"{text[:80]!r} is not a number") from None
    if not 0 <= number <= most:
        raise Invalid(name, f"must be between 0 and {most:,}")
    return number


@pages.post("/ui/admin/payload/search", role="admin")
async def search(request: PageRequest) -> PageContent:
    """Show the events whose payload contains a text.

    The text is not a part of the address of this page, so the address can be logged.

    Raises:
        Invalid: the text is too short or too long.
        Conflict: the log is too large for a page, a search is already running, or the store is in memory.
    """
    # This import is here because the package imports the drivers of all databases, and most servers never use it.
    from store.operations import forget

    sought = _search(request)
    if _is_in_memory(request):
        raise Conflict("the store of this server is in memory, and payload is never removed from it", "use a database")
    summary = await request.store.core.look(log_list.log_summary)
    if summary.events > SEARCHED_AT_MOST:
        reason = f"the log has {summary.events:,} events, and a page searches at most {SEARCHED_AT_MOST:,}"
        raise Conflict(reason, _FORGET)
    if summary.size_bytes > SEARCHED_BYTES_AT_MOST:
        reason = (
            f"the database has {summary.size_bytes:,} bytes, and a page searches at most {SEARCHED_BYTES_AT_MOST:,}"
        )
        raise Conflict(reason, _FORGET)
    with _searching.on(request.store):
        report = await forget(_url(request), sought)
    values = {
        "report": report.model_copy(update={"matches": report.matches[:_SHOWN], "kept": report.kept[:_SHOWN]}),
        "matches": len(report.matches),
        "kept": len(report.kept),
    }
    hidden = {"search": sought, "is_able": _is_able(request), "rollout_of": _rollout_of}
    return PageContent("admin_payload_search.html", values, "Search payload", hidden=hidden)


@pages.post("/ui/admin/payload/forget", role="admin")
async def remove_by_text(request: PageRequest) -> Done:
    """Remove the payload of the events that contain a text.

    Raises:
        Invalid: the text or the reason is invalid.
        Conflict: the server runs no operations, another removal by a text is running, or this removal failed.
    """
    removal = RemoveByText(search=_search(request), reason=_reason(request), rewrite=bool(request.one("rewrite")))
    return await _remove(request, removal)


def _search(request: PageRequest) -> Search:
    return Search.of(text=request.one("text"), ignore_case=bool(request.one("ignore_case")))


def _rollout_of(stream: str) -> str | None:
    kind, _, rollout_id = stream.partition("/")
    return rollout_id if kind == "rollout" else None


@pages.get("/ui/rollouts/{rollout_id}/payload", role="admin")
async def events(request: PageRequest) -> PageContent:
    """Show the form that removes payload of a rollout. The parameters `span` and `event` are defaults of the form."""
    rollout = await found_rollout(request, request.ids["rollout_id"])
    span, event = request.one("span"), request.maybe_whole("event", least=1)
    values = {
        "rollout_id": rollout.rollout_id,
        "choice": "span" if span else "event" if event else "everything",
        "span": span,
        "event": event,
    }
    hidden = {"choices": _CHOICES, "is_able": _is_able(request)}
    return PageContent("rollout_payload.html", values, "Remove payload", hidden=hidden)


@pages.post("/ui/rollouts/{rollout_id}/payload", role="admin")
async def remove_events(request: PageRequest) -> Done:
    """Remove payload of a rollout.

    Raises:
        NotFound: there is no such rollout.
        Invalid: the choice or the reason is invalid.
        Conflict: the server runs no operations, another removal of events is running, or this removal failed.
    """
    rollout = await found_rollout(request, request.ids["rollout_id"])
    choice = request.among("choice", tuple(_CHOICES), "")
    span = (request.one("span").strip() or None) if choice == "span" else None
    event = request.maybe_whole("event", least=1) if choice == "event" else None
    if choice == "span" and span is None:
        raise Invalid(choice, "give the id of the span")
    if choice == "event" and event is None:
        raise Invalid(choice, "give the number of the event")
    redaction = Redaction.of(
        reason=_reason(request),
        everything=choice == "everything",
        input=choice == "input",
        metadata=choice == "metadata",
        span_id=span,
        event=event,
    )
    removal = RemoveEvents(rollout_id=rollout.rollout_id, redaction=redaction, rewrite=bool(request.one("rewrite")))
    return await _remove(request, removal, request.url("rollouts", rollout.rollout_id))


async def _remove(request: PageRequest, removal: RequestedRemoval, page: str | None = None) -> Done:
    """Start a removal. Redirect to `page` if the removal ends within `_WAIT_SECONDS`, otherwise to the admin page."""
    scheduler = scheduler_of(request)
    if scheduler is None:
        raise Conflict(
            "this server cannot remove payload; a removal needs `rollbook serve` with a database"
            " and without --read-only",
            "use `rollbook retention`, `archive`, `redact` or `forget`",
        )
    title, actor = OPERATION_TITLES[removal.operation], request.visitor.actor
    logger.info("%s requested the operation %s of %s", actor, removal.operation, request.partition)
    outcome = await scheduler.remove(request.store, request.partition, removal, actor, wait_seconds=_WAIT_SECONDS)
    if outcome is None:
        return Done(request.url("admin"), f"{title}: started. The result appears below.")
    if outcome.state == "failed":
        raise Conflict(f"{title}: {outcome.detail}", "the removal can be requested again")
    if outcome.state == "skipped":
        raise Conflict(f"{title}: another process runs such a removal or has just run one", "request it again later")
    # The message is sent in a cookie, so it must not contain names from the policy.
    return Done(page or request.url("admin"), f"{title}: done. The page Admin shows the result.")


def _reason(request: PageRequest) -> str:
    reason = request.one("reason").strip()
    if not 1 <= len(reason) <= 200:
        raise Invalid("reason", "give a reason of at most 200 characters; the log keeps it")
    return reason


def _url(request: PageRequest) -> str:
    return request.store.core.dialect.url.text


def _is_in_memory(request: PageRequest) -> bool:
    return request.store.core.dialect.url.scheme == "memory"


def _is_able(request: PageRequest) -> bool:
    """Return whether this server removes payload for this visitor."""
    return scheduler_of(request) is not None and request.may("admin")


def _archive_name(partition: str) -> str:
    """Return the suggested name of an archive: the partition and the time."""
    return f"{partition}-{datetime.fromtimestamp(system_clock() / MICROSECONDS, UTC):%Y%m%dT%H%M%SZ}.archive"
