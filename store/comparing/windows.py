"""Windows of steps before and after the first step of a version of resources. Decision 111."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from store.db.queries.compared_rollouts import StepWindow, VersionStep
from store.errors import Invalid

STEPS: Final = 4
"""The default number of steps of a window."""
MOST_STEPS: Final = 1000


class ResourcesVersion(NamedTuple):
    """A version of resources. Its text has a form such as `prompt@2`."""

    resources_id: str
    version: int

    @classmethod
    def parse(cls, text: str) -> ResourcesVersion:
        """Return the version that a text names.

        Raises:
            Invalid: the text has another form.
        """
        resources_id, _, version = text.rpartition("@")
        number = version.removeprefix("v")
        if not (resources_id and number.isascii() and number.isdecimal() and 0 < int(number[:20]) < 2**63):
            raise Invalid("version", f"{text[:80]!r} is not a version of resources; write ID@VERSION, such as prompt@2")
        return cls(resources_id, int(number))

    def __str__(self) -> str:
        return f"{self.resources_id}@{self.version}"


@dataclass(frozen=True, slots=True)
class StepWindows:
    """The first steps of a version of resources, and the last steps of the version before it."""

    of: ResourcesVersion
    against: int
    """The number of the version before."""
    before: list[int]
    """The last steps of the version before, all of them lower than the first step of the version."""
    after: list[int]
    """The first steps of the version."""

    @property
    def step(self) -> int:
        """The first step of the version."""
        return self.after[0]

    def parts(self) -> tuple[StepWindow, StepWindow]:
        """Return both windows."""
        resources_id, version = self.of
        return (
            StepWindow(resources_id, self.against, self.before),
            StepWindow(resources_id, version, self.after),
        )


def windows_of(used: Sequence[VersionStep], steps: int) -> list[StepWindows]:
    """Return the windows of the versions that have a version before them, sorted by the first step of the version.

    The version before is the highest lower version of the same id that was used at an earlier step.

    Args:
        used: the steps of each version in ascending order.
        steps: the maximum number of steps of a window.
    """
    by_id: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in used:
        by_id[row.resources_id][row.resources_version].append(row.step)
    windows: list[StepWindows] = []
    for resources_id, by_version in by_id.items():
        for version, at in by_version.items():
            earlier = {
                other: [step for step in of_other if step < at[0]]
                for other, of_other in by_version.items()
                if other < version and of_other[0] < at[0]
            }
            if earlier:
                against = max(earlier)
                before = earlier[against][-steps:]
                windows.append(StepWindows(ResourcesVersion(resources_id, version), against, before, at[:steps]))
    return sorted(windows, key=lambda entry: (entry.step, entry.of))
