"""A process that runs a reward function over the rollouts that its parent sends.

The process notes in shared memory for which rollouts calls run, and since when. So if a call hangs or ends the process,
the parent knows the rollout, although the process cannot report it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Protocol

from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptedRollout, Span
from store.opening import open_store
from store.rescoring.attempt_record import AttemptRecord
from store.rescoring.reward_function import ScoreResult, is_async
from store.validation.scores import VersionKey, check

_SPANS_AT_ONCE: Final = 5000
_REPORT_SECONDS: Final = 0.2


class FunctionSource(Protocol):
    """A version of a function that each process loads. It can be pickled."""

    @property
    def key(self) -> VersionKey: ...

    def load(self) -> Callable[[AttemptRecord], Any]:
        """Return the function.

        Raises:
            Invalid: the function cannot be imported.
        """
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rollouts that one process scores."""

    number: int
    """The number of the chunk, which is unique in its pool."""
    rollouts: list[AttemptedRollout]
    is_check: bool = False
    """Whether the rollouts are scored a second time, to find rewards that are not deterministic."""


@dataclass(frozen=True, slots=True)
class ChunkResults:
    """Results of some rollouts of a chunk."""

    number: int
    """The number of the chunk."""
    results: list[tuple[int, ScoreResult]]
    """Pairs of the index of a rollout in its chunk and its result."""
    is_last: bool
    """Whether no further results of the chunk follow."""


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """The settings of a process: its store, its reward function, and the limits of the calls."""

    url: str
    reward: FunctionSource
    timeout: float
    """The maximum time of a call in seconds."""
    concurrency: int
    """The number of calls of an async function that run at once."""


class Slots:
    """The calls that a process makes at this moment, in memory that it shares with its parent.

    Args:
        memory: two numbers for each call that may run at once: the index of the rollout plus 1, or 0 if no call runs,
            and the start of the call.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._free = list(range(0, len(memory), 2))

    def begin(self, index: int) -> int:
        """Note that the call for a rollout begins; return the slot for `end`."""
        slot = self._free.pop()
        self._memory[slot + 1] = time.monotonic()
        self._memory[slot] = index + 1
        return slot

    def end(self, slot: int) -> None:
        """Note that a call has ended."""
        self._memory[slot] = 0
        self._free.append(slot)

    def calls(self) -> list[tuple[int, float]]:
        """Return the calls as pairs of the index of the rollout and the start in monotonic time."""
        pairs = [(self._memory[slot], self._memory[slot + 1]) for slot in range(0, len(self._memory), 2)]
        return [(int(index) - 1, start) for index, start in pairs if index]


def run(order: WorkerOrder, connection: Connection, memory: Any) -> None:
    """Run the process until the parent closes the connection or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output of the function goes to standard error, so that it does not mix with the data that the parent prints.
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Spans are many objects without cycles. With the default threshold, the collector would often search all of them.
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    try:
        asyncio.run(_Worker(order, connection, Slots(memory)).run())
    except (EOFError, BrokenPipeError):
        pass
    except StoreError as error:
        connection.send(error)
    os._exit(0)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None  # a process that another process started
    wait([parent.sentinel])
    os._exit(1)


class _Worker:
    def __init__(self, order: WorkerOrder, connection: Connection, slots: Slots) -> None:
        self._order, self._connection, self._slots = order, connection, slots
        self._function = order.reward.load()
        self._results: list[tuple[int, ScoreResult]] = []
        self._reported = time.monotonic()

    async def run(self) -> None:
        async with open_store(self._order.url, create=False, read_only=True) as store:
            while True:
                chunk: Chunk = await asyncio.to_thread(self._connection.recv)
                await self._score(store, chunk)

    async def _score(self, store: Store, chunk: Chunk) -> None:
        at_once = self._order.concurrency if is_async(self._function) else 1
        numbered = iter(enumerate(chunk.rollouts))
        spans = await _spans_of(store, chunk.rollouts)

        async def work() -> None:
            for index, rollout in numbered:
                record = AttemptRecord(rollout, rollout.attempt, await _spans_of_attempt(store, rollout, spans))
                result = await self._call(index, record)
                # Another call may have reported meanwhile. Then `_results` is a new list.
                self._results.append((index, result))
                self._report(chunk, is_last=False)

        await asyncio.gather(*(work() for _ in range(min(at_once, len(chunk.rollouts)))))
        self._report(chunk, is_last=True)

    async def _call(self, index: int, record: AttemptRecord) -> ScoreResult:
        slot = self._slots.begin(index)
        try:
            async with asyncio.timeout(self._order.timeout):
                returned = self._function(record)
                if inspect.isawaitable(returned):
                    returned = await returned
            result = ScoreResult.of(returned)
            check([result.score(record.rollout.rollout_id, record.attempt.attempt_id, self._order.reward.key, None)])
        except TimeoutError as error:
            # A thread of the call may hang in the executor, which other calls need.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
            return ScoreResult.failure("TimeoutError", str(error) or timeout_text(self._order.timeout))
        except asyncio.CancelledError as error:
            return ScoreResult.failed(error)
        except BaseException as error:  # noqa: BLE001 - the function may raise any error; interrupts are ignored here
            return ScoreResult.failed(error)
        finally:
            self._slots.end(slot)
        return result

    def _report(self, chunk: Chunk, *, is_last: bool) -> None:
        now = time.monotonic()
        if is_last or now - self._reported > _REPORT_SECONDS:
            self._connection.send(ChunkResults(chunk.number, self._results, is_last))
            self._results, self._reported = [], now


def timeout_text(seconds: float) -> str:
    """Return the message for a call that took too long."""
    return f"no result within {seconds:g} s"


async def _spans_of(store: Store, rollouts: Sequence[AttemptedRollout]) -> dict[str, list[Span]] | None:
    """Return the spans of rollouts by rollout id; None if there are too many to be in memory at once."""
    page = await store.query_spans([rollout.rollout_id for rollout in rollouts], limit=_SPANS_AT_ONCE)
    if page.total > len(page.items):
        return None
    spans: dict[str, list[Span]] = {}
    for span in page.items:
        spans.setdefault(span.rollout_id, []).append(span)
    return spans


async def _spans_of_attempt(
    store: Store, rollout: AttemptedRollout, by_rollout: dict[str, list[Span]] | None
) -> list[Span]:
    attempt_id = rollout.attempt.attempt_id
    if by_rollout is None:
        return list(await store.query_spans(rollout.rollout_id, attempt_id))
    return [span for span in by_rollout.get(rollout.rollout_id, ()) if span.attempt_id == attempt_id]
