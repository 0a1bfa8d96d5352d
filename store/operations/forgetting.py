"""Search for a text in the payload of all rollouts, and removal of the payload that contains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from store.db.dialect import Dialect, NamedRow, existing_store
from store.db.queries import blobs as blob_queries
from store.db.queries import log as log_queries
from store.db.queries import removal as removal_queries
from store.db.queries.bodies import raw_json
from store.db.queries.removal import Payload
from store.errors import Invalid
from store.models.enums import Frozen
from store.operations.choices import Search
from store.operations.damage import store_damage_reported
from store.operations.redaction import Erased, Stored, erase_payload
from store.operations.removal import database
from store.runtime.clock import Clock
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, OperationProgress, ProgressReporter, ignore
from store.verification.log_scan import REFERRING, names_of_blobs

_ROWS_AT_ONCE = 500
_AROUND = 24
_ROLLOUT = "rollout/"


class Match(Frozen):
    """A place that contains the text."""

    stream: str
    """The stream of the event, for example `rollout/ro-4711`."""
    number: int
    """The number of the event in its stream."""
    position: int
    type: str
    """The type of the event."""
    field: str
    """The path of the first text that matches, for example `attributes.prompt`."""
    excerpt: str
    """The match with at most 24 characters before and after it."""


class ForgetReport(Frozen):
    """The result of a search, and of the removal if one was requested."""

    is_applied: bool
    """Whether the payload was removed. False if it was only searched."""
    until: int
    """The position of the last event that was searched."""
    rollouts: int
    """The number of rollouts whose payload contains the text."""
    matches: list[Match]
    """The events of rollouts whose payload contains the text, with their first match, in the order of the log."""
    kept: list[Match]
    """Places from which the text cannot be removed.

    These are names, ids, labels, status messages and other data that the log keeps, and the payload of events that do
    not belong to a rollout, such as resources.
    """
    bodies: int
    """The number of deleted bodies."""
    blobs: int
    """The number of deleted blobs."""
    is_clean: bool
    """Whether the files no longer contain the deleted rows. False if a transaction still reads an old state."""


async def forget(
    url: str,
    search: Search,
    *,
    reason: str | None = None,
    rewrite: bool = False,
    actor: str | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress = ignore,
) -> ForgetReport:
    """Search for a text in all payload; with a reason, remove the payload of the events of rollouts that contain it.

    The next call finds the events that are appended during the search. If a call was stopped, the same call continues
    the work. Payload is removed as `redact` removes it.

    Args:
        url: the URL of a SQLite file or a Postgres database.
        search: the text.
        reason: the reason for the removal, 1 to 200 characters; the log records it. With None, nothing is written.
        rewrite: whether to rewrite the file (SQLite) or the tables with payload (Postgres) in any case. This blocks
            writers, on Postgres readers too.
        actor: the name of the user who requested the removal; the log records the name.
        clock: the clock of the store; the system's clock if None.
        on_progress: called with the progress, in another thread.

    Raises:
        NotFound: there is no store at the URL.
        Invalid: the reason contains the text, or has an invalid length; or the URL does not name a database.
        Incompatible: the store has an older schema; the message names the command that upgrades it.
        Corrupt: a table is damaged.
        ReadOnly: the database user may not delete payload.
        Unavailable: the database does not answer. The call can be repeated.
    """
    matcher = _Matcher(search)
    if reason is not None and not 1 <= len(reason) <= 200:
        raise Invalid("reason", "it must have 1 to 200 characters")
    if reason is not None and matcher.first(reason) is not None:
        raise Invalid("reason", "it contains the text, and the log would keep it; leave the text out")
    dialect = database(url, clock, read_only=reason is None)
    reporter = ProgressReporter(on_progress)
    async with store_damage_reported(url, reporter):
        return await run_in_thread(
            "rollbook forget", _run(dialect, matcher, reporter, reason=reason, rewrite=rewrite, actor=actor)
        )


async def _run(
    dialect: Dialect,
    matcher: _Matcher,
    on_progress: OnProgress,
    *,
    reason: str | None,
    rewrite: bool,
    actor: str | None,
) -> ForgetReport:
    async with existing_store(dialect):
        hits = await _search(dialect, matcher, on_progress)
        erased = Erased(0, 0, 0, is_clean=True)
        if reason is not None:
            on_progress(OperationProgress("removing payload"))
            # Even without a match, the files may still contain payload that an earlier call has deleted. So they are
            # rewritten.
            erased = await erase_payload(
                dialect, hits.payload, hits.stored, reason=reason, rewrite=rewrite, actor=actor
            )
    return ForgetReport(
        is_applied=reason is not None,
        until=hits.until,
        rollouts=len({payload.rollout_id for payload in hits.payload}),
        matches=hits.matches,
        kept=hits.remaining,
        bodies=erased.bodies,
        blobs=erased.blobs,
        is_clean=erased.is_clean,
    )


@dataclass(slots=True)
class _Hits:
    payload: list[Payload] = field(default_factory=list[Payload])
    matches: list[Match] = field(default_factory=list[Match])
    remaining: list[Match] = field(default_factory=list[Match])
    bodies: dict[int, tuple[int, bytes]] = field(default_factory=dict[int, tuple[int, bytes]])
    blobs: dict[str, tuple[int, bytes]] = field(default_factory=dict[str, tuple[int, bytes]])
    until: int = 0
    in_use: set[str] = field(default_factory=set[str])
    """The hashes of blobs with the text to which an event with payload refers."""
    removed: list[tuple[str, Payload, Match]] = field(default_factory=list[tuple[str, Payload, Match]])
    """Events with removed payload that refer to a blob with the text. An item is the blob's hash, event and match."""

    def add_leftovers(self) -> None:
        """Add the events whose payload was removed by an earlier call that was stopped before it removed the blob."""
        leftovers = {
            payload.position: (payload, match) for name, payload, match in self.removed if name not in self.in_use
        }
        self.payload = sorted(
            [*self.payload, *(payload for payload, _ in leftovers.values())], key=lambda payload: payload.position
        )
        self.matches = sorted(
            [*self.matches, *(match for _, match in leftovers.values())], key=lambda match: match.position
        )

    @property
    def stored(self) -> Stored:
        return Stored(self.bodies, self.blobs)


