"""Number of runners that a queue needs, between two limits. Decision 107."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from store.errors import Invalid

_PATIENCE: Final = 30
"""The number of measurements for which fewer runners must have been enough before some are stopped."""
_STEP: Final = 10
"""One measurement may stop one runner out of this many, and at least one runner."""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """Limits of the number of runners.

    Attributes:
        minimum: the number of runners while no rollout waits or runs.
        maximum: the largest number of runners.
        rollouts_per_runner: the number of rollouts, waiting or running, for which there is one runner.

    Raises:
        Invalid: the minimum is below 0 or above the maximum, or another limit is below 1.
    """

    minimum: int
    maximum: int
    rollouts_per_runner: int = 1

    def __post_init__(self) -> None:
        if self.minimum < 0:
            raise Invalid("minimum", f"{self.minimum} is below 0")
        if self.maximum < max(1, self.minimum):
            raise Invalid("maximum", f"{self.maximum} is below {max(1, self.minimum)}")
        if self.rollouts_per_runner < 1:
            raise Invalid("rollouts_per_runner", f"{self.rollouts_per_runner} is below 1")


class FleetSize:
    """Number of runners, which grows at once and shrinks slowly.

    It shrinks after the need has been lower for a number of measurements, by a tenth per measurement, to the largest
    need among these measurements. So a pause between two batches of rollouts stops no runner.

    Args:
        limits: the limits of the number.
    """

    def __init__(self, limits: FleetLimits) -> None:
        self.size = limits.minimum
        """The current number of runners."""
        self._limits = limits
        self._needs = deque[int](maxlen=_PATIENCE)

    def measure(self, rollouts: int) -> int:
        """Return the new number of runners for a number of rollouts that wait or run."""
        limits = self._limits
        need = min(max(-(-rollouts // limits.rollouts_per_runner), limits.minimum), limits.maximum)
        self._needs.append(need)
        if need >= self.size:
            self.size = need
        elif len(self._needs) == _PATIENCE:
            self.size = max(*self._needs, self.size - max(1, self.size // _STEP))
        return self.size
