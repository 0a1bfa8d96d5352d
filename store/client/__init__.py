"""HTTP client of a server: `HTTPStore` implements the whole store interface."""

from store.client.lightning import LightningStoreClient
from store.client.store import HTTPStore

__all__ = ["HTTPStore", "LightningStoreClient"]
