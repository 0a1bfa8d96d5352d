"""Wrong calls. Strict type checkers report a comment that suppresses no error."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

import rollbook
from rollbook.training import Trainer


async def count(opened: rollbook.Store) -> int:
    return await opened.statistics()  # type: ignore[return-value]


def first_input(opened: rollbook.SyncStore) -> None:
    opened.enqueue_rollout()  # type: ignore[call-arg]
    opened.log.tail(follow="yes")  # type: ignore[arg-type]
    rollbook.open_sync(5)  # type: ignore[arg-type]
    Trainer(runners=4)  # type: ignore[call-arg]
