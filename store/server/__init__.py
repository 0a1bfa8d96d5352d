"""The HTTP server: Agent-lightning 0.3's protocol and Rollbook's own routes, for every partition of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.server.app import build_app
    from store.server.store_server import LightningStoreServer, LightningStoreThreaded, StoreServer

__all__ = ["LightningStoreServer", "LightningStoreThreaded", "StoreServer", "build_app"]

# Processes that never serve, such as forked runners that only call a server, import these classes as well, so their
# modules are loaded on first use.
_LATE = {
    "LightningStoreServer": "store.server.store_server",
    "LightningStoreThreaded": "store.server.store_server",
    "StoreServer": "store.server.store_server",
    "build_app": "store.server.app",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_LATE[name]), name)
        return value
