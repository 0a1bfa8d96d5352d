"""The chance that at least one of several attempts at a task passes."""

from __future__ import annotations

from math import comb
from typing import Final

KS: Final = (1, 2, 4, 8, 16, 32)
"""The numbers of attempts that pages show, as far as a group has so many."""


def pass_at_k(count: int, passed: int, k: int) -> float | None:
    """Return the unbiased estimate of the chance that at least one of `k` samples passes; None if `k` is too great.

    It is 1 minus the share of the choices of `k` of the `count` samples in which none of the `passed` samples is.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021.
    """
    if not 0 < k <= count:
        return None
    return 1 - comb(count - passed, k) / comb(count, k)
