"""The HTTP server: Agent-lightning 0.3's protocol and Rollbook's own routes, for every partition of a database."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
