"""Annotations of rollouts, which add labels or a note, or remove labels. Decision 32."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from store.domain.body import Body
from store.domain.commands import Command, LoadRequest
from store.domain.events import RolloutAnnotated
from store.domain.statuses import MOST_LABELS
from store.domain.working_set import WorkingSet
from store.errors import Invalid


@dataclass(slots=True, kw_only=True)
class AnnotateRollout(Command):
    """Add labels to a rollout, remove labels from it, and add a note to it."""

    rollout_id: str
    added: list[str]
    removed: list[str]
    body: Body | None = None
    """The text of the note; None if no note is added."""

    @property
    def size(self) -> int:
        return len(self.body.stored) if self.body else 0

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.labelled.add(self.rollout_id)


@dataclass(frozen=True, slots=True)
class AnnotationView:
    """The labels of a rollout after an annotation, and the number of the event that recorded the annotation."""

    labels: list[str]
    """All labels of the rollout, sorted."""
    version: int | None
    """The number of the annotation's event in the rollout's stream; None if nothing changed."""


def annotate(command: AnnotateRollout, working_set: WorkingSet) -> AnnotationView:
    """Record the new labels that the rollout does not have, the removed labels that it has, and the note.

    Without such a label and without a note, nothing is recorded.

    Raises:
        NotFound: the rollout does not exist.
        Invalid: the rollout would have too many labels.
    """
    labels = working_set.existing_rollout(command.rollout_id).labels
    assert labels is not None  # the command requested the labels
    added = [label for label in command.added if label not in labels]
    removed = [label for label in command.removed if label in labels]
    label_count = len(labels) + len(added) - len(removed)
    if label_count > MOST_LABELS and added:
        raise Invalid(
            "add_labels", f"results in {label_count} labels; a rollout has at most {MOST_LABELS}; remove some"
        )
    if not (added or removed or command.body):
        return AnnotationView(sorted(labels), None)
    fact = RolloutAnnotated(added=added, removed=removed, noted=True if command.body else None)
    event = working_set.record_rollout(command.rollout_id, fact, actor=command.actor, body=command.body)
    return AnnotationView(sorted(labels), event.version)


DECIDERS: dict[type[Command], Callable[..., Any]] = {AnnotateRollout: annotate}
