"""The extent of repeated tests: a few rounds in `make test`, all rounds in `make torture`."""

from __future__ import annotations

import os
from typing import Protocol

IS_TORTURE = bool(os.environ.get("ROLLBOOK_TORTURE"))


class Rounds(Protocol):
    """The type of `rounds`."""

    def __call__(self, full: int, *, few: int | None = None) -> int:
        """Return the number of rounds to run."""
        ...


def rounds(full: int, *, few: int | None = None) -> int:
    """Return a number of rounds or of hypothesis's examples.

    Args:
        full: the number under ROLLBOOK_TORTURE=1.
        few: the number otherwise; by default a tenth of `full`.
    """
    if IS_TORTURE:
        return full
    return max(1, full // 10) if few is None else few
