"""The result of an import."""

from __future__ import annotations

from pydantic import Field

from store.models.enums import Frozen


class Skipped(Frozen):
    """A part of a source that was not imported."""

    place: str
    """Where the part is, such as `runs/traces.jsonl:12`."""
    reason: str


class ImportResult(Frozen):
    """The result of an import."""

    source: str
    """The format of the source, such as `traces`."""
    is_dry_run: bool
    imported: int = 0
    """The number of rollouts that were created. With a dry run: the number that would be created."""
    continued: int = 0
    """The number of rollouts that an earlier import had begun and this import completed."""
    extended: int = 0
    """The number of rollouts in the store that got further spans, such as the advantages of a batch."""
    unchanged: int = 0
    """The number of rollouts that did not change, because the store already contained them completely."""
    spans: int = 0
    """The number of spans that were stored. With a dry run: the number that would be stored.

    A dry run counts all spans of a rollout that would be continued, also those that are already stored.
    """
    resources: int = 0
    """The number of ids whose resources were published. With a dry run: the number that would be published."""
    skipped: int = 0
    """The number of parts of the source that were skipped."""
    skips: list[Skipped] = Field(default_factory=list[Skipped])
    """The first 1,000 parts that were skipped."""
    seconds: float = 0.0
    """The duration of the import."""
