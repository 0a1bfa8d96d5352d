"""Resources of a replay: those from the start of the recorded training, and those that the algorithm publishes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter

from store.errors import Unsupported
from store.interface.store import Store
from store.models import PaginatedResult, ResourcesUpdate, ResourceUnion
from store.models.queries import ResourcesQuery
from store.runtime.ids import resources_id as fresh_id


@dataclass
class ReplayResources:
    """Resources that an algorithm sees in a replay.

    Args:
        source: the store of the recorded rollouts, which is only read.
        start: the moment of the source's log at which the first recorded rollout was created; None without recordings.
        used: the ids of the resources of the rollouts that the algorithm has enqueued.
    """

    source: Store
    start: datetime | None
    used: AbstractSet[str]
    _published: dict[str, ResourcesUpdate] = field(default_factory=dict[str, ResourcesUpdate], init=False)
    """The current version of each id that the algorithm has published, the latest at the end."""

    async def publish(
        self, resources_id: str | None, resources: Mapping[str, ResourceUnion], now: float
    ) -> ResourcesUpdate:
        """Publish resources, under a fresh id if the id is None."""
        key = fresh_id() if resources_id is None else resources_id
        before = self._published.pop(key, None) or await self._at_start(key)
        self._published[key] = update = ResourcesUpdate(
            resources_id=key,
            create_time=now if before is None else before.create_time,
            update_time=now,
            version=1 if before is None else before.version + 1,
            resources=dict(resources),
        )
        return update

    async def get(self, resources_id: str) -> ResourcesUpdate | None:
        """Return the current version under an id.

        If the algorithm has not published the id, and the id did not exist at the start, but an enqueued rollout was
        recorded with the id, the result is the current version of the source.
        """
        update = self._published.get(resources_id) or await self._at_start(resources_id)
        if update is None and resources_id in self.used:
            update = await self.source.get_resources_by_id(resources_id)
        return update

    async def _at_start(self, resources_id: str) -> ResourcesUpdate | None:
        return None if self.start is None else await self.source.get_resources_by_id(resources_id, as_at=self.start)

    async def latest(self) -> ResourcesUpdate | None:
        """Return the resources that were published last."""
        if self._published:
            return next(reversed(self._published.values()))
        return None if self.start is None else await self.source.get_latest_resources(as_at=self.start)

    async def find(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        """Return the matching resources in their current version."""
        if query.as_at is not None:
            raise Unsupported("query_resources with as_at", "ReplayStore")
        updates: dict[str, ResourcesUpdate] = {}
        if self.start is not None:
            present = query.model_copy(update={"as_at": self.start, "limit": -1, "offset": 0})
            updates |= {update.resources_id: update for update in await self.source.find_resources(present)}
        updates |= {key: update for key, update in self._published.items() if _matches(query, key)}
        items = list(updates.values())
        if (name := query.sort_by) is not None:
            items.sort(key=attrgetter(name), reverse=query.sort_order == "desc")
        stop = None if query.limit == -1 else query.offset + query.limit
        return PaginatedResult(
            items=items[query.offset : stop], limit=query.limit, offset=query.offset, total=len(items)
        )


def _matches(query: ResourcesQuery, resources_id: str) -> bool:
    is_equal = query.resources_id in {None, resources_id}
    return is_equal and (query.resources_id_contains is None or query.resources_id_contains in resources_id)
