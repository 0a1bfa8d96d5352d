"""Webhooks in a server: the partitions whose conditions are checked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Final

from store.db.url import with_partition
from store.errors import StoreError
from store.server.partitions import Partitions
from store.webhooks.delivery import WebhookThread
from store.wire.paths import PARTITIONS

logger = logging.getLogger("store.webhooks")

_FIRST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 30.0
_LISTED_EVERY: Final = 20
"""After this many looks at open partitions, a look is at all partitions of the database."""


@asynccontextmanager
async def delivered_webhooks(
    partitions: Partitions, url: str, base_url: str, *, allow_private: bool, is_first: bool
) -> AsyncGenerator[None]:
    """Check the conditions of the webhooks of all partitions, and deliver messages, during the block.

    Args:
        partitions: the partitions of the server.
        url: the URL of the root store.
        base_url: the address of the server, for links to pages.
        allow_private: whether messages may be sent to private addresses.
        is_first: whether this is the first process of the server. The other processes deliver nothing.
    """
    if not is_first:
        yield
        return
    thread = WebhookThread(allow_private=allow_private)
    looking = asyncio.create_task(_look(partitions, thread, url, base_url))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        await asyncio.to_thread(thread.close)


async def _look(partitions: Partitions, thread: WebhookThread, url: str, base_url: str) -> None:
    # A server that runs only for a moment checks nothing.
    await asyncio.sleep(_FIRST_SECONDS)
    names = await _names(partitions)
    for number in count(1):
        # A partition that has webhooks is checked until the server ends, also while it is closed.
        for name in {*names, *(name for name, _ in partitions.open_stores())}:
            place = base_url if name == partitions.root_name else f"{base_url}{PARTITIONS}{name}"
            thread.follow(name, with_partition(url, name), place)
        names = []
        await asyncio.sleep(_LOOK_SECONDS)
        if number % _LISTED_EVERY == 0:
            names = await _names(partitions)


async def _names(partitions: Partitions) -> list[str]:
    try:
        return await partitions.names()
    except StoreError as error:
        logger.warning("the partitions with webhooks could not be listed: %s", error)
        return []
