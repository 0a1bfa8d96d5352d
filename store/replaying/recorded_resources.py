"""The versions of resources that past rollouts were given."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from store.interface.store import Store
from store.models import AttemptedRollout, NamedResources, ResourcesUpdate, Rollout

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment_at(seconds: float) -> datetime:
    """Return the time of an event as a datetime. A read at this moment sees the event, and no event of a later time."""
    return _EPOCH + timedelta(microseconds=round(seconds * 1_000_000))


@dataclass
class RecordedResources:
    """Reader of the versions that rollouts were given.

    Args:
        store: the store.
        position: the position of the log at which the rollouts were read.
    """

    store: Store
    position: int
    _current: dict[str, ResourcesUpdate | None] = field(default_factory=dict[str, ResourcesUpdate | None], init=False)
    _periods: dict[str, dict[int, tuple[float, float]]] = field(
        default_factory=dict[str, dict[int, tuple[float, float]]], init=False
    )
    """By id and version, two times. Between them, the version is known to have been the current one."""
    _contents: dict[tuple[str, int], NamedResources] = field(
        default_factory=dict[tuple[str, int], NamedResources], init=False
    )

    async def version_of(self, rollout: Rollout) -> int | None:
        """Return the version that was current when the latest attempt of a rollout began.

        For a rollout without an attempt, this is the version that was current at `position`. None if the rollout names
        no resources, or if they did not exist at that time.
        """
        resources_id = rollout.resources_id
        if resources_id is None:
            return None
        if resources_id not in self._current:
            self._current[resources_id] = update = await self.store.get_resources_by_id(
                resources_id, as_at=self.position
            )
            if update is not None:
                self._contents[resources_id, update.version] = update.resources
        current = self._current[resources_id]
        if current is None or not isinstance(rollout, AttemptedRollout):
            return None if current is None else current.version
        began = rollout.attempt.start_time
        if current.update_time <= began:
            return current.version
        periods = self._periods.setdefault(resources_id, {})
        for version, (first, last) in reversed(periods.items()):
            if first <= began <= last:
                return version
        update = await self.store.get_resources_by_id(resources_id, as_at=moment_at(began))
        if update is None:
            return None
        if update.version not in periods:
            self._contents[resources_id, update.version] = update.resources
        periods[update.version] = (update.update_time, max(began, periods.get(update.version, (0.0, 0.0))[1]))
        return update.version

    def take(self, resources_id: str, version: int) -> NamedResources:
        """Return the resources of a version that `version_of` returned. Each version can be taken only once."""
        return self._contents.pop((resources_id, version))
