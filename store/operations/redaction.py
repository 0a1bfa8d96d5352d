"""Redaction: removal of the payload of single events from the database and from its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from store.db.data_blocks import json_of
from store.db.dialect import Dialect, ReadSession, existing_store
from store.db.queries import log as log_queries
from store.db.queries import removal as removal_queries
from store.db.queries import runs as run_queries
from store.db.queries import scan
from store.db.queries.bodies import payload
from store.db.queries.removal import Payload
from store.db.schema.sealed import refuse_sealed
from store.errors import Corrupt, Invalid, NotFound
from store.models.enums import Frozen
from store.operations.choices import Redaction
from store.operations.compression import compression
from store.operations.damage import store_damage_reported
from store.operations.removal import blobs_without_event, database, remover
from store.runtime.clock import Clock
from store.runtime.loop_thread import run_in_thread
from store.verification.log_scan import REFERRING, names_of_blobs

POLICY = "redact"
"""The policy that the log records."""
_SHORTEST = 4
# A search of the file for more parts of removed bodies than this takes longer than to rewrite the file.
_MOST_REMAINS = 60
_SHORTEST_PART = 32
_LONGEST_IN_PAGE = 4096


class RedactedEvent(Frozen):
    """An event whose payload was removed."""

    number: int
    """The number of the event in the history of its rollout."""
    position: int
    type: str
    data: dict[str, Any]
    """The data that the log still contains: ids, names, numbers, the first 200 characters of a status message."""


class RedactionReport(Frozen):
    """The result of a redaction, or of its preview."""

    rollout_id: str
    is_applied: bool
    """Whether the payload was removed. False for a preview, which counts the payload that would be removed."""
    events: list[RedactedEvent]
    bodies: int
    """The number of bodies that this call deleted. Bodies that were removed before are not counted."""
    blobs: int
    """The number of blobs that this call deleted."""
    kept_blobs: int
    """The number of blobs with a part of this payload that are not deleted, because other events refer to them."""
    is_clean: bool
    """Whether the files no longer contain the deleted rows.

    False if a transaction still reads an old state of the database: repeat the call later.
    """


async def redact(
    url: str,
    rollout_id: str,
    redaction: Redaction,
    *,
    apply: bool = True,
    rewrite: bool = False,
    actor: str | None = None,
    clock: Clock | None = None,
) -> RedactionReport:
    """Remove the payload of events of a rollout, finished or not. The log records the actor and the reason.

    On SQLite, deleted bytes are overwritten, the write-ahead log is emptied, and the file is rewritten if a search
    still finds a part of the payload. On Postgres, the tables are vacuumed. If a call was stopped, the same call
    completes the work.

    Args:
        url: the URL of a SQLite file or a Postgres database.
        rollout_id: the id of the rollout.
        redaction: the choice of events, and the reason.
        apply: whether to remove the payload; with False, the call only lists the payload that it would remove.
        rewrite: whether to rewrite the file (SQLite) or the tables with payload (Postgres) in any case. This blocks
            writers, on Postgres readers too.
        actor: the name of the user who ordered the removal; the log records the name.
        clock: the clock of the store; the system's clock if None.

    Raises:
        NotFound: there is no store at the URL, no such rollout, or no such event with payload.
        Invalid: the reason contains a text of the payload, or the URL does not name a database.
        Incompatible: the store has an older schema; the message names the command that upgrades it.
        Corrupt: a table is damaged.
        ReadOnly: the database user may not delete payload.
        Unavailable: the database does not answer. The call can be repeated.
    """
    dialect = database(url, clock, read_only=not apply)
    async with store_damage_reported(url):
        return await run_in_thread(
            "rollbook redact", _run(dialect, rollout_id, redaction, apply=apply, rewrite=rewrite, actor=actor)
        )


async def _run(
    dialect: Dialect, rollout_id: str, redaction: Redaction, *, apply: bool, rewrite: bool, actor: str | None
) -> RedactionReport:
    # This check comes before `open`, because `open` may upgrade the file.
    await refuse_sealed(dialect.url)
    async with existing_store(dialect):
        async with dialect.read(snapshot=True) as session:
            chosen = await _chosen(session, rollout_id, redaction)
            referring = [event.position for event in chosen if event.type in REFERRING]
            names = {name for row in await scan.events_at(session, referring) for name in names_of_blobs(row)}
            bodies = await log_queries.bodies_at(session, [event.position for event in chosen])
            stored = Stored(bodies, await run_queries.blobs(session, sorted(names)))
        _check_reason(redaction.reason, [*stored.bodies.values(), *stored.blobs.values()])
        erased = Erased(len(stored.bodies), len(stored.blobs), 0, is_clean=True)
        if apply:
            erased = await erase_payload(dialect, chosen, stored, reason=redaction.reason, rewrite=rewrite, actor=actor)
    return RedactionReport(
        rollout_id=rollout_id,
        is_applied=apply,
        events=[
            RedactedEvent(number=event.version, position=event.position, type=event.type, data=json_of(event.data))
            for event in chosen
        ],
        bodies=erased.bodies,
        blobs=erased.blobs,
        kept_blobs=erased.kept_blobs,
        is_clean=erased.is_clean,
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """Payload as it is stored: codec and bytes."""

    bodies: Mapping[int, tuple[int, bytes]]
    """The key is the position of the event."""
    blobs: Mapping[str, tuple[int, bytes]]
    """The key is the hash of the blob."""


@dataclass(frozen=True, slots=True)
class Erased:
    """The counts of removed payload."""

    bodies: int
    blobs: int
    kept_blobs: int
    """The number of blobs that are not removed, because other events refer to them."""
    is_clean: bool
    """Whether the files no longer contain the deleted rows."""


async def erase_payload(
    dialect: Dialect, chosen: Sequence[Payload], stored: Stored, *, reason: str, rewrite: bool, actor: str | None
) -> Erased:
    """Remove the payload of events from an open database and from its files.

    Args:
        dialect: the database.
        chosen: the events.
        stored: the payload of the events, for a search of the file.
        reason: the reason, which the log records.
        rewrite: whether to rewrite the file or the tables in any case.
        actor: the name of the user who requested the removal.
    """
    async with remover(dialect, POLICY, actor=actor, reason=reason, overwrite=True, keep_unfinished=False) as removing:
        await removing.remove(chosen)
        async with dialect.read(snapshot=True) as session:
            unused = await blobs_without_event(session, only={event.position for event in chosen})
        await removing.remove_blobs(unused)
    async with compression(dialect) as work:
        has_dictionaries = await work.retire()
    async with dialect.read() as session:
        sizes = await removal_queries.blob_sizes(session, sorted(stored.blobs))
    gone = [*stored.bodies.values(), *(stored.blobs[name] for name in stored.blobs.keys() - sizes.keys())]
    remains = [part for _, body in gone for part in _parts(body)]
    # If an earlier call has deleted the payload, or if the store ever had a dictionary, the stored bytes are not known.
    # Then the file cannot be searched for these bytes.
    is_known = not has_dictionaries and 0 < len(remains) <= _MOST_REMAINS
    is_clean = await dialect.erase(rewrite=rewrite, remains=remains if is_known else None)
    return Erased(removing.removed.bodies, removing.removed.blobs, len(sizes), is_clean)


async def _chosen(session: ReadSession, rollout_id: str, redaction: Redaction) -> list[Payload]:
    if await log_queries.position_of(session, f"rollout/{rollout_id}", 1) is None:
        raise NotFound.rollout(rollout_id)
    candidates = await removal_queries.payload_of(session, [rollout_id], with_removed=True)
    chosen = [candidate for candidate in candidates if redaction.chooses(candidate)]
    if not chosen:
        raise NotFound("payload", rollout_id, f"rollout {rollout_id} has no such event with payload")
    return chosen


def _check_reason(reason: str, stored: Sequence[tuple[int, bytes]]) -> None:
    for codec, body in stored:
        try:
            texts = _texts(payload(codec, body))
        except Corrupt:
            # The body is not JSON: it is a blob with a long text, which is longer than any reason.
            continue
        if any(len(text.strip()) >= _SHORTEST and text.strip() in reason for text in texts):
            raise Invalid("reason", "it contains a text of the payload, and the log would keep it; leave it out")


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value, without the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _texts(item)


def _parts(stored: bytes) -> list[bytes]:
    """Return the first two quarters of a stored body. The file is searched for these parts.

    The payload of a body without compression begins with the values that distinguish the event, such as the attributes
    of a span. The end, such as the resource of a span, often occurs in other bodies too.
    """
    # The rest of a longer body is in pages of its own, which SQLite overwrites.
    begin = bytes(stored)[:_LONGEST_IN_PAGE]
    quarter = max(_SHORTEST_PART, len(begin) // 4)
    return sorted({begin[:quarter], begin[quarter : 2 * quarter]} - {b""})
