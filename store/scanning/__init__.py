"""Runs of scanners over ended rollouts, in worker processes. Decision 118."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
