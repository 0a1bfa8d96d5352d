"""Replays: past rollouts are enqueued again, or are given to an algorithm as they were recorded. Decision 99."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
