from store.server.app import build_app as build_app
from store.server.store_server import (
    LightningStoreServer as LightningStoreServer,
    LightningStoreThreaded as LightningStoreThreaded,
    StoreServer as StoreServer,
)
