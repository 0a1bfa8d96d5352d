"""What of a state becomes a checkpoint, as the phase graph declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from store.errors import Invalid
from store.models.phases import PhaseGraph


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint to be saved, or why it is not worth it."""

    scope: str
    """As the log spells it."""
    after_phase: str | None
    state: dict[str, Any] | None
    graph: str | None
    """Digest of the phase graph."""
    rejection: str | None
    """What the state lacks; None where it is to be saved."""


def taken(
    graph: PhaseGraph | None, *, scope: str, name: str, state: Mapping[str, Any] | None, after_phase: str | None
) -> Taken:
    """Return what to save under a name; a checkpoint that nobody declares is saved as it is.

    Raises:
        Invalid: `after_phase` is no phase of the graph.
    """
    if graph is None:
        return Taken(scope, after_phase, None if state is None else dict(state), None, None)
    if after_phase is not None and after_phase not in graph.by_name:
        raise Invalid("after_phase", f"{after_phase!r} is none of {', '.join(graph.by_name)}")
    producer = graph.producer(name)
    if producer is None:
        phase = None if after_phase is None else graph.by_name[after_phase]
        kept, rejection = None if state is None else dict(state), None
    else:
        phase, declared = producer
        kept = None if state is None else declared.of(state)
        # What lies elsewhere cannot be looked into.
        rejection = None if state is None else declared.when.failing(state)
    spelled = scope if phase is None else graph.scope_kinds[phase.scope_kind].spelled(scope)
    return Taken(
        scope=spelled,
        after_phase=after_phase or (None if phase is None else phase.name),
        state=kept,
        graph=graph.digest,
        rejection=rejection,
    )
