"""Checks of labels and notes, for stores on a database and for stores over HTTP."""

from __future__ import annotations

import unicodedata
from typing import Any, Final

from store.domain.statuses import MOST_LABELS
from store.errors import Invalid, TooLarge
from store.models.calls import AnnotateCall
from store.validation import arguments
from store.validation.json_limits import check_text

MAX_LABEL_BYTES: Final = 64
MAX_NOTE_BYTES: Final = 64 * 1024

# Control characters, and characters that end a line or a paragraph.
_UNPRINTABLE: Final = frozenset({"Cc", "Zl", "Zp"})
# The maximum size in bytes of all labels of a call, escaped as JSON. They are stored in the `data` of one event, whose
# size is limited to 8 KiB.
_MOST_BYTES: Final = 8000


def check(call: AnnotateCall) -> None:
    """Check the arguments of `annotate`, with the same error messages for every store.

    Raises:
        Invalid, TooLarge: see `StoreAnnotations.annotate`.
    """
    note = call.note
    if note is not None and not check_text(note, "note", MAX_NOTE_BYTES).strip():
        raise Invalid("note", "is empty; write something, or leave it out")
    for value, field in ((call.span_id, "span_id"), (call.attempt_id, "attempt_id")):
        if value is not None:
            check_text(value, field)
    if call.span_id is not None and note is None:
        raise Invalid("span_id", "needs a note; labels belong to the rollout, not to a span")
    if call.attempt_id is not None and call.span_id is None:
        raise Invalid("attempt_id", "needs a span_id; a note without a span belongs to the rollout")
    to_add, to_remove = _labels(call.add_labels, "add_labels"), _labels(call.remove_labels, "remove_labels")
    both = sorted(set(to_add) & set(to_remove))
    if both:
        raise Invalid("remove_labels", f"{both[0]!r} is in add_labels too; remove it from one of the lists")
    if note is None and not to_add and not to_remove:
        raise Invalid("note", "is missing, and so are labels; give a note, add_labels or remove_labels")
    # Quotes and backslashes take two bytes in JSON. A label in the list also needs two quotes and a comma.
    size = sum(len(label.encode()) + label.count('"') + label.count("\\") + 3 for label in (*to_add, *to_remove))
    if size > _MOST_BYTES:
        raise TooLarge("add_labels", size, _MOST_BYTES, "bytes of labels")


def _labels(values: Any, field: str) -> list[str]:
    labels = arguments.texts(values, field)
    if len(set(labels)) > MOST_LABELS:
        raise TooLarge(field, len(set(labels)), MOST_LABELS, "labels")
    for index, label in enumerate(labels):
        check_label(label, f"{field}[{index}]")
    return labels


def check_label(label: str, path: str) -> None:
    """Check a label.

    Raises:
        Invalid: the label is empty, has spaces at its beginning or end, or contains control characters.
        TooLarge: the label is longer than 64 bytes.
    """
    check_text(label, path, MAX_LABEL_BYTES)
    if not label or label != label.strip():
        raise Invalid(path, f"{label!r} is empty or has spaces at its ends; trim it")
    if any(unicodedata.category(character) in _UNPRINTABLE for character in label):
        raise Invalid(path, f"{label!r} contains control characters; a label is one line of text")
