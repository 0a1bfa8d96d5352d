"""Types of the API, named as in Agent-lightning 0.3, and the results of reading the log."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
