"""What one call passes on its way: the functions and files of a written span, the hops of a read.

Measured on SQLite, in process, on a store that is open and warm. A profiler watches all threads and sees each function
of `store/` that is called from the call until the store is quiet again: what the writer still does when it has answered
belongs to the call. Lambdas count as functions; comprehensions, generator expressions and the bodies of modules do not,
since some versions of Python call nothing for them.

A *hop* is a named function of `store/` that has begun and has not ended when the driver's `execute` begins. The public
method is the first hop. Then come the functions that it calls or awaits, and those on the stack of the driver's thread.
A lambda is no hop, and neither is a function that has returned by then, such as one that compiles the statement.

Each figure is the least of several rounds, since a background task may wake up within one of them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from store import open_store
from store.interface.store import Store
from store.testing.samples import make_span
from tests.structure.source import ROOT

Call = Callable[[], Awaitable[object]]

_ROUNDS = 5
_QUIET_SECONDS = 0.05
_PACKAGE = f"{ROOT / 'store'}/"
_LAMBDA = "<lambda>"


@dataclass(frozen=True, slots=True)
class Passed:
    """What a call passes."""

    functions: tuple[str, ...]
    """`file:line name` of each function that was called, sorted."""
    hops: tuple[str, ...]
    """The names of the functions from the public method to the driver, in the order in which they began."""

    @property
    def files(self) -> set[str]:
        """The files of the functions."""
        return {function.partition(":")[0] for function in self.functions}


@dataclass(slots=True)
class _Profiler:
    """Records calls of `store/` while it is on."""

    is_on: bool = False
    called: set[CodeType] = field(default_factory=set[CodeType])
    begun: dict[FrameType, str] = field(default_factory=dict[FrameType, str])
    deepest: tuple[str, ...] = ()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.is_on:
            return
        if event == "c_call":
            if argument.__name__ == "execute" and isinstance(argument.__self__, sqlite3.Connection | sqlite3.Cursor):
                self.deepest = max(self.deepest, tuple(dict.fromkeys(list(self.begun.values()))), key=len)
        elif _counts(frame.f_code):
            if event == "call":
                self.called.add(frame.f_code)
                if frame.f_code.co_name != _LAMBDA:
                    self.begun.setdefault(frame, frame.f_code.co_qualname)
            # A coroutine that waits returns a future to its loop, and is called again later.
            elif event == "return" and not (frame.f_code.co_flags & CO_COROUTINE and asyncio.isfuture(argument)):
                self.begun.pop(frame, None)

    async def passed(self, call: Call) -> Passed:
        """Return what one call passes."""
        self.called, self.begun, self.deepest = set(), {}, ()
        self.is_on = True
        try:
            await call()
            seen = 0
            while len(self.called) > seen:
                seen = len(self.called)
                await asyncio.sleep(_QUIET_SECONDS)
        finally:
            self.is_on = False
        return Passed(tuple(sorted(map(_shown, self.called))), self.deepest)


def _counts(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE) and (code.co_name == _LAMBDA or not code.co_name.startswith("<"))


def _shown(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno} {code.co_name}"


@contextmanager
def _profiling() -> Generator[_Profiler]:
    """Watch this thread and those that start within the block."""
    profiler = _Profiler()
    before, before_in_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(profiler)
    sys.setprofile(profiler)
    try:
        yield profiler
    finally:
        sys.setprofile(before)
        threading.setprofile(before_in_threads)  # pyright: ignore[reportArgumentType]


async def _least(profiler: _Profiler, call: Call) -> Passed:
    for _ in range(_ROUNDS):
        await call()
    rounds = [await profiler.passed(call) for _ in range(_ROUNDS)]
    functions = min((each.functions for each in rounds), key=len)
    return Passed(functions, min((each.hops for each in rounds), key=len))


async def _calls(store: Store) -> dict[str, Call]:
    started = await store.start_rollout({"question": 1}, worker_id="worker")
    spans = [make_span(started.attempt, number) for number in range(1, 2 * _ROUNDS + 1)]
    return {
        "add_span": lambda: store.add_span(spans.pop()),
        "get_rollout_by_id": lambda: store.get_rollout_by_id(started.rollout_id),
        "query_rollouts": lambda: store.query_rollouts(status_in=["running"], limit=10),
    }


async def _measured() -> dict[str, Passed]:
    with tempfile.TemporaryDirectory() as directory, _profiling() as profiler:
        async with await open_store(f"sqlite:///{Path(directory) / 'calls.db'}") as store:
            return {name: await _least(profiler, call) for name, call in (await _calls(store)).items()}


@cache
def measured() -> dict[str, Passed]:
    """Return what calls pass, by the name of the method."""
    return asyncio.run(_measured())
