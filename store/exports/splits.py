"""Splits of an export, such as `train` and `val`. Each rollout belongs to one split."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Literal, get_args

from store.errors import Invalid
from store.exports.records import RolloutRecord

SplitField = Literal["group", "step", "mode"]

_NAME: Final = re.compile(r"\w+(\.\w+)*", re.ASCII)
_RESERVED: Final = "all"
_MOST: Final = 100
"""The most splits of an export. Each split has open files."""
_NO_VALUE: Final = "none"
_SCALE: Final = 2**64


class Splits:
    """A rule by which each rollout belongs to one split.

    Args:
        default: the split of all rollouts if there is no other rule.
        fractions: the fraction of the groups in each split. The hash of a group selects its split. So a group is never
            divided, and has the same split in every export. A rollout without a group counts as a group.
        by: the field of a rollout whose value names its split.

    Raises:
        Invalid: both rules are given, a name or a fraction is invalid, or the fractions do not sum to 1.
    """

    def __init__(
        self, default: str, fractions: Mapping[str, float] | None = None, by: SplitField | None = None
    ) -> None:
        if fractions and by is not None:
            raise Invalid("split_by", "give fractions of groups or a field for the splits, not both")
        if by is not None and by not in get_args(SplitField):
            raise Invalid("split_by", f"{by!r} is not one of {', '.join(get_args(SplitField))}")
        for name, fraction in (fractions or {}).items():
            if _NAME.fullmatch(name) is None or name == _RESERVED:
                raise Invalid("split", f"{name!r} is not a name; use letters, digits and _, and not {_RESERVED!r}")
            if not 0 < fraction <= 1:
                raise Invalid("split", f"{name} has the fraction {fraction:g}; it must be above 0, and at most 1")
        if fractions and not math.isclose(total := math.fsum(fractions.values()), 1, abs_tol=1e-9):
            raise Invalid("split", f"the fractions sum to {total:g}; they must sum to 1")
        self._default = default
        self._fractions = dict(fractions or {})
        self._by = by
        self._names: dict[str, str] = {}

    def of(self, record: RolloutRecord) -> str:
        """Return the split of a rollout.

        Raises:
            Invalid: there are too many splits.
        """
        if self._fractions:
            return self._by_hash(record.rollout.rollout_id if record.group is None else record.group)
        if self._by is None:
            return self._default
        value = {"group": record.group, "step": record.step, "mode": record.rollout.mode}[self._by]
        text = _NO_VALUE if value is None else f"step_{value}" if self._by == "step" else str(value)
        name = self._names.get(text)
        if name is None:
            if len(self._names) == _MOST:
                raise Invalid(
                    "split_by", f"there are more than {_MOST} values of {self._by}; filter them, or give fractions"
                )
            name = self._names[text] = _valid_name(text)
        return name

    def _by_hash(self, key: str) -> str:
        point = int.from_bytes(sha256(key.encode()).digest()[:8]) / _SCALE
        end = 0.0
        for name, fraction in self._fractions.items():
            end += fraction
            if point < end:
                return name
        return next(reversed(self._fractions))


def _valid_name(text: str) -> str:
    """Return a valid name of a split for a text. Different texts have different names."""
    if _NAME.fullmatch(text) and text != _RESERVED and len(text) <= 100:
        return text
    readable = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:80]
    return f"{readable}_{sha256(text.encode()).hexdigest()[:8]}"
