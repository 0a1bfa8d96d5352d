"""Selection of the state that a checkpoint stores, as the phase graph declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from store.errors import Invalid
from store.models.phases import PhaseGraph


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint to save, or the reason not to save it."""

    scope: str
    """The scope, spelled as in the log."""
    after_phase: str | None
    """The name of the phase at whose end the checkpoint is saved; None if unknown."""
    state: dict[str, Any] | None
    """The state to store; None if the state is stored elsewhere."""
    graph: str | None
    """The digest of the phase graph; None if the run has no phase graph."""
    rejection: str | None
    """The condition that the state does not meet; None if the checkpoint is to be saved."""


def taken(
    graph: PhaseGraph | None, *, scope: str, name: str, state: Mapping[str, Any] | None, after_phase: str | None
) -> Taken:
    """Return the checkpoint to save under a name. If no phase declares this checkpoint, the whole state is saved.

    Raises:
        Invalid: `after_phase` is not a phase of the graph.
    """
    if graph is None:
        return Taken(scope, after_phase, None if state is None else dict(state), None, None)
    if after_phase is not None and after_phase not in graph.by_name:
        raise Invalid("after_phase", f"{after_phase!r} is none of {', '.join(graph.by_name)}")
    producer = graph.producer(name)
    if producer is None:
        phase = None if after_phase is None else graph.by_name[after_phase]
        stored, rejection = None if state is None else dict(state), None
    else:
        phase, declared = producer
        stored = None if state is None else declared.of(state)
        # If the state is stored elsewhere, `state` is None. The condition cannot be checked then, so the checkpoint is
        # not rejected.
        rejection = None if state is None else declared.when.failing(state)
    spelled = scope if phase is None else graph.scope_kinds[phase.scope_kind].spelled(scope)
    return Taken(
        scope=spelled,
        after_phase=after_phase or (None if phase is None else phase.name),
        state=stored,
        graph=graph.digest,
        rejection=rejection,
    )
