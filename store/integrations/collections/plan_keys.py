"""Plan keys for collections that do not store plan keys. The keys are read from the metadata of the rollouts."""

from __future__ import annotations

from typing import Final

from store.integrations.collections.interface import Collection
from store.models import Rollout
from store.semconv import PLAN_KEY
from store.validation.json_limits import canonical_sha256

_PAGE: Final = 1000


class PlanKeyIndex:
    """Index of plan keys. A search for an unknown key reads the rollouts that were created after the last search.

    After a restart, a key is found only if the metadata of the rollout still contains the key.
    """

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._read = 0

    async def get(self, rollouts: Collection[Rollout], key: str) -> str | None:
        """Return the id of the rollout with a plan key, a space, and the hash of its input; None for an unknown key."""
        if key not in self._entries:
            await self._read_new(rollouts)
        return self._entries.get(key)

    async def _read_new(self, rollouts: Collection[Rollout]) -> None:
        # A database may show rollouts of concurrent transactions late, so the last page is read again.
        offset = max(0, self._read - _PAGE)
        while True:
            page = await rollouts.query(limit=_PAGE, offset=offset)
            for rollout in page:
                key = (rollout.metadata or {}).get(PLAN_KEY)
                if isinstance(key, str) and key not in self._entries:
                    self._entries[key] = f"{rollout.rollout_id} {canonical_sha256(rollout.input)}"
            offset += len(page)
            self._read = max(self._read, offset)
            if len(page) < _PAGE:
                return
