"""The labels and notes that each page of a rollout shows, and the action that adds labels and notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from store.dashboard.page import Done, Pages
from store.dashboard.request import PageRequest
from store.db.queries.annotations import labels_in_use
from store.models import Note

pages = Pages()

MOST_NOTES: Final = 20
"""The maximum number of notes that a page shows. If a rollout has more notes, the page shows the latest."""
_SUGGESTED: Final = 50
_TABS: Final = ("waterfall", "events", "training", "raw")
"""The path segments of the tabs that contain the form. The first tab contains the form too, but needs no segment."""


@dataclass(frozen=True, slots=True)
class RolloutAnnotations:
    """The labels and notes of a rollout, for the template and the JSON version of a page."""

    labels: list[str]
    notes: list[Note]
    """The latest notes, newest first."""
    has_more: bool
    """Whether there are older notes."""
    is_open: bool
    """Whether this visitor may add labels and notes here. A page that shows the past accepts no labels and notes."""
    choices: list[str] = field(default_factory=list[str])
    """Labels in use, as suggestions for the form."""


NOTHING: Final = RolloutAnnotations([], [], has_more=False, is_open=False)


async def annotations_of(request: PageRequest, rollout_id: str, at: int | None = None) -> RolloutAnnotations:
    """Return the labels and notes of a rollout, now or as they were after the rollout's event number `at`."""
    annotations = await request.store.annotations.query(rollout_id, limit=MOST_NOTES + 1, at=at)
    newest = annotations.notes[::-1]
    is_open = at is None and request.may("algorithm")
    choices = await request.store.core.look(partial(labels_in_use, limit=_SUGGESTED)) if is_open else []
    return RolloutAnnotations(annotations.labels, newest[:MOST_NOTES], len(newest) > MOST_NOTES, is_open, choices)


@pages.post("/ui/rollouts/{rollout_id}/annotate")
async def annotate(request: PageRequest) -> Done:
    """Add a note to a rollout, add labels, and remove labels."""
    rollout_id = request.ids["rollout_id"]
    # Browsers send the lines of a form with CRLF endings.
    note = request.one("note").replace("\r\n", "\n").strip()
    add = [label for text in request.several("add") for part in text.split(",") if (label := part.strip())]
    remove = request.several("remove")
    back = request.url("rollouts", rollout_id, *(tab for tab in request.several("tab")[:1] if tab in _TABS))
    if not (note or add or remove):
        return Done(back, "Nothing was recorded: enter a label or a note.")
    result = await request.store.annotations.annotate(rollout_id, note or None, add_labels=add, remove_labels=remove)
    return Done(back, "Nothing changed." if result.number is None else f"Recorded as event {result.number}.")
