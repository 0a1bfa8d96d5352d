"""Plan keys of collections that do not store them: they are read from the metadata of the rollouts."""

from __future__ import annotations

from typing import Final

from store.integrations.collections.interface import Collection
from store.models import Rollout
from store.semconv import PLAN_KEY
from store.validation.json_limits import canonical_sha256

_PAGE: Final = 1000


class PlanKeyIndex:
    """Plan keys by the metadata of the rollouts. Each rollout is read once, when a key is first searched after it.

    A key is found again after a restart as long as the rollout has it in its metadata.
    """

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._read = 0

    async def get(self, rollouts: Collection[Rollout], key: str) -> str | None:
        """Return the id of the rollout with a plan key and the hash of its input, or None if there is none."""
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
