"""Scanners: versioned programs that decide which ended rollouts match, and their results. Decision 117."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from store.models.enums import Frozen

ScannerKind = Literal["search", "regex", "function", "model"]


class NewScanner(Frozen):
    """A version of a scanner. The definition of a version never changes."""

    name: str
    """One line of 1 to 64 bytes, without @."""
    version: str
    """One line of 1 to 64 bytes, without @."""
    kind: ScannerKind
    definition: dict[str, Any]
    """The parameters of the scanner, such as `{"query": "error"}`; up to 64 KiB as JSON."""
    match_label: str | None = None
    """The label of rollouts that people judged to match; None without a validation set."""
    clear_label: str | None = None
    """The label of rollouts that people judged not to match."""


@dataclass(frozen=True, slots=True)
class ScanValidation:
    """The results for the latest attempts of rollouts with exactly one of the scanner's two labels.

    Rollouts whose latest attempt has no result, or an error, do not count.
    """

    true_matches: int
    """The number of rollouts with `match_label` that matched."""
    missed: int
    """The number of rollouts with `match_label` that did not match."""
    false_matches: int
    """The number of rollouts with `clear_label` that matched."""
    true_clear: int
    """The number of rollouts with `clear_label` that did not match."""

    @property
    def labelled(self) -> int:
        """The number of rollouts that count."""
        return self.true_matches + self.missed + self.false_matches + self.true_clear

    @property
    def precision(self) -> float | None:
        """Of the matches, the share with `match_label`; None without matches."""
        matches = self.true_matches + self.false_matches
        return self.true_matches / matches if matches else None

    @property
    def recall(self) -> float | None:
        """Of the results with `match_label`, the share of matches; None without results."""
        positive = self.true_matches + self.missed
        return self.true_matches / positive if positive else None


class Scanner(NewScanner):
    """A version of a scanner in the store, and the numbers of attempts by their last result."""

    at: float
    """When the version was added, in seconds since the epoch."""
    actor: str | None
    matches: int
    clear: int
    """The number of attempts whose last result is no match."""
    failures: int
    """The number of attempts whose last result is an error."""
    validation: ScanValidation | None = None
    """The agreement with the labels; None without `match_label`, and for a moment of the past."""


class ScanError(Frozen):
    """The error of a scanner for an attempt."""

    type: str
    """The class of the error, such as `ValueError`."""
    message: str


class NewScan(Frozen):
    """The result of a scanner for an attempt: a match, no match, or an error."""

    rollout_id: str
    attempt_id: str
    is_match: bool | None = None
    """None if the scanner failed."""
    error: ScanError | None = None
    """The error; None for a match or no match."""
    explanation: str | None = None
    """A text about the result, up to 4 KiB. It is payload, so it can be removed later."""


class Scan(NewScan):
    """A recorded result."""

    scanner: str
    version: str
    number: int
    """The number of the result's event in the rollout's history."""
    at: float
    """When the store recorded the result, in seconds since the epoch."""
    actor: str | None


class UnscannedAttempt(Frozen):
    """The latest attempt of an ended rollout, without a result of a scanner."""

    rollout_id: str
    attempt_id: str
