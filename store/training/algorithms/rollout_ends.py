"""Functions that wait for the ends of rollouts. They follow the log, so they report each end once and do not poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from store.errors import Incompatible, Invalid, NotFound, Unsupported

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import LoggedEvent, Rollout
from store.training.execution.algorithm_store import AlgorithmStore

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
"""The statuses of a rollout that has ended. Such a rollout can still be reopened."""
QUEUED: Final = frozenset({"queuing", "requeuing"})
"""The statuses in which a rollout waits to be claimed."""

_CHANGED: Final = "rollout.status_changed"
_CREATED: Final = ("rollout.enqueued", "rollout.started")
_STREAM: Final = "rollout/"
_READ_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Finished:
    """Batch of rollouts that ended, with the cursor after the batch."""

    rollouts: list[Rollout]
    """Rollouts in the order in which they ended, each in its current state with its latest attempt."""
    cursor: str | None
    """Argument `after` of `follow` to continue after these rollouts; None if no rollout has ended yet."""


async def follow(
    store: Store,
    after: str | None = None,
    *,
    min_rollouts: int = 1,
    timeout: float | None = None,  # noqa: ASYNC109 - it limits a batch, not the call
) -> AsyncIterator[Finished]:
    """Yield all rollouts of the store as they end, for algorithms that learn while agents work.

    The iteration never ends. Save the cursor together with the results of the batch, in one transaction or one file. A
    restart from this cursor misses no rollout and repeats none. A rollout that was reopened and ends again is yielded
    again.

    Args:
        store: a store with a log.
        after: the cursor of the last batch that was processed; None begins with the first rollout of the store.
        min_rollouts: the minimum size of a batch.
        timeout: seconds after which a batch is yielded even if the batch is smaller or empty; None waits for
            `min_rollouts`.

    Raises:
        Invalid: `min_rollouts` is below 1, or `timeout` is not above 0.
        Incompatible: the cursor belongs to another store.
        Unsupported: the store has no log.
    """
    if min_rollouts < 1:
        raise Invalid("min_rollouts", f"{min_rollouts} is below 1")
    if timeout is not None and not timeout > 0:
        raise Invalid("timeout", f"{timeout} is not above 0; leave it out to wait without a limit")
    async with aclosing(_endings(store, after)) as endings:
        cursor, upcoming = after, None
        try:
            while True:
                ended_ids: dict[str, None] = {}
                deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
                while len(ended_ids) < min_rollouts:
                    upcoming = upcoming or asyncio.ensure_future(anext(endings))
                    remaining = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
                    done, _ = await asyncio.wait({upcoming}, timeout=remaining)
                    if not done:
                        break
                    (rollout_id, cursor), upcoming = upcoming.result(), None
                    # A rollout that ended twice is placed at its last end.
                    ended_ids.pop(rollout_id, None)
                    ended_ids[rollout_id] = None
                yield Finished(await _ended(store, ended_ids), cursor)
        finally:
            await _stop_waiting(upcoming)


async def finished(store: Store, rollouts: Iterable[Rollout]) -> AsyncGenerator[Rollout]:
    """Yield each rollout of `rollouts`, with its latest attempt, when the rollout has ended.

    Rollouts that ended before the call come first.

    Args:
        store: the store of the rollouts; it must have a log.
        rollouts: the rollouts to wait for, as `enqueue` returned them; duplicates are yielded once.

    Raises:
        NotFound: the log does not contain the rollouts, for example because they belong to another store.
        Unsupported: the store has no log.
    """
    pending = {rollout.rollout_id: rollout for rollout in rollouts}
    if not pending:
        return
    # The cursor is read before the rollouts, so an end between the two reads is not missed.
    cursor = await _cursor_at_creation(store, max(pending.values(), key=lambda rollout: rollout.start_time))
    for rollout in await _ended(store, pending):
        del pending[rollout.rollout_id]
        yield rollout
    async with aclosing(_endings(store, cursor)) as endings, aclosing(_batched(endings)) as batches:
        while pending:
            for rollout in await _ended(
                store, [rollout_id for rollout_id in await anext(batches) if rollout_id in pending]
            ):
                del pending[rollout.rollout_id]
                yield rollout


async def left_the_queue(store: Store, rollout: Rollout) -> None:
    """Wait until a rollout is neither queuing nor requeuing.

    Raises:
        Unsupported: the store has no log.
    """
    async with aclosing(_tail(store, None, [_CHANGED], rollout.rollout_id)) as events:
        async for event in events:
            if event.data["to"] in QUEUED:
                continue
            # The rollout may have been requeued after this event, so its current status decides.
            current = await store.get_rollout_by_id(rollout.rollout_id)
            if current is None or current.status not in QUEUED:
                return


async def newest_cursor(store: Store) -> str | None:
    """Return the cursor after the last event of the log, or None if the store has no rollouts or no log.

    A reader that starts at the cursor receives all events that are appended after this call.
    """
    newest = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=1)
    cursor = None
    if newest:
        with suppress(Unsupported, Incompatible):
            # Most of the log is before the events of the newest rollout. The rest is read to its end.
            async for event in store.log.tail(rollout_id=newest[0].rollout_id):
                cursor = event.cursor
            async for event in store.log.tail(cursor):
                cursor = event.cursor
    return cursor


async def _endings(store: Store, after: str | None) -> AsyncGenerator[tuple[str, str]]:
    """Yield the id of each rollout that ends, with the cursor after the event of its end."""
    async with aclosing(_tail(store, after, [_CHANGED], None)) as events:
        async for event in events:
            # A change from one end status to another end status is not a new end.
            if event.data["to"] in ENDED and event.data["from"] not in ENDED:
                yield event.stream.removeprefix(_STREAM), event.cursor


async def _batched(endings: AsyncGenerator[tuple[str, str]]) -> AsyncGenerator[list[str]]:
    """Yield the ids of ended rollouts in lists. Ids that are available at the same time are in one list, without
    duplicates.
    """
    upcoming = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(endings))
            ended_ids = {(await upcoming)[0]: None}
            while True:
                upcoming = asyncio.ensure_future(anext(endings))
                # One step of the event loop completes the future if the log's reader has loaded the next event.
                await asyncio.sleep(0)
                if not upcoming.done() or len(ended_ids) == _READ_AT_ONCE:
                    break
                ended_ids[upcoming.result()[0]] = None
            yield list(ended_ids)
    finally:
        await _stop_waiting(upcoming)


async def _stop_waiting(upcoming: asyncio.Future[tuple[str, str]] | None) -> None:
    """Stop waiting for the next end, so that its generator can be closed."""
    if upcoming is not None:
        upcoming.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await upcoming


async def _cursor_at_creation(store: Store, rollout: Rollout) -> str:
    async with aclosing(_tail(store, None, _CREATED, rollout.rollout_id, follow=False)) as events:
        async for event in events:
            return event.cursor
    raise NotFound.rollout(rollout.rollout_id)


def _tail(
    store: Store, after: str | None, types: Sequence[str], rollout_id: str | None, *, follow: bool = True
) -> AsyncGenerator[LoggedEvent]:
    # `tail` returns a generator. A caller that does not read the generator to its end must close it.
    tail = cast("AsyncGenerator[LoggedEvent]", store.log.tail(after, follow=follow, types=types, rollout_id=rollout_id))
    return store.checked_tail(tail) if follow and isinstance(store, AlgorithmStore) else tail


async def _ended(store: Store, rollout_ids: Iterable[str]) -> list[Rollout]:
    """Return the rollouts that have ended, in the order of `rollout_ids`."""
    ids = list(rollout_ids)
    rollouts: dict[str, Rollout] = {}
    for start in range(0, len(ids), _READ_AT_ONCE):
        page = await store.query_rollouts(rollout_id_in=ids[start : start + _READ_AT_ONCE], status_in=[*ENDED])  # pyright: ignore[reportArgumentType]
        rollouts |= {rollout.rollout_id: rollout for rollout in page}
    return [rollouts[rollout_id] for rollout_id in ids if rollout_id in rollouts]
