"""What is said about a rollout: labels to find it by, and notes to read."""

from __future__ import annotations

from store.models.enums import Frozen


class Note(Frozen):
    """What somebody had to say about a rollout."""

    number: int
    """Of its event in the rollout's history; what `at` takes."""
    at: float
    """When the store recorded it."""
    actor: str | None
    """Who made it, as the log names them: `cli`, `key:<id>`, `worker:<id>`; None where nobody was named."""
    text: str | None
    """None where the payload was dropped since."""


class Annotations(Frozen):
    """What is said about a rollout, as it stands."""

    labels: list[str]
    """In the order of their characters."""
    notes: list[Note]
    """Oldest first."""


class AnnotateResult(Frozen):
    """What a call that annotates has come to."""

    labels: list[str]
    """All that the rollout carries after it, in the order of their characters."""
    number: int | None
    """Of the event that recorded it, in the rollout's history; None where nothing had to be."""
