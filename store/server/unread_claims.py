"""The release of claims whose client disconnected without reading the response.

The release works with and without the fast path.
"""

from __future__ import annotations

import logging

from store.domain.commands import Idempotency
from store.errors import StoreError
from store.models import AttemptedRollout
from store.runtime import context
from store.runtime.limited_log import LimitedLog
from store.server.call import Call, ClientLeft
from store.sql.database import database_of
from store.sql.queue import SQLQueue

limited = LimitedLog(logging.getLogger("store.server"))


def release_if_unread(call: Call, claimed: list[AttemptedRollout], idempotency: Idempotency | None) -> None:
    """Release claims if their client disconnects without reading the response.

    Raises:
        ClientLeft: the client has already disconnected.
    """
    database, connection = database_of(call.store), call.scope.get("rollbook.connection")
    if connection is None or database is None:
        return
    queue = database.queue
    if connection.if_unread(lambda: call.scope["app"].state.parked.aside(_release(queue, claimed, idempotency))):
        raise ClientLeft


async def _release(queue: SQLQueue, claimed: list[AttemptedRollout], idempotency: Idempotency | None) -> None:
    # The connection reports its end in its own context, so the idempotency key is set again.
    context.idempotency_key.set(idempotency)
    try:
        await queue.release_claims(claimed)
    except StoreError as error:
        limited.warning("unread claims could not be released; the watchdog will end them", error)
