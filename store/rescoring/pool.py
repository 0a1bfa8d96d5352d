"""Pool of the processes that run a reward function. A process that hangs or dies is replaced."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import wait
from queue import SimpleQueue
from typing import Any, Final

from store.errors import StoreError, Unavailable
from store.models import AttemptedRollout
from store.rescoring.reward_function import ScoreResult
from store.rescoring.worker import Chunk, ChunkResults, Slots, WorkerOrder, run, timeout_text

_GRACE_SECONDS: Final = 1.0
"""A process is killed if a call takes this much longer than its timeout. Async calls are cancelled at their timeout."""
_AHEAD: Final = 2
"""The number of chunks that a process has at once, so that it does not wait for its next chunk."""
_DEATHS: Final = 3
"""The pool gives up if this many processes in a row die while they call no function."""

_SPAWN = get_context("spawn")


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The result for one rollout."""

    rollout: AttemptedRollout
    result: ScoreResult
    is_check: bool


@dataclass(slots=True)
class _Pending:
    """A chunk that a process has, and the rollouts of the chunk without a result, by their index."""

    chunk: Chunk
    rollouts: dict[int, AttemptedRollout] = field(init=False)

    def __post_init__(self) -> None:
        self.rollouts = dict(enumerate(self.chunk.rollouts))


class _Worker:
    """One process, and the chunks that it has."""

    def __init__(self, order: WorkerOrder) -> None:
        memory: Any = _SPAWN.RawArray("d", 2 * order.concurrency)
        self.connection, theirs = _SPAWN.Pipe()
        self.slots = Slots(memory)
        self.pending: deque[_Pending] = deque()
        self.process = _SPAWN.Process(target=run, args=(order, theirs, memory), daemon=True)
        self.process.start()
        theirs.close()
        # A process that hangs does not read, so sending a long chunk would block. A thread sends the chunks instead.
        self._outbox: SimpleQueue[Chunk | None] = SimpleQueue()
        threading.Thread(target=self._send_all, daemon=True).start()

    def send(self, chunk: Chunk) -> None:
        self.pending.append(_Pending(chunk))
        self._outbox.put(chunk)

    def _send_all(self) -> None:
        # If the process has ended, `WorkerPool.wait` notices this and gives the chunks to other processes.
        with suppress(OSError):
            while (chunk := self._outbox.get()) is not None:
                self.connection.send(chunk)

    def received(self) -> list[ChunkResults | StoreError]:
        """Return the messages that have arrived."""
        messages: list[ChunkResults | StoreError] = []
        try:
            while self.connection.poll():
                messages.append(self.connection.recv())
        except (EOFError, OSError):
            return messages
        return messages

    def kill(self) -> None:
        self._outbox.put(None)
        self.process.kill()
        self.process.join()


class WorkerPool:
    """Processes that score chunks of rollouts. Every rollout gets a result, even if its call ends the process.

    Args:
        order: the work of each process.
        processes: the number of processes.
    """

    def __init__(self, order: WorkerOrder, processes: int) -> None:
        self._order = order
        self._workers = [_Worker(order) for _ in range(processes)]
        self._waiting: deque[Chunk] = deque()
        self._numbers = 0
        self._deaths = 0

    def submit(self, rollouts: list[AttemptedRollout], *, is_check: bool = False) -> None:
        """Add a chunk of rollouts."""
        self._numbers += 1
        self._waiting.append(Chunk(self._numbers, rollouts, is_check))
        self._hand_out()

    @property
    def has_room(self) -> bool:
        """Whether a process could take another chunk."""
        return not self._waiting

    @property
    def is_idle(self) -> bool:
        """Whether every rollout has its result."""
        return not self._waiting and not any(worker.pending for worker in self._workers)

    def wait(self, seconds: float) -> list[RolloutResult]:
        """Wait until results arrive or a process ends, at most `seconds`, and return the results.

        Raises:
            StoreError: a process could not import the function or open the store, or processes die again and again.
        """
        sources: dict[Any, _Worker] = {}
        for worker in self._workers:
            sources[worker.connection] = sources[worker.process.sentinel] = worker
        wait(list(sources), seconds)
        outcomes: list[RolloutResult] = []
        for worker in list(self._workers):
            was_alive = worker.process.is_alive()
            outcomes += self._take(worker)
            if not was_alive:
                outcomes += self._replace(worker, [index for index, _ in worker.slots.calls()], None)
            elif overdue := self._overdue(worker):
                outcomes += self._replace(worker, overdue, timeout_text(self._order.timeout))
        self._hand_out()
        return outcomes

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.kill()

    def _take(self, worker: _Worker) -> list[RolloutResult]:
        outcomes: list[RolloutResult] = []
        for message in worker.received():
            if isinstance(message, StoreError):
                raise message
            self._deaths = 0
            pending = worker.pending[0]
            is_check = pending.chunk.is_check
            outcomes += [
                RolloutResult(pending.rollouts.pop(index), result, is_check) for index, result in message.results
            ]
            if message.is_last:
                worker.pending.popleft()
        return outcomes

    def _overdue(self, worker: _Worker) -> list[int]:
        limit = time.monotonic() - self._order.timeout - _GRACE_SECONDS
        return [index for index, start in worker.slots.calls() if start < limit]

    def _replace(self, worker: _Worker, suspects: list[int], hung: str | None) -> list[RolloutResult]:
        """Replace a process that hangs or has died. Return the failure of the rollout whose call is the cause.

        If several calls ran at once, any of them may be the cause. Then each call is repeated alone, and the result is
        empty.

        Args:
            worker: the process.
            suspects: the indexes of the rollouts whose calls may be the cause.
            hung: the message of the failure if the process hangs; None if the process has died.
        """
        worker.kill()
        self._workers[self._workers.index(worker)] = _Worker(self._order)
        pending = deque(worker.pending)
        outcomes: list[RolloutResult] = []
        again: list[Chunk] = []
        if pending and suspects:
            current = pending[0]
            rollouts = [current.rollouts.pop(index) for index in suspects if index in current.rollouts]
            if len(rollouts) == 1:
                result = self._blame(worker, hung)
                outcomes = [RolloutResult(rollout, result, current.chunk.is_check) for rollout in rollouts]
            else:
                again = [Chunk(self._number(), [rollout], current.chunk.is_check) for rollout in rollouts]
            self._deaths = 0
        else:
            self._deaths += 1
            if self._deaths >= _DEATHS:
                raise Unavailable(
                    f"processes end before they call the function, the last with code {worker.process.exitcode};"
                    " see their messages on standard error"
                )
        rest = [Chunk(self._number(), list(left.rollouts.values()), left.chunk.is_check) for left in pending]
        self._waiting.extendleft(chunk for chunk in reversed([*again, *rest]) if chunk.rollouts)
        return outcomes

    def _blame(self, worker: _Worker, hung: str | None) -> ScoreResult:
        if hung is not None:
            return ScoreResult.failure("TimeoutError", hung)
        code = worker.process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return ScoreResult.failure("ProcessEnded", f"the function ended its process {how}")

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _hand_out(self) -> None:
        while self._waiting:
            worker = min(self._workers, key=lambda candidate: len(candidate.pending))
            if len(worker.pending) >= _AHEAD:
                return
            worker.send(self._waiting.popleft())
