"""Usage of models in the log: tokens and costs of calls, and their sums. Decision 109."""

from typing import Any, Final, NamedTuple, Self

_LARGEST: Final = 2**62


class UsageNumbers(NamedTuple):
    """Tokens and the reported cost of one call, or their sums over several calls; None for unreported numbers."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    tokens_written: int | None = None
    tokens_reasoning: int | None = None
    cost: float | None = None

    @property
    def source(self) -> str:
        """The basis of the cost of a call: the `reported` cost, or else `counted` tokens, or else `unknown`."""
        if self.cost is not None:
            return "reported"
        return "unknown" if self.tokens_in is None and self.tokens_out is None else "counted"

    def plus(self, other: Self) -> Self:
        """Return the sums of both. A sum is limited to a number that a database can store."""
        return self._make(_sum(one, two) for one, two in zip(self, other, strict=True))

    def minus(self, other: Self) -> Self:
        """Subtract the numbers of a call from sums that include them."""
        return self.plus(self._make(None if number is None else -number for number in other))

    def merged(self, other: Self) -> Self:
        """Return the numbers of a call that two spans report. The greater one of two different numbers counts."""
        return self._make(_greater(one, two) for one, two in zip(self, other, strict=True))


def _greater(one: Any, two: Any) -> Any:
    if one is None or two is None:
        return one if two is None else two
    return max(one, two)


def _sum(one: Any, two: Any) -> Any:
    if one is None or two is None:
        return one if two is None else two
    return min(one + two, _LARGEST)


def has_usage(tokens_in: float, tokens_out: float) -> bool:
    """Return whether the tokens of a rollout are known. If no span of the rollout reported tokens, both sums are 0."""
    return tokens_in > 0 or tokens_out > 0
