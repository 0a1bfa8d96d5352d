"""Annotations of a rollout: labels, by which users find the rollout, and notes for people to read."""

from __future__ import annotations

from store.models.enums import Frozen


class Note(Frozen):
    """A note on a rollout."""

    number: int
    """The number of the note's event in the rollout's history. The argument `at` of reads takes such a number."""
    at: float
    """When the store recorded the note, in seconds since the epoch."""
    actor: str | None
    """The author, in the form that the log uses: `cli`, `key:<id>`, `worker:<id>`; None if the author is unknown."""
    text: str | None
    """None if the text was removed from the log after it was recorded."""
    span_id: str | None = None
    """The span to which the note refers; None if it refers to the rollout, or if its text was removed."""
    attempt_id: str | None = None
    """The attempt of this span."""


class Annotations(Frozen):
    """The current annotations of a rollout."""

    labels: list[str]
    """The labels, sorted by the code points of their characters."""
    notes: list[Note]
    """The notes, oldest first."""


class AnnotateResult(Frozen):
    """The result of a call to `annotate`."""

    labels: list[str]
    """All labels of the rollout after the call, sorted by the code points of their characters."""
    number: int | None
    """The number of the recorded event in the rollout's history; None if nothing had to be recorded."""
