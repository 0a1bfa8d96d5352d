"""Imports of finished rollouts that other programs recorded, from files in other formats."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
