"""Check of the log's consistency: the hash chain over all commits, the hashes of bodies, and the running totals.

The hash of a commit covers its events and the hash of the commit before. The running totals of a commit count all
events, attempts, bytes of bodies and so on up to this commit.

This module does no I/O. The caller passes the rows of commits, and of events with their bodies, in the log's order.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from store.db.dialect import NamedRow
from store.db.queries.bodies import raw_and_rest
from store.db.queries.log import TOTALS, totals_of
from store.domain.run_commands import IN_BLOBS
from store.errors import StoreError
from store.journal import log_rows
from store.journal.log_rows import totals_after

Report = Callable[[str, str, str | None, Any, Any], None]
"""Function that is called with each difference: check, key, field, expected value, found value."""

TRAILING = ("no bytes after the compressed stream", "{} bytes after it")
"""The expected and the found value if there are extra bytes after a compressed body. Readers ignore these bytes."""

_BODY_BYTES = TOTALS.index("body_bytes")


class LogCheck:
    """One check of the log, from its beginning or from a given commit, up to its end."""

    def __init__(self, report: Report, *, after: NamedRow | None = None) -> None:
        """Begin before the first commit, or after a given commit.

        Args:
            report: called with each difference.
            after: the row of the commit before the first commit to check. This commit is taken as correct.
        """
        self._report = report
        self._commits: deque[NamedRow] = deque()
        self._previous = log_rows.GENESIS
        self._last_id = 0
        self._last_position = 0
        self._totals = totals_of(after)
        self._digests: list[bytes] = []
        self._counted: list[tuple[str, int]] = []
        self._stamp: int | None = None
        self._is_size_known = True
        self._next = 0
        if after is not None:
            self._last_id, self._last_position = after.commit_id, after.last_position
            self._previous = memoryview(after.chain_hash).tobytes()
        self.commits = 0
        self.events = 0
        self.bodies = 0
        """The number of bodies that belong to an event."""

    @property
    def wants_commits(self) -> bool:
        """Whether the caller must add the next commits before it adds more events."""
        return not self._commits

    @property
    def head(self) -> str:
        """The hash of the last checked commit, in hex."""
        return self._previous.hex()

    @property
    def last_position(self) -> int:
        """The position of the last event of the last checked commit."""
        return self._last_position

    def add_commits(self, rows: Sequence[NamedRow]) -> None:
        """Add the next rows of `commits`. A commit is checked when its events have been added."""
        self._commits.extend(rows)

    def add_events(self, rows: Sequence[NamedRow], dropped: Mapping[int, bool]) -> int:
        """Check the next events, up to the end of the last added commit, and return the number of checked events.

        Args:
            rows: rows of `events`, each followed by the codec, raw_len and bytes of its body.
            dropped: for each missing body, by position, whether an event of the log ordered its removal.
        """
        used = 0
        while used < len(rows):
            while self._commits and rows[used].position > self._commits[0].last_position:
                self._finish()
            if not self._commits:
                break
            used = self._take(self._commits[0], rows, used, dropped)
        return used

    def end(self, rest: Sequence[NamedRow]) -> None:
        """Finish the check of the added commits. `rest` contains the events after the last commit."""
        while self._commits:
            self._finish()
        for row in rest:
            self._report_stray(row)

    def _take(self, commit: NamedRow, rows: Sequence[NamedRow], used: int, dropped: Mapping[int, bool]) -> int:
        """Check the events of a commit, and events before it that belong to no commit.

        `used` is the number of rows that were already checked. Return the number of rows that are checked now.
        """
        commit_id, first, last = commit.commit_id, commit.first_position, commit.last_position
        following = self._next or first
        digests, counted = self._digests, self._counted
        for row in islice(rows, used, None):
            position = row.position
            if position > last:
                break
            used += 1
            if position < first:
                self._report_stray(row)
                continue
            if position != following:
                self._report_missing(following, position - 1, commit_id)
            following = position + 1
            if row.commit_id != commit_id:
                self._report("chain", f"event {position}", "commit_id", commit_id, row.commit_id)
            self.events += 1
            digests.append(_digest(row))
            self._stamp = row.at
            size = 0 if row.body_hash is None else self._body(position, row, dropped)
            if row.type in IN_BLOBS:
                # The body of this event is stored as a blob. Several events may share a blob, so its size is not in the
                # totals.
                size = 0
            counted.append((row.type, size))
        self._next = following
        return used

    def _report_stray(self, row: NamedRow) -> None:
        self.events += 1
        self._report("chain", f"event {row.position}", None, None, f"{row.type} that does not belong to a commit")

    def _report_missing(self, first: int, last: int, commit_id: int) -> None:
        named = f"event {first}" if first == last else f"events {first} to {last}"
        self._report("chain", named, None, f"part of commit {commit_id}", None)

    def _body(self, position: int, row: NamedRow, dropped: Mapping[int, bool]) -> int:
        """Check the body of an event, and return the length of the body before compression."""
        expected, raw_len = row.body_hash, row.raw_len
        if row.body is None:
            self._is_size_known = False
            if not dropped.get(position, False):
                self._report("bodies", f"event {position}", None, memoryview(expected).hex(), None)
            return 0
        self.bodies += row.type not in IN_BLOBS
        try:
            raw, rest = raw_and_rest(row.codec, row.body)
        except StoreError as refused:
            self._report("bodies", f"event {position}", "body", "bytes that can be read", str(refused))
            return raw_len
        if rest:
            self._report("bodies", f"event {position}", "body", TRAILING[0], TRAILING[1].format(rest))
        digest = hashlib.sha256(raw).digest()
        if digest != expected:
            self._report("bodies", f"event {position}", "body", memoryview(expected).hex(), digest.hex())
        if len(raw) != raw_len:
            self._report("bodies", f"event {position}", "raw_len", len(raw), raw_len)
            return len(raw)
        return raw_len

    def _finish(self) -> None:
        commit = self._commits.popleft()
        commit_id, first, last = commit.commit_id, commit.first_position, commit.last_position
        self.commits += 1
        if self._next <= last:
            self._report_missing(self._next or first, last, commit_id)
        # Numbers may be left out: a rollback on Postgres leaves gaps, and a sequence may be moved forward.
        if first <= self._last_position or last < first:
            self._report("chain", f"commit {commit_id}", "first_position", self._last_position + 1, first)
        self._check_link(commit)
        self._check_totals(commit)
        self._previous = memoryview(commit.chain_hash).tobytes()
        self._last_id, self._last_position = commit_id, last
        self._digests, self._counted = [], []
        self._stamp, self._is_size_known, self._next = None, True, 0

    def _check_link(self, commit: NamedRow) -> None:
        commit_id, first, last = commit.commit_id, commit.first_position, commit.last_position
        recorded_at, chain_hash = commit.recorded_at, commit.chain_hash
        key = f"commit {commit_id} (events {first} to {last})"
        if self._stamp is not None and recorded_at != self._stamp:
            self._report("chain", key, "recorded_at", self._stamp, recorded_at)
        expected = log_rows.link(self._previous, commit_id, first, last, recorded_at, self._digests)
        if expected != chain_hash:
            self._report("chain", key, "chain_hash", expected.hex(), memoryview(chain_hash).hex())

    def _check_totals(self, commit: NamedRow) -> None:
        totals = totals_of(commit)
        expected = totals_after(self._totals, self._counted)
        if not self._is_size_known:
            # The size of a removed body is unknown, so the total of all sizes cannot be checked.
            expected = (*expected[:_BODY_BYTES], totals[_BODY_BYTES])
        for name, expected_total, total in zip(TOTALS, expected, totals, strict=True):
            if expected_total != total:
                self._report("totals", f"commit {commit.commit_id}", name, expected_total, total)
        self._totals = totals


def _digest(row: NamedRow) -> bytes:
    try:
        return log_rows.event_digest(row)
    except Exception:  # noqa: BLE001 (a value of a type that no writer stores: the event has no valid digest)
        return b""
