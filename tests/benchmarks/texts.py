"""Texts for spans of benchmarks."""

from __future__ import annotations

import random
import string

_WORDS = ["".join(random.Random(seed).choices(string.ascii_lowercase, k=3 + seed % 8)) for seed in range(4000)]


def words(dice: random.Random, size: int) -> str:
    """Return words with at least `size` bytes. They compress about as well as an English text."""
    chosen: list[str] = []
    length = 0
    while length < size:
        chosen.append(dice.choice(_WORDS))
        length += len(chosen[-1]) + 1
    return " ".join(chosen)
