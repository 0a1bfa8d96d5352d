"""Scanners: versions are added once, and their results are recorded for attempts. Decision 117."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from store.domain.body import Body
from store.domain.commands import Command, LoadRequest, ScoreKey
from store.domain.events import RolloutScanned, ScannerAdded
from store.domain.working_set import WorkingSet
from store.errors import Conflict, NotFound

STREAMS = "scanner/"
"""The prefix of the streams of scanners. A stream has one event."""


@dataclass(slots=True, kw_only=True)
class AddScanner(Command):
    """Add a version of a scanner."""

    fact: ScannerAdded
    body: Body

    @property
    def size(self) -> int:
        return len(self.body.stored)

    @property
    def stream(self) -> str:
        """The stream of the version."""
        return f"{STREAMS}{self.fact.name}@{self.fact.version}"

    def request_rows(self, request: LoadRequest) -> None:
        request.scanners.add(self.stream)


@dataclass(slots=True)
class ScanItem:
    """One result to record."""

    rollout_id: str
    fact: RolloutScanned
    body: Body | None = None
    """The explanation and the message of the error; None if there are none."""

    @property
    def key(self) -> ScoreKey:
        """The key of the result: its attempt, and the name and version of the scanner."""
        return self.rollout_id, self.fact.attempt_id, self.fact.scanner, self.fact.version


@dataclass(slots=True, kw_only=True)
class RecordScans(Command):
    """Record results of a scanner: all of them or, if one is refused, none."""

    name: str
    version: str
    items: list[ScanItem]

    @property
    def size(self) -> int:
        return sum(len(item.body.stored) for item in self.items if item.body is not None)

    def request_rows(self, request: LoadRequest) -> None:
        request.scanners.add(f"{STREAMS}{self.name}@{self.version}")
        for item in self.items:
            request.rollouts.add(item.rollout_id)
            request.attempts.add(item.fact.attempt_id)
            request.scans.add(item.key)


def add(command: AddScanner, working_set: WorkingSet) -> bool:
    """Add a version of a scanner; return False if it was added before.

    Raises:
        Conflict: the version has another definition.
    """
    fact = command.fact
    before = working_set.scanners.get(command.stream)
    if before is None:
        working_set.record_scanner(command.stream, fact, actor=command.actor, body=command.body)
        return True
    if before != fact:
        raise Conflict(
            f"version {fact.version!r} of the scanner {fact.name!r} has another definition",
            "definitions never change; add the definition under a new version",
        )
    return False


def record(command: RecordScans, working_set: WorkingSet) -> list[int | None]:
    """Record the results that are new. Return the number of each event; None for a result that is stored already.

    Match and no match are final. An error may be followed by another result.

    Raises:
        NotFound: the scanner, a rollout or an attempt does not exist.
        Conflict: the version has a different result for an attempt. Nothing was recorded.
    """
    scanner = f"{command.name}@{command.version}"
    if f"{STREAMS}{scanner}" not in working_set.scanners:
        raise NotFound("scanner", scanner)
    last = dict(working_set.scans)
    for item in command.items:
        fact = item.fact
        working_set.existing_rollout(item.rollout_id).existing_attempt(fact.attempt_id)
        before = last.get(item.key)
        if before is not None and before.is_match is not None and before != fact:
            raise Conflict(
                f"scanner {scanner} has another result for attempt {fact.attempt_id} of rollout {item.rollout_id}",
                "results never change; record other results under a new version",
            )
        last[item.key] = fact
    numbers: list[int | None] = []
    start = working_set.next_position
    for item in command.items:
        if working_set.scans.get(item.key) == item.fact:
            numbers.append(None)
            continue
        if working_set.next_position > start:
            working_set.tick()
        event = working_set.record_rollout(item.rollout_id, item.fact, actor=command.actor, body=item.body)
        numbers.append(event.version)
    return numbers


DECIDERS: dict[type[Command], Callable[..., Any]] = {AddScanner: add, RecordScans: record}
