"""The content of a view of a run in plain Python, derived from the contract without SQL and without tested code.

`filtered` implements the rule of the earlier pipeline: the part of a flat list of events that a re-run keeps.
`Reference` implements the general rule: lineage, bounds and masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from store.models import Mask
from tests.runs.trading import DEBATE, RISK


class ReferenceEvent(NamedTuple):
    """One event: which it is, and what decides whether a view holds it."""

    version: int
    attempt: int
    scope: str | None
    node_id: str | None
    parent_node_id: str | None = None
    phase: str | None = None


REPLACED = {"debate_and_trader": {*DEBATE, *RISK}, "risk": {*RISK}}
CASCADED = {"review_holdings", "make_pm_decision"}


def filtered(events: Sequence[ReferenceEvent], phase: str, scope: str) -> list[ReferenceEvent]:
    """Return what is left of the events when a phase of a ticker runs again.

    Other tickers, the market and events without a scope stay, and so do earlier phases of the ticker. The nodes of the
    phase and of those after it go, with what has one of them as its parent; from the analysts on all of the ticker
    goes. Two nodes of the portfolio go always, whatever their scope, and nothing that ran under them does.
    """

    def goes(event: ReferenceEvent) -> bool:
        if event.node_id in CASCADED:
            return True
        if event.scope != scope:
            return False
        if phase == "analysts":
            return True
        return event.node_id in REPLACED[phase] or event.parent_node_id in REPLACED[phase]

    return [event for event in events if not goes(event)]


@dataclass
class Attempt:
    """One attempt: what it builds on and what it hides of that."""

    started: int
    """The version of its start."""
    base: int | None = None
    base_version: int | None = None
    masks: Sequence[Mask] = ()
    released: int | None = None
    """The version at which its claim was undone: it never was, and its number goes to the next one."""


@dataclass
class Reference:
    """All that was said, and the attempts."""

    events: list[ReferenceEvent] = field(default_factory=list[ReferenceEvent])
    attempts: dict[int, list[Attempt]] = field(default_factory=dict[int, list[Attempt]])
    """By number; more than one where claims were undone."""
    heads: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(version, attempt) of each move of the head."""

    def start(self, number: int, attempt: Attempt) -> None:
        """Let an attempt begin, and be the head."""
        self.attempts.setdefault(number, []).append(attempt)
        self.heads.append((attempt.started, number))

    def attempt(self, number: int, at: int) -> Attempt | None:
        """Return the attempt of a number that there was after a version."""
        attempts = self.attempts[number]
        there = [
            attempt
            for attempt in attempts
            if attempt.started <= at and (attempt.released is None or attempt.released > at)
        ]
        return there[-1] if there else None

    def head(self, at: int) -> int:
        """Return the head after a version."""
        return [attempt for version, attempt in self.heads if version <= at][-1]

    def seen(self, attempt: int, at: int) -> list[ReferenceEvent]:
        """Return what the view of an attempt holds after a version."""
        events: list[ReferenceEvent] = []
        hiding: list[Mask] = []
        bound: int | None = None
        current: int | None = attempt
        while current is not None:
            mine = [event for event in self.events if event.attempt == current and event.version <= at]
            events += [
                event
                for event in mine
                if (bound is None or event.version <= bound) and not any(_hides(mask, event) for mask in hiding)
            ]
            it = self.attempt(current, at)
            assert it is not None  # nothing builds on what was not there
            hiding += it.masks
            bound, current = it.base_version, it.base
        return sorted(events)

    def events_of(self, attempt: int, at: int) -> list[ReferenceEvent]:
        """Return what an attempt alone had said by a version."""
        return [event for event in self.events if event.attempt == attempt and event.version <= at]

    def raw(self, at: int) -> list[ReferenceEvent]:
        """Return all that was said by a version."""
        return [event for event in self.events if event.version <= at]


def _hides(mask: Mask, event: ReferenceEvent) -> bool:
    if mask.scopes is not None and event.scope not in mask.scopes:
        return False
    if mask.nodes is None and mask.phases is None:
        return True
    nodes, phases = mask.nodes or [], mask.phases or []
    return (
        (event.node_id is not None and event.node_id in nodes)
        or (mask.children and event.parent_node_id in nodes)
        or (event.node_id is None and event.phase in phases)
    )


def versions(events: Iterable[ReferenceEvent]) -> list[int]:
    """Return the versions of some events."""
    return [event.version for event in events]
