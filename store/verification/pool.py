"""Worker processes that verify a long log, so that verification uses several cores. Decision 12.

Each worker process opens the same database read-only, takes a snapshot with the same state as the other processes, and
does one job after another. If a job returns None, for example because it found a difference, the caller's process
repeats the job. Only the caller's process reports and repairs differences.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from store.db.dialect import Dialect, ReadSession, existing_store
from store.db.url import parse
from store.errors import NotFound
from store.models.enums import Frozen
from store.verification.compare import Comparison, StreamRange, no_calls
from store.verification.differences import Differences
from store.verification.log_scan import Bounds, LogRange, SoundRange, bounds, check_beside_commits, walk_range
from store.verification.state_hash import PartHashes, StateHash

WORTHWHILE = 100_000
"""The minimum number of events in the log for which the processes save more time than their start takes."""

_MOST_PROCESSES = 4
# If another client writes between the snapshots of the processes, their states differ, and all snapshots are repeated.
_TRIES = 50
# The message that makes a process take a new snapshot and respond with the end of the log in this snapshot.
_LOOK = b"\n"
# The imports create many objects and no garbage. Without the garbage collector, the start takes a seventh less time.
_PROGRAM = "import gc; gc.disable(); from store.verification.pool import main; main()"


Result = TypeVar("Result", bound=Frozen)


class ProofJob(Frozen, Generic[Result]):
    """One part of a verification."""

    result: ClassVar[type[Frozen]]

    async def do(self, session: ReadSession) -> Result | None:
        """Return the result; None if the caller's process has to do the job."""
        raise NotImplementedError

    def read(self, answer: bytes) -> Result | None:
        """Return the result that the response of another process contains.

        Return None if `do` returned None in that process, or if the response is malformed.
        """
        try:
            result: Any = None if answer == b"null\n" else self.result.model_validate_json(answer)
        except ValidationError:
            return None
        return result


class Walk(ProofJob[SoundRange]):
    """The job that checks a range of the log itself. It returns None if there is a difference."""

    result = SoundRange
    kind: Literal["walk"] = "walk"
    part: LogRange

    async def do(self, session: ReadSession) -> SoundRange | None:
        return await walk_range(session, self.part)


class SoundRest(Frozen):
    """The result if removals of payload, blobs, dictionaries and blocks of data are all correct."""


class CheckRest(ProofJob[SoundRest]):
    """The job that runs `check_beside_commits`. It returns None if there is a difference."""

    result = SoundRest
    kind: Literal["rest"] = "rest"

    async def do(self, session: ReadSession) -> SoundRest | None:
        differences = Differences()
        await check_beside_commits(session, differences)
        return None if differences.count else SoundRest()


class StreamsResult(Frozen):
    """The result for a range of streams whose table rows are all correct."""

    events: int
    streams: int
    hashes: PartHashes


class Compare(ProofJob[StreamsResult]):
    """The job that compares a range of streams with the tables. It stops at the first difference and returns None."""

    result = StreamsResult
    kind: Literal["compare"] = "compare"
    stretch: StreamRange
    cuts: list[str]
    """The rollout ids at which the rollouts are divided into parts for the hash over all rows."""

    async def do(self, session: ReadSession) -> StreamsResult | None:
        state_hash = StateHash(self.cuts)
        comparison = Comparison(session, no_calls, state_hash)
        async with aclosing(comparison.of(self.stretch)) as pages:
            async for page in pages:
                if not page.is_sound:
                    return None
        return StreamsResult(events=comparison.events, streams=comparison.streams, hashes=state_hash.part_hashes())


_ANY: TypeAdapter[Any] = TypeAdapter(Annotated[Walk | CheckRest | Compare, Field(discriminator="kind")])


def job_of(text: bytes) -> ProofJob[Any]:
    """Return the job that a JSON text describes."""
    return _ANY.validate_json(text)


class Order(Frozen):
    """The first message to a process. It names the database that the process has to read."""

    dialect: str
    url: str
    store_id: str


class _Helper:
    """One worker process. After a failure, each response of the process is empty."""

    def __init__(self, process: subprocess.Popen[bytes], order: Order) -> None:
        self._process = process
        self._order = order.model_dump_json().encode() + b"\n"

    async def ask(self, line: bytes) -> bytes:
        """Send a line to the process, and return the response. The response is empty if the process has failed."""
        line, self._order = self._order + line, b""
        return await asyncio.to_thread(self._ask, line)

    def _ask(self, line: bytes) -> bytes:
        assert self._process.stdin is not None  # both are pipes
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except (OSError, ValueError):
            return b""

    def end(self) -> None:
        """End the process if it still runs. The process only reads, so it can be killed at any time."""
        self._process.kill()
        # If the process has not read the last message, closing the pipe fails.
        with contextlib.suppress(BrokenPipeError), self._process:
            pass


