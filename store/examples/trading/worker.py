"""Program that executes a run of the example in a separate process, which the example kills.

Usage: `python -m store.examples.trading.worker URL RUN PACE [NODE[/SCOPE]]`. PACE is the duration of each answer of the
model in seconds; NODE is the node at which the process kills itself.
"""

from __future__ import annotations

import asyncio
import sys

from store.errors import NotFound
from store.examples.trading.desk import Desk
from store.examples.trading.runs import drive, dying_at
from store.models import AttemptedRollout
from store.opening import open_store


async def main(url: str, run_id: str, pace: str, stop_at: str | None = None) -> None:
    """Execute the latest attempt of a run."""
    async with open_store(url, create=False) as store:
        run = await store.get_rollout_by_id(run_id)
        if not isinstance(run, AttemptedRollout):
            raise NotFound.rollout(run_id)
        await drive(store, run, Desk(pace=float(pace), on_node=dying_at(stop_at)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
