"""The store over HTTP: `HTTPStore`, the whole interface on a server's wire protocol."""

from store.client.lightning import LightningStoreClient
from store.client.store import HTTPStore

__all__ = ["HTTPStore", "LightningStoreClient"]
