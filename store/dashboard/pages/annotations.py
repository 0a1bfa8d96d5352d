"""The labels and notes that each page of a rollout shows, and the action that adds labels and notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote

from store.dashboard.page import Done, Pages
from store.dashboard.request import PageRequest
from store.db.queries.annotations import labels_in_use
from store.models import Note

pages = Pages()

MOST_NOTES: Final = 20
"""The maximum number of notes that a page shows. If a rollout has more notes, the page shows the latest."""
_MOST_READ: Final = 200
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
    on_spans: Mapping[tuple[str, str], list[Note]]
    """The notes on spans by attempt and span, oldest first; of the latest `_MOST_READ` notes of the rollout."""
    is_open: bool
    """Whether this visitor may add labels and notes here. A page that shows the past accepts no labels and notes."""
    choices: list[str] = field(default_factory=list[str])
    """Labels in use, as suggestions for the form."""


NOTHING: Final = RolloutAnnotations([], [], has_more=False, on_spans={}, is_open=False)


async def annotations_of(request: PageRequest, rollout_id: str, at: int | None = None) -> RolloutAnnotations:
    """Return the labels and notes of a rollout, now or as they were after the rollout's event number `at`."""
    annotations = await request.store.annotations.query(rollout_id, limit=_MOST_READ, at=at)
    on_spans: defaultdict[tuple[str, str], list[Note]] = defaultdict(list)
    for note in annotations.notes:
        if note.attempt_id is not None and note.span_id is not None:
            on_spans[note.attempt_id, note.span_id].append(note)
    newest = annotations.notes[::-1]
    is_open = at is None and request.may("algorithm")
    choices = await request.store.core.look(partial(labels_in_use, limit=_SUGGESTED)) if is_open else []
    has_more = len(newest) > MOST_NOTES
    return RolloutAnnotations(annotations.labels, newest[:MOST_NOTES], has_more, on_spans, is_open, choices)


@pages.post("/ui/rollouts/{rollout_id}/annotate")
async def annotate(request: PageRequest) -> Done:
    """Add a note to a rollout or to one of its spans, add labels, and remove labels.

    The parameters are `note`, `add`, `remove`, `span` and `attempt` (the span to which the note refers), and `tab`.
    """
    rollout_id = request.ids["rollout_id"]
    # Browsers send the lines of a form with CRLF endings.
    note = request.one("note").replace("\r\n", "\n").strip()
    add = [label for text in request.several("add") for part in text.split(",") if (label := part.strip())]
    remove = request.several("remove")
    span_id, attempt_id = request.one("span") or None, request.one("attempt") or None
    tabs = (tab for tab in request.several("tab")[:1] if tab in _TABS)
    back = request.url("rollouts", rollout_id, *tabs, span=span_id, attempt=attempt_id)
    if span_id is not None:
        back = f"{back}#entry-{quote(span_id, safe='')}"
    if not (note or add or remove):
        return Done(back, "Nothing was recorded: enter a label or a note.")
    result = await request.store.annotations.annotate(
        rollout_id, note or None, add_labels=add, remove_labels=remove, span_id=span_id, attempt_id=attempt_id
    )
    return Done(back, "Nothing changed." if result.number is None else f"Recorded as event {result.number}.")
