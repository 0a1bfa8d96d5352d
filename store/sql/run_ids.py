"""Which runs a SQL store has, by the names that others give them."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from store.db.dialect import ReadSession
from store.db.queries import pages, run_ids
from store.errors import Conflict, NotFound
from store.sql.forks import SQLForks
from store.validation import arguments


class SQLRunIds(SQLForks):
    """The runs of a SQL store by their names."""

    async def resolve(self, name: str) -> str:
        """Return the rollout of a run: of this id, imported from a run of this id, or the only one of this flow.

        Raises:
            NotFound: there is none.
            Conflict: the flow has several.
        """

        async def read(session: ReadSession) -> str:
            if await pages.rollout(self.core.dialect, session, name) is not None:
                return name
            if imported := await run_ids.imported(self.core.dialect, session, name):
                return imported[0]
            found = await run_ids.of_flow(self.core.dialect, session, name)
            if not found:
                raise NotFound("run", name)
            if len(found) > 1:
                raise Conflict(f"flow {name} has {len(found)} runs", f"name one of {', '.join(found[:20])}")
            return found[0]

        arguments.text(name, "run_id")
        return await self.core.read(read, snapshot=True)

    async def list_flow_runs(self, limit: int, offset: int) -> list[str]:
        """Return the rollouts that belong to flows, the newest first."""
        return await self.core.read(lambda session: run_ids.of_flows(self.core.dialect, session, limit, offset))

    async def get_ends(self, rollout_ids: Sequence[str]) -> dict[str, tuple[int, str | None]]:
        """Return how often each of some runs was run again, and what its last error said."""
        rows = await self.core.read(lambda session: run_ids.ends(self.core.dialect, session, rollout_ids))
        return {row[0]: (row[1], _said(row[2])) for row in rows}


def _said(error: str | None) -> str | None:
    if error is None:
        return None
    told: dict[str, str] = orjson.loads(error)
    return told.get("message") or told.get("type")
