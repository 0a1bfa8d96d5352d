"""The admission of a request, which is checked for as long as the request lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.types import Scope

from store.errors import StoreError, Unauthorized
from store.server.auth.keyring import KeyRing
from store.sql.api_keys import Key

T = TypeVar("T")

KEY_PROTOCOL: Final = "rollbook.key."
"""The prefix of a WebSocket subprotocol that contains a key. Pages cannot set headers of a WebSocket."""
PROTOCOL: Final = "rollbook"
"""The subprotocol that the server chooses, because browsers require a choice. Clients also offer their key."""

CHECK_SECONDS: Final = 3.0
"""The interval between checks of the key of a waiting call or a stream."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The key of a request, stored in `scope["rollbook.admission"]`.

    The entry is missing if no key was sent and none is required.
    """

    key: Key

    @property
    def actor(self) -> str:
        """The actor of the request's events."""
        return f"key:{self.key.key_id}"


def protocol_chosen(scope: Scope) -> str | None:
    """Return the subprotocol with which a WebSocket is accepted: `PROTOCOL` if the client offers it, never a key."""
    return PROTOCOL if PROTOCOL in scope.get("subprotocols", ()) else None


async def while_admitted(scope: Scope, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a long call. The call is cancelled when the key of its request becomes invalid.

    A call without a key is cancelled when keys become required.

    Raises:
        Unauthorized: the key was revoked or has expired, or no key was sent and keys have become required.
        Unavailable: the keys cannot be read.
    """
    admission: Admission | None = scope.get("rollbook.admission")
    ring: KeyRing | None = scope["app"].state.ring
    if ring is None:
        return await begin()
    task = asyncio.ensure_future(begin())
    try:
        while not (await asyncio.wait((task,), timeout=CHECK_SECONDS))[0]:
            try:
                if admission is not None:
                    await ring.confirm(admission.key)
                else:
                    await ring.refresh()
                    if ring.is_required:
                        raise Unauthorized("no key was sent, and this server requires one now")
            except StoreError:
                # A result that is available is returned, since a claim must not be lost.
                if not task.done():
                    raise
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            # Wait until the call has released its resources.
            await asyncio.wait((task,))
        if not task.cancelled():
            # asyncio reports an exception that was never read. If this function was cancelled when the task failed, no
            # caller reads the exception.
            task.exception()
