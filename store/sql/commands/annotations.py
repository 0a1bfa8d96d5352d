"""Commands that annotate a rollout with labels and notes, made from arguments that are checked and encoded."""

from __future__ import annotations

from collections.abc import Sequence

from store.domain.annotations import AnnotateRollout
from store.models.calls import AnnotateCall
from store.validation import annotations
from store.validation.json_limits import body_of, check_text


def annotate(call: AnnotateCall) -> AnnotateRollout:
    """Return the command that annotates a rollout. The call must name the attempt of its span.

    Raises:
        Invalid, TooLarge: see `StoreAnnotations.annotate`.
    """
    annotations.check(call)
    target = {} if call.span_id is None else {"attempt_id": call.attempt_id, "span_id": call.span_id}
    return AnnotateRollout(
        rollout_id=check_text(call.rollout_id, "rollout_id"),
        added=_once(call.add_labels),
        removed=_once(call.remove_labels),
        body=None if call.note is None else body_of({"note": call.note, **target}),
    )


def _once(labels: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(labels))
