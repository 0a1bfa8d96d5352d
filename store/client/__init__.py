"""The store over HTTP: `HTTPStore`, the whole interface on a server's wire protocol."""

from store.client.http_store import HTTPStore
from store.client.lightning import LightningStoreClient

__all__ = ["HTTPStore", "LightningStoreClient"]
