"""The chance that at least one of several attempts at a task passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import comb
from typing import Final

from store.db.queries.groups import SignalCell

KS: Final = (1, 2, 4, 8, 16, 32)
"""The numbers of attempts that pages show, as far as a group has so many."""


@lru_cache(maxsize=4096)
def pass_at_k(count: int, passed: int, k: int) -> float | None:
    """Return the unbiased estimate of the chance that at least one of `k` samples passes; None if `k` is too great.

    It is 1 minus the share of the choices of `k` of the `count` samples in which none of the `passed` samples is.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021.
    """
    if not 0 < k <= count:
        return None
    return 1 - comb(count - passed, k) / comb(count, k)


@dataclass(frozen=True, slots=True)
class StepSignal:
    """The training signal of the groups of one step."""

    step: int
    groups: int
    """The number of groups with at least two rollouts that count."""
    equal: int
    """The number of these groups whose values are equal, so that no rollout has an advantage."""
    pass_at_k: dict[int, float]
    """For each number of samples, the mean chance over the groups that have so many that one of them passes."""
    groups_at_k: dict[int, int]
    """For each number of samples, the number of groups that have so many."""


def step_signals(cells: Iterable[SignalCell]) -> list[StepSignal]:
    """Return the signals of steps from the cells of their groups, which are in the order of their steps."""
    signals: list[StepSignal] = []
    for step, of_step in groupby(cells, key=lambda cell: cell.step):
        rows = list(of_step)
        chances: dict[int, float] = {}
        counts: dict[int, int] = {}
        for k in KS:
            enough = [(pass_at_k(row.counted, row.passed, k), row.groups) for row in rows]
            counts[k] = sum(groups for chance, groups in enough if chance is not None)
            if counts[k]:
                chances[k] = sum(chance * groups for chance, groups in enough if chance is not None) / counts[k]
        several = [row for row in rows if row.counted > 1]
        equal = sum(row.groups for row in several if not row.has_variance)
        signals.append(
            StepSignal(step, sum(row.groups for row in several), equal, chances, {k: n for k, n in counts.items() if n})
        )
    return signals
