"""Tools for tests of a store: a clock that tests move, and the contract, a set of tests that every store must pass.

The contract is `store.testing.contract`. It requires pytest and pytest-asyncio, so this module does not import it.
"""

from __future__ import annotations

from store.testing.clock import ManualClock

__all__ = ["ManualClock"]
