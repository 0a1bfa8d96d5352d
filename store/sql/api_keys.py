"""API keys of clients: their form, their rows in the database, and their roles. Decision 57."""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b32encode
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, get_args

from sqlalchemy import select

from store.db.dialect import Changes, Dialect, TablePart, WriteSession, dialect_for
from store.db.schema.sealed import refuse_sealed
from store.db.tables.core import key_policy, keys
from store.db.url import parse, with_partition
from store.errors import Conflict, Invalid, NotFound
from store.runtime.clock import MICROSECONDS
from store.runtime.urls import DEFAULT_PARTITION, PARTITION
from store.sql.store import SQLStore
from store.validation.json_limits import check_text

__all__ = ["MAX_KEYS", "ROLES", "Key", "KeyRules", "Keys", "Role", "digest", "key_id_in"]

Role = Literal["reader", "runner", "algorithm", "admin"]
"""The roles. Each role has the rights of all roles before it."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)

MAX_KEYS: Final = 1000
"""The maximum number of unrevoked keys. Every server keeps all of them in memory and reads them every few seconds."""

_FORM: Final = re.compile(r"rbk_([0-9a-f]{10})_[a-z2-7]{32}")
_NAME_BYTES: Final = 200
_POLICY_ROW: Final = 1
_LONGEST_SECONDS: Final = 100 * 365 * 86_400
_USED: Final = TablePart(keys, ("used_at",))


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the database stores it. Times are microseconds since the epoch."""

    key_id: str
    """The first part of the key. It is not secret and appears in lists and logs."""
    hash: bytes = field(repr=False)
    role: Role
    partition: str | None
    """The partition for which the key is valid; None for all partitions."""
    name: str | None
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    used_at: int | None = None
    """The time, to the minute, at which a server last received the key."""

    def has_expired(self, now: int) -> bool:
        """Return whether the key has expired."""
        return self.expires_at is not None and self.expires_at <= now

    def state(self, now: int) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.has_expired(now) else "active"


@dataclass(frozen=True, slots=True)
class KeyRules:
    """The data that a server needs to check the keys of its clients."""

    keys: Mapping[str, Key]
    """The keys that were not revoked, by id; some may have expired."""
    enforced_at: int | None
    """The time in microseconds from which every request needs a key; None if requests need no key."""


def digest(text: str) -> bytes:
    """Return the hash of a key, which the database stores instead of the key.

    The hash is one round of SHA-256. A secret of 160 random bits cannot be guessed, so a slow hash made for passwords
    would only slow down every request.
    """
    return hashlib.sha256(text.encode()).digest()


def key_id_in(text: str) -> str | None:
    """Return the id in a key; None if the text does not have the form of a key."""
    match = _FORM.fullmatch(text)
    return match and match[1]


def _new_key() -> tuple[str, str]:
    """Return the id of a new key, and the key.

    The key contains only letters, digits and underscores, so that a double click selects the whole key.
    """
    key_id = os.urandom(5).hex()
    return key_id, f"rbk_{key_id}_{b32encode(os.urandom(20)).decode().lower()}"


