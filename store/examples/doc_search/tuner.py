"""Evolution strategy that tunes a ranking, the set of parameters of a search engine.

In each round, eight random rankings around a centre are tried. Then the centre moves to the mean of the best three
rankings, and the next rankings are closer to the centre.
"""

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
    """The centre of the rankings, and the random generator of rankings around the centre.

    All parameters are changed on a logarithmic scale, on which halving and doubling a weight are changes of equal size.
    """

    def __init__(self, start: Ranking, seed: int) -> None:
        self.centre = start
        self._random = random.Random(seed)
        self._step = FIRST_STEP

    def propose(self) -> list[Ranking]:
        """Return random rankings around the centre, which are to be tried next."""
        return [nearby(self.centre, self._step, self._random) for _ in range(CANDIDATES)]

    def learn(self, tried: Sequence[Ranking], rewards: Sequence[float]) -> None:
        """Move the centre to the mean of the best rankings. The next proposals will be closer to the centre."""
        by_reward = sorted(range(len(tried)), key=lambda index: (-rewards[index], index))
        best = [_to_logs(tried[index]) for index in by_reward[:BEST]]
        self.centre = _from_logs([math.fsum(values) / len(values) for values in zip(*best, strict=True)])
        self._step *= STEP_SHRINKS_BY


def nearby(ranking: Ranking, step: float, rng: random.Random) -> Ranking:
    """Return a random ranking near another ranking. `step` is the standard deviation of each parameter's logarithm."""
    return _from_logs([value + step * rng.gauss(0, 1) for value in _to_logs(ranking)])


def _to_logs(ranking: Ranking) -> list[float]:
    return [math.log(value) for value in (*ranking.weights, ranking.k1, ranking.b)]


def _from_logs(logs: Sequence[float]) -> Ranking:
    *weights, k1, b = (math.exp(value) for value in logs)
    # With b above 1, a word in a short field would have a negative weight.
    return Ranking(tuple(weights), k1, min(b, 1.0))
