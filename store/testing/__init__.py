"""What a test of a store needs: a clock that moves only when told, and the contract every store keeps.

The contract is `store.testing.contract`; it needs pytest and pytest-asyncio, so nothing here imports it.
"""

from __future__ import annotations

from store.testing.clock import ManualClock

__all__ = ["ManualClock"]
