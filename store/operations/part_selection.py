"""Selection of a part of a store: rollouts that match a query, with the events of all streams that belong to them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries import filters, pages, scan
from store.domain.events import RolloutAmended, RolloutEnqueued, RolloutScanned, RolloutStarted
from store.domain.rollout import TERMINAL
from store.errors import Invalid, NotFound
from store.models.queries import RolloutQuery
from store.operations.reports import PartContents
from store.verification import seal as seals

STREAMS_AT_ONCE: Final = 500
_LONGEST_CONDITIONS: Final = 1000
_NAMING_RESOURCES: Final = (RolloutEnqueued.type, RolloutStarted.type, RolloutAmended.type)


@dataclass(slots=True)
class PartSelection:
    """A part of a store."""

    contents: PartContents
    rollout_ids: Sequence[str]
    positions: array[int]
    """The positions of the events of the part, in ascending order."""

    def position_in_copy(self, position: int | None) -> int | None:
        """Return the position that the copy of an event has; None if the part does not contain the event.

        The first event of the copy is the reference to the store, so the copied events begin at position 2.
        """
        if position is None:
            return None
        index = bisect_left(self.positions, position)
        return index + 2 if index < len(self.positions) and self.positions[index] == position else None


def conditions_of(query: RolloutQuery) -> str:
    """Return the conditions of a query in words.

    Raises:
        Invalid: the query has `as_at`, because a copy contains the rollouts as they are now.
    """
    if query.as_at is not None:
        raise Invalid("as_at", "rollouts can only be copied as they are now; leave it out")
    conditions = [
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"  # pyright: ignore[reportUnknownArgumentType]
        for name in (*query.conditions(), "reward_version")
        if (value := getattr(query, name)) is not None
    ]
    text = f" {query.filter_logic} ".join(conditions) or "all rollouts"
    return text if len(text) <= _LONGEST_CONDITIONS else f"{text[:_LONGEST_CONDITIONS]}…"


async def select_part(session: ReadSession, store_id: str, query: RolloutQuery) -> PartSelection:
    """Return the part of a store that a query selects. The order, the limit and the offset of the query are ignored.

    The part contains the streams of the rollouts, the streams of all resources that these rollouts ever used, and
    the streams of the scanners that have results for these rollouts.

    Args:
        session: a snapshot of the database.
        store_id: the id of the store.
        query: the conditions.

    Raises:
        NotFound: no rollout matches.
        Invalid: a condition is invalid, or the query has `as_at`.
    """
    conditions = conditions_of(query)
    unlimited = query.model_copy(update={"limit": -1, "offset": 0, "sort_by": None, "sort_order": "asc"})
    rollout_ids: list[str] = []
    unfinished = 0

    def take(rows: Sequence[NamedRow]) -> None:
        nonlocal unfinished
        rollout_ids.extend(row.rollout_id for row in rows)
        unfinished += sum(row.status not in TERMINAL for row in rows)

    await pages.take_rollout_ids(session, filters.of(unlimited), take)
    if not rollout_ids:
        raise NotFound("rollout", conditions, f"no rollout matches the conditions: {conditions}")
    positions = array("q")
    resources: set[str] = set()
    scanners: set[str] = set()
    for start in range(0, len(rollout_ids), STREAMS_AT_ONCE):
        streams = [f"rollout/{rollout_id}" for rollout_id in rollout_ids[start : start + STREAMS_AT_ONCE]]
        positions.extend(await scan.positions_of(session, streams))
        for row in await scan.events_of(session, streams, _NAMING_RESOURCES):
            if (resources_id := json_of(row.data).get("resources_id")) is not None:
                resources.add(resources_id)
        for row in await scan.events_of(session, streams, [RolloutScanned.type]):
            data = json_of(row.data)
            scanners.add(f"scanner/{data['scanner']}@{data['version']}")
    ids = sorted(resources)
    for start in range(0, len(ids), STREAMS_AT_ONCE):
        streams = [f"resources/{resources_id}" for resources_id in ids[start : start + STREAMS_AT_ONCE]]
        positions.extend(await scan.positions_of(session, streams))
    for start in range(0, len(scanners), STREAMS_AT_ONCE):
        positions.extend(await scan.positions_of(session, sorted(scanners)[start : start + STREAMS_AT_ONCE]))
    contents = PartContents(
        origin=await seals.head(session, store_id),
        conditions=conditions,
        rollouts=len(rollout_ids),
        unfinished=unfinished,
        resources=len(ids),
        events=len(positions),
    )
    return PartSelection(contents, rollout_ids, array("q", sorted(positions)))
