"""Claims that the attempts of a runner make together with the reports of their ends."""

from __future__ import annotations

from collections.abc import Callable


class Claims:
    """The rollouts that a runner may still claim.

    Args:
        limit: the maximum number of rollouts; None for no limit.
        is_stopped: returns whether the runner is stopped.
        must_wait: returns whether the runner has to wait before its next claim.
    """

    def __init__(self, limit: int | None, is_stopped: Callable[[], bool], must_wait: Callable[[], bool]) -> None:
        self._left = limit
        self.is_stopped = is_stopped
        self._must_wait = must_wait

    @property
    def is_over(self) -> bool:
        """Whether the runner has claimed as many rollouts as it may."""
        return self._left is not None and self._left <= 0

    def limit(self, free: int) -> int:
        """Return how many rollouts the runner may claim now, if it can start `free` attempts."""
        return free if self._left is None else min(free, self._left)

    def take(self, count: int) -> None:
        """Count claimed rollouts."""
        if self._left is not None:
            self._left -= count

    def take_next(self) -> bool:
        """Return whether an attempt that ends may claim the next rollout. If so, the rollout is counted as claimed."""
        if self.is_over or self.is_stopped() or self._must_wait():
            return False
        self.take(1)
        return True

    def give_back(self) -> None:
        """Undo `take_next`, because no rollout was claimed, or the claim was undone."""
        self.take(-1)
