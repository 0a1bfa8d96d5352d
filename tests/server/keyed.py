"""A server that requires keys, clocks for their expiry, and requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.server.auth.keyring import STALE_SECONDS, KeyRing
from store.server.partitions import Partitions
from store.sql.api_keys import Key, Keys, Role
from store.testing import ManualClock
from tests.server.api import Answer, Api, speaking_to


@dataclass(slots=True)
class Steps:
    """What stands still until it is moved, in seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Keyed:
    """A server, and the database behind it."""

    api: Api
    keys: Keys
    ring: KeyRing
    url: str
    steps: Steps
    clock: ManualClock
    enforces: bool = True
    """Whether the first key that is made is required from then on."""

    async def key(self, role: Role, **details: Any) -> str:
        """Make a key that the server knows of."""
        _, text = await self.make(role, **details)
        return text

    async def make(self, role: Role, **details: Any) -> tuple[Key, str]:
        """As `key`, with what is kept of it."""
        created = await self.keys.create(role, **details)
        if self.enforces:
            await self.keys.enforce()
            self.enforces = False
        self.grow_old()
        return created

    async def revoke(self, key: Key) -> None:
        """End a key, and let the server hear of it."""
        await self.keys.revoke(key.key_id)
        self.grow_old()

    def grow_old(self) -> None:
        """Let what the server knows of keys be too old to count."""
        self.steps.now += STALE_SECONDS

    async def ask(self, key: str | None, method: str = "GET", path: str = "/statistics", **details: Any) -> Answer:
        """Send a request with a key."""
        headers = {**details.pop("headers", {}), **({} if key is None else bearer(key))}
        return await self.api.send(method, path, headers=headers, **details)


def isolated_database(request: pytest.FixtureRequest, directory: Path) -> str:
    """Return the URL of a database that only one test uses: keys are those of a whole one."""
    if request.param == "sqlite":
        return f"sqlite:///{directory / 'keyed.db'}"
    create: Callable[[], str] = request.getfixturevalue("postgres_database")
    return create()


def bearer(key: str) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def keyed_server(store: Store, url: str, clock: ManualClock, **settings: Any) -> AsyncGenerator[Keyed]:
    """Serve a store and its other partitions to whoever has a key of its database."""
    assert "partition=" not in url, "keys belong to a database: use isolated_database"
    steps = Steps()
    ring = KeyRing(url, clock=clock, monotonic=steps, always=settings.pop("always", False))
    keys = await Keys.open(url, create=True)
    open_partition = partial(open_store, scan_debounce_seconds=0)
    partitions = Partitions(store, url, partial(open_partition, create=False), make_partition=open_partition)
    try:
        async with speaking_to(partitions, ring=ring, **settings) as api:
            yield Keyed(api, keys, ring, url, steps, clock)
    finally:
        await ring.close()
        await keys.close()
        await partitions.close()
