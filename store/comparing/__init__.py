"""Comparisons of selections of rollouts, and effects of versions of resources. Decision 111."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
