"""Means and their differences with 95 % confidence intervals by Student's t. Decision 111."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

_PROBABILITY: Final = 0.975
_MANY_DEGREES: Final = 200
"""For this many or more degrees of freedom, the expansion of Cornish and Fisher is exact to ten digits."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The number, the mean and the standard deviation of some values."""

    count: int
    mean: float | None
    """None without values."""
    deviation: float | None
    """The standard deviation, from the unbiased variance; None with fewer than two values."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Return the number, the mean and the standard deviation of finite values."""
        count = len(values)
        if not count:
            return cls(0, None, None)
        try:
            mean = math.fsum(values) / count
        except OverflowError:
            mean = math.fsum(value / count for value in values)
        if count == 1:
            return cls(1, mean, None)
        # `hypot` does not overflow where the squares of finite differences would.
        return cls(count, mean, math.hypot(*(value - mean for value in values)) / math.sqrt(count - 1))

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None with fewer than two values."""
        return None if self.deviation is None else self.deviation / math.sqrt(self.count)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with a 95 % confidence interval of ± `margin`."""

    value: float
    margin: float | None
    """None if there are too few values, or the margin is beyond the range of numbers."""
    degrees: float | None = None
    """The degrees of freedom; None without a margin."""


def mean_interval(sample: Sample) -> Interval | None:
    """Return the mean of independent values, such as differences of pairs; None without values."""
    return None if sample.mean is None else _interval(sample.mean, sample.error, sample.count - 1)


def welch(a: Sample, b: Sample) -> Interval | None:
    """Return the mean of `b` minus that of `a`, which are independent samples; None if one of them is empty.

    The two variances may differ (Welch).
    """
    if a.mean is None or b.mean is None:
        return None
    value = b.mean - a.mean
    if a.error is None or b.error is None:
        return Interval(value, None)
    error = math.hypot(a.error, b.error)
    if not 0 < error < math.inf:
        return _interval(value, error, a.count + b.count - 2)
    share = (a.error / error) ** 2
    degrees = 1 / (share**2 / (a.count - 1) + (1 - share) ** 2 / (b.count - 1))
    return _interval(value, error, degrees)


def _interval(value: float, error: float | None, degrees: float) -> Interval:
    if error is None or not math.isfinite(error):
        return Interval(value, None)
    return Interval(value, t_quantile(degrees) * error, float(degrees))


@lru_cache(maxsize=1024)
def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t; infinite if there are no degrees of freedom.

    For one or more degrees of freedom, the relative error is below 1e-9.
    """
    if degrees <= 0:
        return math.inf
    z = NormalDist().inv_cdf(_PROBABILITY)
    # The expansion of Cornish and Fisher.
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    start = math.fsum(term / degrees**power for power, term in enumerate(terms))
    if degrees >= _MANY_DEGREES:
        return start
    # Above the median the distribution function is concave, so steps of Newton from below the root never pass it.
    return _root(lambda t: (_PROBABILITY - _distribution(t, degrees)) / _density(t, degrees), min(start, 2.0))


def _root(step: Callable[[float], float], start: float) -> float:
    value = start
    for _ in range(100):
        change = step(value)
        value += change
        if abs(change) <= 1e-13 * value:
            break
    return value


def _density(t: float, degrees: float) -> float:
    constant = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    return math.exp(constant - (degrees + 1) / 2 * math.log1p(t * t / degrees))


def _distribution(t: float, degrees: float) -> float:
    """Return the probability of a value below `t`, which is above zero."""
    x, a, b = degrees / (degrees + t * t), degrees / 2, 0.5
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # The continued fraction converges fast on one side of the mean, so the other side uses the symmetry.
    if x < (a + 1) / (a + b + 2):
        return 1 - math.exp(front) * _fraction(x, a, b) / a / 2
    return (1 + math.exp(front) * _fraction(1 - x, b, a) / b) / 2


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, computed from its start (Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    value = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d, c = 1 / ((1 + term * d) or tiny), (1 + term / c) or tiny
            value *= c * d
        if abs(value - before) <= 1e-15 * abs(value):
            break
    return value
