"""A server's copy of the valid keys.

The copy is read again every few seconds, so a request needs no query. See decision 21.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from typing import Final, Self

from store.db.schema.sealed import is_sealed
from store.db.url import parse, with_partition
from store.errors import NotFound, StoreError, Unauthorized, Unavailable
from store.runtime.clock import MICROSECONDS, Clock, system_clock
from store.runtime.limited_log import LimitedLog
from store.runtime.urls import DEFAULT_PARTITION
from store.sql.api_keys import Key, KeyRules, Keys, digest, key_id_in

logger = logging.getLogger("store.server")

FRESH_SECONDS: Final = 2.0
"""The age of the copy from which a request starts another read. The request does not wait for this read."""
STALE_SECONDS: Final = 4.0
"""The age of the copy from which a request waits for another read, unless the database is unavailable."""
_PATIENCE_SECONDS: Final = 4.0
"""The longest wait for a read. After this time, the database counts as unavailable until the read ends."""

_NOTED_SECONDS: Final = 60.0
_NO_RULES: Final = KeyRules({}, None)
_MINUTE: Final = 60 * MICROSECONDS


class KeyRing:
    """The keys of one database.

    `Keys.enforce` sets the time from which every request needs a key. Before that time, a request may have no key, but
    a key that is sent must be valid. If the database has no keys and no such time is set, sent keys are ignored. A
    change by another process takes effect within five seconds. While the database is unavailable, the keys of the last
    read are valid; a change then takes effect once the database is available again. If the keys cannot be read for
    another reason, every request is refused.

    Args:
        url: the URL of any partition of the database.
        always: whether to require a key regardless of the rules in the database.
        read_only: whether to write nothing to the database. The last use of a key is then not recorded.
        clock: the clock by which keys expire, in microseconds since the epoch.
        monotonic: the clock that measures the age of the copy, in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        always: bool = False,
        read_only: bool = False,
        clock: Clock = system_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._limited = LimitedLog(logger)
        self._always = always
        self._read_only = read_only
        self._clock = clock
        self._monotonic = monotonic
        self._source: Keys | None = None
        self._rules = _NO_RULES
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._trouble: StoreError | None = None
        self._failed_at = float("-inf")
        self._used: dict[str, int] = {}
        self._noted_at = monotonic()

    @classmethod
    async def open(cls, url: str, *, always: bool = False, read_only: bool = False) -> Self:
        """Return the keys of a database, read once.

        Raises:
            StoreError: the keys cannot be read. A database that does not exist yet has no keys, which is not an error.
        """
        ring = cls(url, always=always, read_only=read_only)
        try:
            await ring._read()
        except BaseException:
            await ring.close()
            raise
        return ring

    def __len__(self) -> int:
        """Return the number of keys that were not revoked at the last read."""
        return len(self._rules.keys)

    @property
    def url(self) -> str:
        """The URL of a partition of the database; it may contain a password."""
        return self._url

    async def close(self) -> None:
        """Record when keys were last used, and close the connection to the database.

        If the database is opened read-only, nothing is recorded.
        """
        if self._reading is not None:
            await asyncio.wait((self._reading,))
        source, self._source = self._source, None
        if source is not None:
            await self._note(source)
            await source.close()

    @property
    def is_idle(self) -> bool:
        """Whether a fresh copy shows that the server uses no keys. Requests then need no check."""
        return not self.is_used and self.is_fresh

    @property
    def is_fresh(self) -> bool:
        """Whether the copy is fresh, so that a request needs no read."""
        return self._monotonic() - self._read_at < FRESH_SECONDS

    @property
    def is_used(self) -> bool:
        """Whether requests must be checked for keys.

        This is true if keys are always required, or if the last read found keys or a time from which they are required.
        """
        return self._always or bool(self._rules.keys) or self._rules.enforced_at is not None

    @property
    def is_required(self) -> bool:
        """Whether every request needs a key, according to the last read."""
        enforced_at = self._rules.enforced_at
        return self._always or (enforced_at is not None and enforced_at <= self._clock())

    @property
    def required_from(self) -> int | None:
        """The future time, in microseconds, from which every request needs a key; None if no such time is set."""
        return None if self.is_required else self._rules.enforced_at

    async def refresh(self) -> None:
        """Read the keys again if the copy is too old.

        Raises:
            Unavailable: the copy is too old, and the keys cannot be read although the database is available.
        """
        now = self._monotonic()
        if now - self._read_at < FRESH_SECONDS:
            return
        if now - self._failed_at >= FRESH_SECONDS:
            self._begin_reading()
        # A read that begins now is fresh however long it takes. A read that began long ago may be too old when it ends.
        # The loop then reads again.
        while now - self._read_at >= STALE_SECONDS and not self._is_outage(now):
            # The read continues after the wait, because other requests wait for the same read.
            _, waiting = await asyncio.wait({self._begin_reading()}, timeout=_PATIENCE_SECONDS)
            if waiting:
                self._trouble = Unavailable(f"no answer after {_PATIENCE_SECONDS:g} s")
                self._failed_at = self._monotonic()
            if self._trouble is not None and not self._is_outage(self._failed_at):
                raise Unavailable(f"keys cannot be read: {self._trouble}")

    def find(self, text: str) -> Key:
        """Return the key that a client sent.

        Raises:
            Unauthorized: the text is not a key, or the key is not valid any more.
        """
        key_id = key_id_in(text)
        if key_id is None:
            raise Unauthorized("the sent text is not a key")
        key = self._rules.keys.get(key_id)
        # The comparison takes the same time whether the id exists or not.
        if not hmac.compare_digest(digest(text), bytes(32) if key is None else key.hash) or key is None:
            raise Unauthorized(f"the key {key_id} is not known here, or was revoked")
        now = self._clock()
        if key.has_expired(now):
            raise Unauthorized(f"the key {key_id} has expired")
        self._used[key_id] = now
        return key

    async def confirm(self, key: Key) -> None:
        """Check that an admitted key is still valid.

        Raises:
            Unauthorized: the key was revoked or has expired.
            Unavailable: the copy is too old, and the keys cannot be read.
        """
        await self.refresh()
        current = self._rules.keys.get(key.key_id)
        if current is None or current.hash != key.hash:
            raise Unauthorized(f"the key {key.key_id} was revoked")
        if current.has_expired(self._clock()):
            raise Unauthorized(f"the key {key.key_id} has expired")

    def _is_outage(self, now: float) -> bool:
        """Return whether the keys of an earlier read remain valid because the database is unavailable.

        The last read must have found the database unavailable, or must have got no answer in time. In addition, this
        failure must be recent, or a read must be in progress.
        """
        is_current = self._reading is not None or now - self._failed_at < FRESH_SECONDS
        return isinstance(self._trouble, Unavailable) and is_current and self._read_at > float("-inf")

    def _begin_reading(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_quietly())
        return self._reading

    async def _read_quietly(self) -> None:
        try:
            await self._read()
            if self._trouble is not None:
                logger.info("keys can be read again")
            self._trouble = None
            if self._source is not None and self._monotonic() - self._noted_at >= _NOTED_SECONDS:
                self._noted_at = self._monotonic()
                await self._note(self._source)
        except StoreError as error:
            self._trouble, self._failed_at = error, self._monotonic()
            self._limited.warning("keys cannot be read", error)
        finally:
            self._reading = None

    async def _read(self) -> None:
        # Commits during the read may be missed, so the age of the copy counts from the beginning of the read.
        began = self._monotonic()
        if self._source is None:
            # Keys are in the default partition, which may be a backup or an archive.
            self._read_only |= await is_sealed(parse(with_partition(self._url, DEFAULT_PARTITION)))
            try:
                self._source = await Keys.open(self._url, create=False, read_only=self._read_only)
            except NotFound:
                self._rules, self._read_at = _NO_RULES, began
                return
        self._rules = await self._source.rules()
        self._read_at = began

    async def _note(self, source: Keys) -> None:
        if self._read_only:
            return
        used, self._used = self._used, {}
        uses_to_record = {key_id: at - at % _MINUTE for key_id, at in used.items() if self._must_record(key_id, at)}
        if not uses_to_record:
            return
        try:
            # This runs in a thread with its own event loop, because writing to SQLite blocks.
            await asyncio.to_thread(lambda: asyncio.run(source.note_used(uses_to_record)))
        except StoreError as error:
            # The time of the last use is only a hint, and the database's role may not be allowed to write.
            logger.info("the time of the last use of keys cannot be recorded: %s", error)

    def _must_record(self, key_id: str, at: int) -> bool:
        # A key that was revoked meanwhile is included, because its last use matters most.
        key = self._rules.keys.get(key_id)
        return key is None or key.used_at is None or at - key.used_at >= _MINUTE
