"""How ended rollouts without a reward count in a mean of rewards. Decision 110."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Self, cast, get_args

from store.errors import Invalid

Substituted = Literal["out", "failed", "ended"]
"""The rollouts without a reward that count: none (`out`), those that failed, or all that ended."""

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
"""The statuses of ended rollouts."""
SHARES_APART: Final = 0.03
"""If two shares of rewarded rollouts differ by this or more, a comparison of the means of rewards has a warning."""


@dataclass(frozen=True, slots=True)
class MissingReward:
    """Which of the ended rollouts without a reward count in a mean, and as which value.

    As text, it is `out`, or a kind of rollouts with a value, such as `failed:0` or `ended:-1`. Rollouts that have not
    ended never count.
    """

    substituted: Substituted = "failed"
    value: float = 0.0

    @classmethod
    def parse(cls, text: str, field: str = "unrewarded") -> Self:
        """Return the choice that a text states. A kind without a value counts as 0; an empty text is the default.

        Raises:
            Invalid: the text has another form, or the value is not a finite number of at most 1e100.
        """
        if not text:
            return cls()
        kind, _, amount = text.partition(":")
        if kind not in get_args(Substituted) or (kind == "out" and amount):
            raise Invalid(field, f"{text[:80]!r} is not a choice; write out, failed:0 or ended:0")
        try:
            value = float(amount or 0)
        except ValueError:
            raise Invalid(field, f"{amount[:80]!r} is not a number; write failed:0 or ended:-1") from None
        if not math.isfinite(value) or abs(value) > 1e100:
            raise Invalid(field, f"{amount[:80]!r} must be a finite number of at most 1e100")
        return cls(cast("Substituted", kind), value + 0.0)

    def __str__(self) -> str:
        return "out" if self.substituted == "out" else f"{self.substituted}:{self.value:.17g}"

    @property
    def param(self) -> str | None:
        """The value of the parameter `unrewarded` of a URL; None for the default."""
        return None if self == MissingReward() else str(self)

    @property
    def label(self) -> str:
        """The choice in words: `rewarded only`, `failed as 0`, `all ended as 0`."""
        if self.substituted == "out":
            return "rewarded only"
        subject = "failed" if self.substituted == "failed" else "all ended"
        return f"{subject} as {self.value:g}"

    def substitute(self, status: str) -> float | None:
        """Return the value as which a rollout of this status without a reward counts; None if it is left out."""
        if self.substituted == "out" or status not in ENDED:
            return None
        return self.value if self.substituted == "ended" or status == "failed" else None

    def counted(self, status: str, reward: float | None) -> float | None:
        """Return the value as which a rollout counts in a mean; None if it is left out."""
        if status not in ENDED:
            return None
        return self.substitute(status) if reward is None else reward


FAILED_AS_ZERO: Final = MissingReward()
"""The default of pages."""
AS_RECORDED: Final = MissingReward("out")
"""The default of exports."""


class RewardShare(NamedTuple):
    """The number of ended rollouts behind a mean of rewards, and how many of them have a reward."""

    rewarded: int
    """The number of ended rollouts that have a reward."""
    ended: int

    @property
    def share(self) -> float | None:
        """The share of ended rollouts that have a reward; None if no rollout ended."""
        return self.rewarded / self.ended if self.ended else None

    def __str__(self) -> str:
        return f"{self.rewarded:,} of {self.ended:,} rewarded"

    def is_apart(self, other: RewardShare) -> bool:
        """Return whether the shares differ by `SHARES_APART` or more, so that means of rewards mislead."""
        if self.share is None or other.share is None:
            return False
        return abs(self.share - other.share) >= SHARES_APART
