"""A check of whether the database of a store answers, for health probes and load balancers."""

from __future__ import annotations

import asyncio
from typing import Final

from store.errors import StoreError, Unavailable
from store.interface.store import Store
from store.sql.database import database_of

_PATIENCE_SECONDS: Final = 2.0


async def database_fault(store: Store) -> str | None:
    """Return why the database of a store does not answer; None if it answers. The check takes at most two seconds."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            if (database := database_of(store)) is not None:
                await database.core.position()
            else:
                await store.statistics()
    except TimeoutError:
        return f"has not answered for {_PATIENCE_SECONDS:g} s"
    except Unavailable as error:
        return error.reason
    except StoreError as error:
        return str(error)
    return None
