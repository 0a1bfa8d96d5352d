"""Undoing claims whose client disconnected without reading them. This works with and without the fast path."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Protocol, cast, runtime_checkable

from store.domain.commands import Idempotency
from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptedRollout
from store.runtime import context
from store.server.call import Call, ClientLeft

logger = logging.getLogger("store.server")


@runtime_checkable
class ReleasesClaims(Protocol):
    """A store that can undo a claim which nobody has taken."""

    async def release_claims(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Undo claims, if nothing has happened to them since: their rollouts wait again where they waited.

        Made under the idempotency key of the claim, if it had one: what was answered again is not undone.
        """
        ...


def release_if_unread(call: Call, claimed: list[AttemptedRollout], asked: Idempotency | None) -> None:
    """Undo claims if their client disconnects without reading them.

    Raises:
        ClientLeft: it has disconnected already.
    """
    store, connection = call.store, call.scope.get("rollbook.connection")
    if connection is None or not _releases_claims(type(store)):
        return
    releasing = cast("ReleasesClaims", store)
    if connection.if_unread(lambda: call.scope["app"].state.parked.aside(_release(releasing, claimed, asked))):
        raise ClientLeft


@cache
def _releases_claims(kind: type[Store]) -> bool:
    # To ask a protocol takes longer than all the rest of an answer, so that each class is asked once.
    return issubclass(kind, ReleasesClaims)


async def _release(store: ReleasesClaims, claimed: list[AttemptedRollout], asked: Idempotency | None) -> None:
    # The connection tells of its end in a context of its own.
    context.idempotency_key.set(asked)
    try:
        await store.release_claims(claimed)
    except StoreError:
        logger.warning("claims that nobody read could not be released; the watchdog will judge them", exc_info=True)
