"""The calls of a training on its store, and a ledger of the acknowledged ones.

Each line is written with one `write` to an unbuffered file after the call has returned. Therefore the ledger of a
killed process lacks at most the last acknowledged call.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from store.db.drivers.sqlite import checkpoint
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout
from store.opening import open_store
from store.testing.samples import make_span
from tests.databases import Database

_CALLERS = 6
LAST_SPAN = "last"
"""The name of the span that is stored in the commit that ends its attempt."""
COPIED_FRAMES = 30


class Ledger:
    """The answers of one process, on disk."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, call: str, *what: Any) -> None:
        """Write one answer down."""
        os.write(self._file, orjson.dumps([call, *what]) + b"\n")


@dataclass
class Acknowledged:
    """What the ledgers of several processes say together."""

    enqueued: dict[str, str] = field(default_factory=dict[str, str])
    """Input by rollout."""
    claimed: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Sequence by rollout and attempt."""
    spans: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    """Rollout, attempt and span."""
    ended: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Status by rollout and attempt."""
    beats: dict[str, int] = field(default_factory=dict[str, int])
    """The last heartbeat's number by worker."""

    @property
    def calls(self) -> int:
        """How many answers there are in all."""
        return len(self.enqueued) + len(self.claimed) + len(self.spans) + len(self.ended) + sum(self.beats.values())

    def read(self, paths: Iterable[Path]) -> None:
        """Add ledgers; a last line that was cut off by a kill was no answer yet."""
        for path in paths:
            if path.exists():
                for line in path.read_bytes().split(b"\n")[:-1]:
                    self._add(*orjson.loads(line))

    def _add(self, call: str, *what: Any) -> None:
        match call:
            case "enqueue":
                self.enqueued[what[0]] = what[1]
            case "dequeue":
                assert (what[0], what[1]) not in self.claimed, "one attempt was handed out twice"
                self.claimed[what[0], what[1]] = what[2]
            case "span":
                self.spans.add((what[0], what[1], what[2]))
            case "end":
                self.ended[what[0], what[1]] = what[2]
            case _:
                self.beats[what[0]] = what[1]

    async def missing(self, database: Database) -> list[str]:
        """Return what was acknowledged and is not in the tables, or not as it was acknowledged."""
        rollouts = {row[0] for row in await database.rows("SELECT rollout_id FROM rollouts")}
        attempts = {
            (row[0], row[1]): (row[2], row[3])
            for row in await database.rows("SELECT rollout_id, attempt_id, sequence_id, status FROM attempts")
        }
        spans = {tuple(row) for row in await database.rows("SELECT rollout_id, attempt_id, span_id FROM spans")}
        beats = {
            row[0]: orjson.loads(row[1])["beat"]
            for row in await database.rows("SELECT worker_id, heartbeat_stats FROM worker_signals")
            if row[1] is not None
        }
        return [
            *(f"rollout {one}" for one in self.enqueued.keys() - rollouts),
            *(f"claim {one}" for one, sequence in self.claimed.items() if attempts.get(one, (0, ""))[0] != sequence),
            *(f"span {one}" for one in self.spans - spans),
            *(f"end {one}" for one, status in self.ended.items() if attempts.get(one, (0, ""))[1] != status),
            *(f"beat {one}" for one, number in self.beats.items() if beats.get(one, 0) < number),
        ]


async def work_copying(url: str, path: Path, name: str) -> None:
    """As `work`, with a write-ahead log that is copied into SQLite's file many times a second."""
    checkpoint.FRAMES = COPIED_FRAMES
    await work(url, path, name)


async def work(url: str, ledger_path: Path, name: str) -> None:
    """Enqueue, claim, trace and finish rollouts for ever, several at a time, noting each answer."""
    ledger = Ledger(ledger_path)
    store = await open_store(url)
    await asyncio.gather(*(_work(store, ledger, f"{name}-{number}") for number in range(_CALLERS)))


async def _work(store: Store, ledger: Ledger, worker_id: str) -> None:
    turn = 0
    while True:
        turn += 1
        rollout = await store.enqueue_rollout(f"{worker_id} {turn}")
        ledger.note("enqueue", rollout.rollout_id, rollout.input)
        claimed = await store.dequeue_rollout(worker_id)
        if claimed is None:
            continue
        attempt = claimed.attempt
        ledger.note("dequeue", attempt.rollout_id, attempt.attempt_id, attempt.sequence_id)
        await _trace(store, ledger, attempt)
        await store.update_worker(worker_id, {"beat": turn})
        ledger.note("beat", worker_id, turn)
        # Every third stays open, as those of a crashed runner do.
        if turn % 3 == 1:
            await _finish(store, ledger, attempt)
        elif turn % 3:
            ended = await store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="succeeded")
            ledger.note("end", ended.rollout_id, ended.attempt_id, ended.status)


async def _finish(store: Store, ledger: Ledger, attempt: Attempt) -> None:
    """End an attempt together with its last span and the claim of another rollout, which stays open."""
    last = make_span(attempt, 5, name=LAST_SPAN)
    finished = await store.finish_attempt(
        attempt.rollout_id, attempt.attempt_id, "succeeded", spans=[last], claim_as=attempt.worker_id
    )
    assert finished.spans == [last]
    assert isinstance(finished.attempt, Attempt)
    ledger.note("span", last.rollout_id, last.attempt_id, last.span_id)
    ledger.note("end", last.rollout_id, last.attempt_id, finished.attempt.status)
    if isinstance(finished.claimed, AttemptedRollout):
        claimed = finished.claimed.attempt
        ledger.note("dequeue", claimed.rollout_id, claimed.attempt_id, claimed.sequence_id)


async def use_pickled(pickled: bytes, inputs: Path) -> None:
    """Enqueue a rollout in a store that another process pickled, and write the inputs of all rollouts to a file."""
    store: Store = pickle.loads(pickled)
    await store.enqueue_rollout("from the other process")
    rollouts = (await store.query_rollouts()).items
    await asyncio.to_thread(inputs.write_bytes, orjson.dumps(sorted(str(rollout.input) for rollout in rollouts)))
    await store.close()


async def _trace(store: Store, ledger: Ledger, attempt: Attempt) -> None:
    span = make_span(attempt, 1)
    await store.add_span(span)
    ledger.note("span", span.rollout_id, span.attempt_id, span.span_id)
    spans = [make_span(attempt, number) for number in (2, 3, 4)]
    for added in await store.add_many_spans(spans):
        ledger.note("span", added.rollout_id, added.attempt_id, added.span_id)