class Team:
    """The worker processes of one verification."""

    def __init__(self, helpers: Sequence[_Helper]) -> None:
        self._set(helpers)
        self._tasks: list[asyncio.Task[Any]] = []

    def __len__(self) -> int:
        return len(self._helpers)

    def _set(self, helpers: Sequence[_Helper]) -> None:
        self._helpers = list(helpers)
        # None in the queue means that no process is left.
        self._idle: asyncio.Queue[_Helper | None] = asyncio.Queue()
        for helper in helpers or (None,):
            self._idle.put_nowait(helper)

    async def sees(self, state: Bounds) -> bool:
        """Let every process take a new snapshot of the database; return whether all snapshots have the given state.

        The caller must call this method before the first job. A process that fails here gets no jobs.
        """
        answers = await asyncio.gather(*(helper.ask(_LOOK) for helper in self._helpers))
        self._set([helper for helper, answer in zip(self._helpers, answers, strict=True) if answer])
        return all(_bounds(answer) == state for answer in answers if answer)

    def dismiss(self) -> None:
        """Use the worker processes for no further job, so that the caller's process does every job."""
        self._set(())

    def begin(self, job: ProofJob[Result]) -> asyncio.Task[Result | None]:
        """Give a job to the next idle worker process.

        The returned task returns the result of the job, or None if the caller's process has to do the job.
        """
        task = asyncio.create_task(self._do(job))
        self._tasks.append(task)
        return task

    async def _do(self, job: ProofJob[Result]) -> Result | None:
        helper = await self._idle.get()
        answer = b"" if helper is None else await helper.ask(job.model_dump_json().encode() + b"\n")
        if helper is not None and not answer:
            self._helpers.remove(helper)
        if answer or not self._helpers:
            self._idle.put_nowait(helper if answer else None)
        return job.read(answer)

    def end(self) -> None:
        """Cancel all unfinished jobs."""
        for task in self._tasks:
            task.cancel()


def _bounds(answer: bytes) -> Bounds | None:
    try:
        return Bounds.model_validate_json(answer)
    except ValidationError:
        return None


@asynccontextmanager
async def team(dialect: Dialect, store_id: str, events: int) -> AsyncGenerator[Team]:
    """Start the worker processes for a log with the given number of events, and end them at the end of the block.

    The team has no processes if the log is short, the database is private to this process, or there is only one core.
    """
    kind = type(dialect)
    order = Order(dialect=f"{kind.__module__}:{kind.__qualname__}", url=dialect.url.text, store_id=store_id)
    is_private = dialect.url.path is None and dialect.url.dsn is None
    cores = os.cpu_count() or 1
    size = 0 if events < WORTHWHILE or is_private or cores < 2 else min(cores, _MOST_PROCESSES)
    helpers: list[_Helper] = []
    processes: Team | None = None
    try:
        # If a process cannot be started, the team consists of the processes that were started before.
        with contextlib.suppress(OSError):
            for _ in range(size):
                process = start()
                helpers.append(_Helper(process, order))
        processes = Team(helpers)
        yield processes
    finally:
        if processes is not None:
            processes.end()
        for helper in helpers:
            helper.end()


def start() -> subprocess.Popen[bytes]:
    """Start one worker process."""
    return subprocess.Popen(
        # Without `-P`, a directory `store` in the working directory would be imported instead of this package.
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


@asynccontextmanager
async def same_state(dialect: Dialect, team: Team) -> AsyncGenerator[ReadSession]:
    """Yield a session with a snapshot that has the same state as the snapshots of all processes of the team.

    If no such state is found after several tries, the team is dismissed.
    """
    for _ in range(_TRIES):
        async with dialect.read(snapshot=True) as session:
            if await team.sees(await bounds(session)):
                yield session
                return
    team.dismiss()
    async with dialect.read(snapshot=True) as session:
        yield session


async def _work(order: Order) -> None:
    module, _, name = order.dialect.partition(":")
    kind: type[Dialect] = getattr(importlib.import_module(module), name)
    dialect = kind(parse(order.url), None, read_only=True)
    async with existing_store(dialect) as store_id:
        if store_id != order.store_id:
            # The URL may contain a relative path, and the working directory may have changed.
            raise NotFound("store", order.store_id)
        line = _next_line()
        while line == _LOOK:
            async with dialect.read(snapshot=True) as session:
                _send(await bounds(session))
                while (line := _next_line()) not in {_LOOK, b""}:
                    _send(await job_of(line).do(session))


def _next_line() -> bytes:
    return sys.stdin.buffer.readline()


def _send(reply: Frozen | None) -> None:
    sys.stdout.buffer.write((b"null" if reply is None else reply.model_dump_json().encode()) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Read the order from the first line of standard input, and then do one job for each line."""
    # The garbage collector would take a tenth of the time, and it frees only reference cycles, which rows do not form.
    gc.disable()
    asyncio.run(_work(Order.model_validate_json(_next_line())))
