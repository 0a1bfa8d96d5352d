"""Creation of partitions in the database of a server. Each partition is a separate store."""

from __future__ import annotations

from store.client.store import HTTPStore
from store.client.transport import StoreCall
from store.errors import Invalid
from store.runtime.urls import DEFAULT_PARTITION
from store.wire import encoding, paths
from store.wire.server_url import parse


async def create_partition(url: str, name: str, *, api_key: str | None = None) -> str:
    """Create a partition unless it exists, and return its URL.

    Args:
        url: the URL of the server's default partition.
        name: the name of the partition.
        api_key: an admin's key; None for the value of `ROLLBOOK_API_KEY`, if it is set.

    Raises:
        Invalid: the URL already names a partition.
        Unauthorized: the server requires a key.
        Forbidden: the key does not permit the creation.
        Unavailable: the server does not answer.
    """
    base = parse(url).base
    if paths.PARTITIONS in base:
        raise Invalid("url", f"{base} names a partition already; give the URL of the server")
    target = base if name == DEFAULT_PARTITION else f"{base}{paths.PARTITIONS}{name}"
    async with HTTPStore(target, api_key=api_key) as store:
        call = StoreCall("create_partition", "PUT", paths.STORE, rollbook_only=True)
        await store.core.transport.request(call, encoding.decode_store_info)
    return target
