"""HTTP client of a server: `HTTPStore` implements the whole store interface."""

from store.client.lightning import LightningStoreClient
from store.client.partitions import create_partition
from store.client.store import HTTPStore

__all__ = ["HTTPStore", "LightningStoreClient", "create_partition"]