class Keys:
    """The keys of one database. The default partition stores the keys of all partitions."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @classmethod
    async def open(cls, url: str, *, create: bool, read_only: bool = False) -> Self:
        """Return the keys of a database.

        Args:
            url: the URL of any partition of the database.
            create: whether to create the default partition if it is missing.
            read_only: whether to open the database for reading. Methods that write must then not be called.

        Raises:
            Invalid: the URL is not the URL of a database that other processes can open.
            NotFound: the default partition does not exist, so there are no keys.
            StoreError: the database cannot be opened; the errors are those of `open_store`.
        """
        if parse(url).scheme in {"memory", "http", "https"}:
            raise Invalid(
                "--db",
                "keys are stored in the store's database; give the URL of that database:"
                " sqlite:///run.db or postgresql://…",
            )
        main = parse(with_partition(url, DEFAULT_PARTITION))
        if create:
            await (await SQLStore.open(main.text)).close()
        if not read_only:
            await refuse_sealed(main)
        dialect = dialect_for(main)(main, None, read_only=read_only)
        await dialect.open(create=False)
        return cls(dialect)

    async def close(self) -> None:
        """Close the connections."""
        await self._dialect.close()

    async def all(self) -> list[Key]:
        """Return all keys, also revoked and expired ones, the oldest first."""
        return await self._read(_ALL)

    async def unrevoked(self) -> list[Key]:
        """Return the keys that were not revoked; some may have expired."""
        return await self._read(_UNREVOKED)

    async def rules(self) -> KeyRules:
        """Return the keys that were not revoked, and the time from which a key is required, in one read."""
        async with self._dialect.read() as session:
            unrevoked = [_of_row(row) for row in await session.fetch(self._dialect.prepared(_UNREVOKED), {})]
            policy = await session.fetch(self._dialect.prepared(_POLICY), {})
        return KeyRules({key.key_id: key for key in unrevoked}, policy[0][0] if policy else None)

    async def _read(self, query: Any) -> list[Key]:
        async with self._dialect.read() as session:
            return [_of_row(row) for row in await session.fetch(self._dialect.prepared(query), {})]

    async def create(
        self,
        role: Role,
        *,
        partition: str | None = None,
        name: str | None = None,
        expires_seconds: float | None = None,
    ) -> tuple[Key, str]:
        """Create a key; return its stored form, and the text of the key, which cannot be read again later.

        Raises:
            Invalid: the role, the partition, the name or the lifetime is invalid.
            Conflict: the maximum number of unrevoked keys exists already.
        """
        if role not in ROLES:
            raise Invalid("--role", f"{role!r} is not one of {', '.join(ROLES)}")
        if partition is not None and not PARTITION.fullmatch(partition):
            raise Invalid("--partition", f"{partition!r} must match {PARTITION.pattern}")
        if name is not None:
            check_text(name, "--name", _NAME_BYTES)
        if expires_seconds is not None and not 0 < expires_seconds <= _LONGEST_SECONDS:
            raise Invalid("--expires", f"{expires_seconds:g} s is not between 0 and 100 years")
        async with self._writing() as (session, now):
            await self._check_count(session)
            key_id, text = _new_key()
            expires_at = None if expires_seconds is None else now + round(expires_seconds * MICROSECONDS)
            key = Key(key_id, digest(text), role, partition, name, now, expires_at)
            await session.write(Changes(inserts={keys: [_row(key)]}, upserts={}, deletes={}))
        return key, text

    async def rotate(self, key_id: str, *, grace_seconds: float) -> tuple[Key, Key, str]:
        """Replace a key; return the old key, its successor, and the text of the successor, which is not stored.

        The successor has the role, the partition, the name and the lifetime of the old key. The old key expires after
        the grace period, or is revoked at once if the grace period is 0.

        Raises:
            Invalid: the grace period is negative or too long.
            NotFound: there is no key with that id.
            Conflict: the old key was revoked or has expired, or the maximum number of unrevoked keys exists already.
        """
        if not 0 <= grace_seconds <= _LONGEST_SECONDS:
            raise Invalid("--grace", f"{grace_seconds:g} s is not between 0 and 100 years")
        async with self._writing() as (session, now):
            old = await self._one(session, key_id)
            if old.state(now) != "active":
                raise Conflict(f"the key {key_id} is {old.state(now)}", "create a key with `rollbook keys create`")
            await self._check_count(session)
            new_id, text = _new_key()
            lifetime = None if old.expires_at is None else old.expires_at - old.created_at
            expires_at = None if lifetime is None else now + lifetime
            new = Key(new_id, digest(text), old.role, old.partition, old.name, now, expires_at)
            ends = now + round(grace_seconds * MICROSECONDS)
            if grace_seconds == 0:
                old = replace(old, revoked_at=now)
            elif old.expires_at is None or ends < old.expires_at:
                old = replace(old, expires_at=ends)
            await session.write(Changes(inserts={keys: [_row(new)]}, upserts={keys: [_row(old)]}, deletes={}))
        return old, new, text

    async def revoke(self, key_id: str) -> Key:
        """Revoke a key permanently, and return the key. If the key was revoked before, nothing changes.

        Raises:
            NotFound: there is no key with that id.
        """
        async with self._writing() as (session, now):
            key = await self._one(session, key_id)
            if key.revoked_at is None:
                key = replace(key, revoked_at=now)
                await session.write(Changes(inserts={}, upserts={keys: [_row(key)]}, deletes={}))
        return key

    async def enforce(self, *, in_seconds: float = 0.0) -> int:
        """Require a key for every request, and return the time in microseconds from which it is required.

        Without a delay, the time is 0, so that a server whose clock is behind also requires a key at once.

        Raises:
            Invalid: the delay is negative or too long.
            Conflict: there is no active key, so no client would have access.
        """
        if not 0 <= in_seconds <= _LONGEST_SECONDS:
            raise Invalid("--in", f"{in_seconds:g} s is not between 0 and 100 years")
        async with self._writing() as (session, now):
            begins = now + round(in_seconds * MICROSECONDS)
            unrevoked = [_of_row(row) for row in await session.fetch(self._dialect.prepared(_UNREVOKED), {})]
            if all(key.has_expired(begins) for key in unrevoked):
                raise Conflict(
                    "no key is active at that time, so every client would be refused",
                    "create a key first: rollbook keys create --role admin",
                )
            enforced_at = begins if in_seconds else 0
            await session.write(Changes(inserts={}, upserts={key_policy: [(_POLICY_ROW, enforced_at)]}, deletes={}))
        return enforced_at

    async def stop_enforcing(self) -> None:
        """Stop requiring keys. Keys that clients send are still checked."""
        async with self._writing() as (session, _):
            await session.write(Changes(inserts={}, upserts={}, deletes={key_policy: [(_POLICY_ROW,)]}))

    async def _one(self, session: WriteSession, key_id: str) -> Key:
        rows = await session.fetch(self._dialect.sql(select(keys).where(keys.c.key_id == key_id)), {})
        if not rows:
            raise NotFound("key", key_id, f"there is no key {key_id!r}; `rollbook keys ls` shows them")
        return _of_row(rows[0])

    async def _check_count(self, session: WriteSession) -> None:
        if len(await session.fetch(self._dialect.prepared(_UNREVOKED), {})) >= MAX_KEYS:
            raise Conflict(f"there are {MAX_KEYS:,} keys already", "revoke unused keys")

    async def note_used(self, used: Mapping[str, int]) -> None:
        """Store when keys were last received; `used` contains the time in microseconds by key id."""
        async with self._writing() as (session, _):
            await session.write(Changes(inserts={}, upserts={}, deletes={}, updates={_USED: list(used.items())}))

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[tuple[WriteSession, int]]:
        """Yield a session in a transaction that holds the partition's lock, and the transaction's time in microseconds.

        The transaction is committed at the end of the block, or rolled back after an error.
        """
        session = await self._dialect.writer()
        try:
            tail = await session.begin()
            try:
                yield session, tail.now
            except BaseException:
                await session.rollback()
                raise
            await session.commit()
        finally:
            await session.close()


_ALL: Final = select(keys).order_by(keys.c.created_at, keys.c.key_id)
_UNREVOKED: Final = select(keys).where(keys.c.revoked_at.is_(None))
_POLICY: Final = select(key_policy.c.enforced_at)
_COLUMNS: Final = tuple(column.name for column in keys.columns)


def _of_row(row: Iterable[Any]) -> Key:
    return Key(**dict(zip(_COLUMNS, row, strict=True)))


def _row(key: Key) -> tuple[Any, ...]:
    return tuple(getattr(key, name) for name in _COLUMNS)
