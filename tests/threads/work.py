"""Work of a process on a graph before it is killed."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from typing import Any

from store import open_store
from store.integrations.langgraph import RollbookSaver
from tests.threads.langgraph_samples import State, config, line, saying, side_by_side


async def run_until_c(url: str, thread_id: str, attempt_id: str, told: Connection) -> None:
    """Run A → B → C, and say when C has begun, which does not end."""

    async def endless(_: State) -> dict[str, Any]:
        told.send("C")
        await asyncio.Event().wait()
        return {}

    async with await open_store(url) as store:
        graph = line(RollbookSaver(store), [("A", saying("A")), ("B", saying("B")), ("C", endless)])
        runnable = config(thread_id, attempt_id=attempt_id)
        await graph.ainvoke({"said": ["hello"]}, runnable, durability="sync")


async def run_side_by_side(url: str, told: Connection) -> None:
    """Run A and, beside it, B; say when what A wrote is in the store, while B does not end."""
    async with await open_store(url) as store:

        async def endless(_: State) -> dict[str, Any]:
            step: int | None = None
            async for event in store.log.tail(follow=True):
                step = event.data.get("step", step)
                if step == 0 and event.type == "thread.writes_saved":
                    told.send("A")
            return {}

        graph = side_by_side(RollbookSaver(store), saying("A"), endless)
        await graph.ainvoke({"said": []}, config("t"), durability="sync")
