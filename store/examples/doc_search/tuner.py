"""Evolution strategy over rankings: try eight around a centre, move to the mean of the best three, shorten the step."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from store.examples.doc_search.bm25f import Ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 6
CANDIDATES = 8
BEST = 3
FIRST_STEP = 0.7
STEP_SHRINKS_BY = 0.85


class Tuner:
    """The centre of the search, and the seeded generator of candidates around it.

    All parameters are searched on a log scale, on which halving and doubling a weight are steps of the same size.
    """

    def __init__(self, start: Ranking, seed: int) -> None:
        self.centre = start
        self._random = random.Random(seed)
        self._step = FIRST_STEP

    def propose(self) -> list[Ranking]:
        """Return the rankings to try next, all drawn around the centre."""
        return [nearby(self.centre, self._step, self._random) for _ in range(CANDIDATES)]

    def learn(self, tried: Sequence[Ranking], rewards: Sequence[float]) -> None:
        """Move the centre to the mean of the best rankings, and shorten the next steps."""
        by_reward = sorted(range(len(tried)), key=lambda place: (-rewards[place], place))
        best = [_to_logs(tried[place]) for place in by_reward[:BEST]]
        self.centre = _from_logs([math.fsum(values) / len(values) for values in zip(*best, strict=True)])
        self._step *= STEP_SHRINKS_BY


def nearby(ranking: Ranking, step: float, rng: random.Random) -> Ranking:
    """Return a random ranking around another, at a distance given by the step."""
    return _from_logs([value + step * rng.gauss(0, 1) for value in _to_logs(ranking)])


def _to_logs(ranking: Ranking) -> list[float]:
    return [math.log(value) for value in (*ranking.weights, ranking.k1, ranking.b)]


def _from_logs(logs: Sequence[float]) -> Ranking:
    *weights, k1, b = (math.exp(value) for value in logs)
    # With b above 1, a word in a short field would have a negative weight.
    return Ranking(tuple(weights), k1, min(b, 1.0))
