"""Commands that annotate a rollout with labels and notes, made from arguments that are checked and encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from store.domain.annotations import AnnotateRollout
from store.validation import annotations
from store.validation.json_limits import body_of, check_text


def annotate(rollout_id: Any, note: Any, added: Sequence[str], removed: Sequence[str]) -> AnnotateRollout:
    """Return the command that annotates a rollout.

    Raises:
        Invalid, TooLarge: see `StoreAnnotations.annotate`.
    """
    annotations.check(note, added, removed)
    return AnnotateRollout(
        rollout_id=check_text(rollout_id, "rollout_id"),
        added=_once(added),
        removed=_once(removed),
        body=None if note is None else body_of({"note": note}),
    )


def _once(labels: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(labels))
