"""Annotations of a rollout: labels to find it by, and notes to read."""

from __future__ import annotations

from store.models.enums import Frozen


class Note(Frozen):
    """A note on a rollout."""

    number: int
    """The number of its event in the rollout's history, as `at` takes it."""
    at: float
    """When the store recorded it."""
    actor: str | None
    """The author, as the log names actors: `cli`, `key:<id>`, `worker:<id>`; None if the caller was not named."""
    text: str | None
    """None if the payload was dropped since."""


class Annotations(Frozen):
    """The current annotations of a rollout."""

    labels: list[str]
    """In alphabetical order of their characters."""
    notes: list[Note]
    """Oldest first."""


class AnnotateResult(Frozen):
    """The result of a call to `annotate`."""

    labels: list[str]
    """All labels of the rollout after the call, in alphabetical order of their characters."""
    number: int | None
    """The number of the recorded event in the rollout's history; None if nothing had to be recorded."""
