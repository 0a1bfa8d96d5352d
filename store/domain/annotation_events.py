"""The fact of an annotation: what was said about a rollout, which is nothing that it did."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(slots=True)
class RolloutAnnotated:
    """Labels were put on a rollout and taken off it, or a note was made: the body holds its text."""

    type: ClassVar = "rollout.annotated"
    shape: ClassVar = 1
    added: list[str]
    """Labels it did not carry before."""
    removed: list[str]
    """Labels it carried."""
    noted: bool | None = None
    """True where there is a note; no fold opens a body to find out."""
