"""A request that was let in, for as long as it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.types import Scope

from store.errors import StoreError
from store.server.auth.keyring import KeyRing
from store.sql.api_keys import Key

T = TypeVar("T")

KEY_PROTOCOL: Final = "rollbook.key."
"""What a WebSocket's subprotocol begins with that carries a key: pages cannot set headers there."""
PROTOCOL: Final = "rollbook"
"""The subprotocol to name beside it, which the server chooses: browsers want one that is chosen."""

CHECK_SECONDS: Final = 3.0
"""How often it is checked that whoever waits or follows still may."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whom a request is from: `scope["rollbook.admission"]`, absent where nobody needs a key."""

    key: Key
    ring: KeyRing

    @property
    def makes_partitions(self) -> bool:
        """Whether a partition that is missing is made for it."""
        return self.key.role == "admin"


def protocol_chosen(scope: Scope) -> str | None:
    """Return the subprotocol with which a WebSocket is accepted: ours where it was offered, never one with a key."""
    return PROTOCOL if PROTOCOL in scope.get("subprotocols", ()) else None


async def while_admitted(scope: Scope, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of what may take long; it is cancelled once its key counts no more.

    Raises:
        Unauthorized: the key was revoked or has expired.
        Unavailable: keys cannot be read.
    """
    admission: Admission | None = scope.get("rollbook.admission")
    if admission is None:
        return await begin()
    task = asyncio.ensure_future(begin())
    try:
        while not (await asyncio.wait((task,), timeout=CHECK_SECONDS))[0]:
            await _confirm(admission, task)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            # Until it has put back what it held.
            await asyncio.wait((task,))


async def _confirm(admission: Admission, task: asyncio.Task[Any]) -> None:
    try:
        await admission.ring.confirm(admission.key)
    except StoreError:
        # What it was given meanwhile is given: a claim must not be lost.
        if not task.done():
            raise