async def _search(dialect: Dialect, matcher: _Matcher, on_progress: OnProgress) -> _Hits:
    hits = _Hits()
    async with dialect.read() as session:
        last = await log_queries.last_event(session)
    end = 0 if last is None else last.position
    in_blobs: dict[str, tuple[str, str]] = {}
    after = ""
    while True:
        # The reads are short, so that the write-ahead log of SQLite does not grow.
        async with dialect.read() as session:
            page = await blob_queries.blobs_after(session, after, _ROWS_AT_ONCE)
        for blob in page:
            after = blob.hash
            first = matcher.in_blob(raw_json(blob.codec, blob.body))
            if first is not None:
                in_blobs[blob.hash] = first
                hits.blobs[blob.hash] = (blob.codec, blob.body)
        if len(page) < _ROWS_AT_ONCE:
            break
    while True:
        on_progress(OperationProgress("searching", min(hits.until, end), end))
        async with dialect.read() as session:
            rows = await log_queries.events(session, after=hits.until, limit=_ROWS_AT_ONCE, bodies=True)
            if not rows:
                hits.add_leftovers()
                return hits
            gone = await removal_queries.removed_between(session, rows[0].position, rows[-1].position)
        hits.until = rows[-1].position
        for row in rows:
            _examine(row, matcher, in_blobs, hits, is_gone=row.position in gone)


def _examine(
    row: NamedRow, matcher: _Matcher, in_blobs: dict[str, tuple[str, str]], hits: _Hits, *, is_gone: bool
) -> None:
    data = matcher.in_payload(row.data.encode())
    if data is not None:
        hits.remaining.append(_match(row, *data))
    names = [name for name in names_of_blobs(row) if name in in_blobs] if row.type in REFERRING else []
    if is_gone:
        payload = Payload(row.position, row.stream, row.type, row.version, row.data, None)
        hits.removed += ((name, payload, _match(row, *in_blobs[name])) for name in names)
        return
    hits.in_use.update(names)
    codec, stored = row.codec, row.body
    first = None if stored is None else matcher.in_payload(raw_json(codec, stored))
    if first is None and names:
        first = in_blobs[names[0]]
    if first is None:
        return
    if not row.stream.startswith(_ROLLOUT):
        hits.remaining.append(_match(row, *first))
        return
    size = None if stored is None else len(stored)
    hits.payload.append(Payload(row.position, row.stream, row.type, row.version, row.data, size))
    hits.matches.append(_match(row, *first))
    if stored is not None and len(hits.bodies) < _ROWS_AT_ONCE:
        hits.bodies[row.position] = (codec, stored)


def _match(row: NamedRow, path: str, excerpt: str) -> Match:
    return Match(
        stream=row.stream,
        number=row.version,
        position=row.position,
        type=row.type,
        field=path,
        excerpt=excerpt,
    )


class _Matcher:
    """A search for a text in JSON values."""

    def __init__(self, search: Search) -> None:
        self._ignores_case = search.ignore_case
        self._text = search.text.casefold() if search.ignore_case else search.text
        # The text as it is written in JSON without escapes. A payload with a backslash may contain the text in another
        # form.
        self._plain = search.text.encode(errors="surrogatepass")

    def in_blob(self, raw: bytes) -> tuple[str, str] | None:
        """Return the path and the excerpt of the first match in a blob, which is a JSON text or any other text.

        The response of a model is a text that may look like JSON. So a blob is searched as JSON first, and then as a
        text.
        """
        try:
            match = self.in_payload(raw)
        except orjson.JSONDecodeError:
            match = None
        if match is None:
            excerpt = self.first(raw.decode(errors="replace"))
            match = None if excerpt is None else ("", excerpt)
        return match

    def in_payload(self, raw: bytes) -> tuple[str, str] | None:
        """Return the path and the excerpt of the first match in a JSON text."""
        if not self._ignores_case and b"\\" not in raw and self._plain not in raw:
            return None
        for path, text in _texts(orjson.loads(raw), ""):
            excerpt = self.first(text)
            if excerpt is not None:
                return path, excerpt
        return None

    def first(self, text: str) -> str | None:
        """Return the first match in a text, with the characters around it."""
        searched = text.casefold() if self._ignores_case else text
        at = searched.find(self._text)
        if at < 0:
            return None
        # `casefold` may change the length of a text, so the excerpt is then a part of the folded text.
        source = text if len(searched) == len(text) else searched
        return source[max(0, at - _AROUND) : at + len(self._text) + _AROUND]


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of all keys, texts and numbers in a JSON value."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            below = f"{path}.{key}" if path else key
            yield below, key
            yield from _texts(item, below)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _texts(item, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, str(value)
