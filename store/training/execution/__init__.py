"""Execution strategies, which run an algorithm and its runners in threads, or in processes on one or more machines."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
