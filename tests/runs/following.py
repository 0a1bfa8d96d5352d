"""Readers of a run that is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from store.interface.store import Store
from store.models import AttemptedRollout, RunEventRow, RunFrame, apply_frames

PATIENCE = 60


class Reader:
    """Whoever follows a run, and leaves and comes back.

    Attributes:
        seq: where the reader stands.
        events: what the reader holds.
        frames: all it was ever told.
    """

    def __init__(self, store: Store, run: AttemptedRollout, view: str = "head", *, seq: int = 0) -> None:
        self._store = store
        self._run = run
        self._view = view
        self.seq = seq
        self.until: int | None = None
        self.events: list[RunEventRow] = []
        self.frames: list[RunFrame] = []

    async def read(
        self, upto: int | None = None, *, most: int = 10**9, kind: str | None = None, **how: Any
    ) -> list[RunFrame]:
        """Follow until the run's last event is told, or another, by a frame of a kind; or for so many frames."""
        last = upto if upto is not None else await last_of(self._store, self._run)
        told: list[RunFrame] = []
        async with asyncio.timeout(PATIENCE), aclosing(self._follow(**how)) as frames:
            async for frame in frames:
                self.take(frame)
                told.append(frame)
                # What is told at once when somebody comes has been told before the first wait.
                if len(told) >= most or (self.seq >= last and frame.until is None and kind in {None, frame.kind}):
                    return told
        raise AssertionError("following ended")

    def _follow(self, **how: Any) -> AsyncGenerator[RunFrame]:
        frames = self._store.runs.follow(self._run.rollout_id, after=self.seq, until=self.until, view=self._view, **how)
        return cast("AsyncGenerator[RunFrame]", frames)

    def take(self, frame: RunFrame) -> None:
        """Take in a frame."""
        self.frames.append(frame)
        self.events = apply_frames(self.events, [frame])
        self.seq, self.until = frame.seq, frame.until


async def last_of(store: Store, run: AttemptedRollout) -> int:
    """Return the version of the last event of a run."""
    return (await store.log.history(run.rollout_id))[-1].number


async def kinds_after(store: Store, run: AttemptedRollout, after: int, count: int, view: str = "head") -> list[str]:
    """Return the kinds of so many frames after a version."""
    reader = Reader(store, run, view, seq=after)
    return [frame.kind for frame in await reader.read(10**9, most=count)]
