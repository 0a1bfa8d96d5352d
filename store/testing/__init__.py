"""Tools for tests of a store: a clock that tests move, and the contract of every store.

The contract is `store.testing.contract`; it needs pytest and pytest-asyncio, so nothing here imports it.
"""

from __future__ import annotations

from store.testing.clock import ManualClock

__all__ = ["ManualClock"]
