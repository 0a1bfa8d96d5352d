"""Scanning: scanners label rollouts that have ended, in processes of their own. Decision 118."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
