"""Conversion of database rows and payload to the models of threads.

A thread is a conversation of an agent, stored as checkpoints. A channel is a named part of the agent's state, and a
write is a value that a task of the agent stored for a channel after a checkpoint.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import runs as run_queries
from store.db.queries import threads as thread_queries
from store.db.queries.bodies import raw_json
from store.domain.events import Json
from store.errors import Corrupt
from store.models.threads import ThreadCheckpoint, ThreadSummary, ThreadWrite, Typed

_key_of = attrgetter("thread_id", "ns", "checkpoint_id")


async def checkpoints_of(session: ReadSession, rows: Sequence[NamedRow]) -> list[ThreadCheckpoint]:
    """Return the checkpoints in some rows, with the payload and the writes of each checkpoint."""
    if not rows:
        return []
    threads, ids = {row.thread_id for row in rows}, {row.checkpoint_id for row in rows}
    keys = {_key_of(row) for row in rows}
    write_rows = [
        row for row in await thread_queries.writes(session, sorted(threads), sorted(ids)) if _key_of(row) in keys
    ]
    positions = {row.body_position for row in rows} | {row.body_position for row in write_rows}
    payloads = await run_queries.payloads(session, sorted(positions))
    values = _Values(payloads, await run_queries.blobs(session, list(_blob_names(payloads.values()))))
    writes: dict[tuple[Any, ...], list[ThreadWrite]] = {}
    for row in write_rows:
        writes.setdefault(_key_of(row), []).append(_write(row, values))
    return [_checkpoint(row, values, writes) for row in rows]


def summary(rollout_id: str, row: NamedRow) -> ThreadSummary:
    """Convert a row of `queries.threads.threads_of` to the summary of a thread of a rollout."""
    scope = row.thread_id.removeprefix(rollout_id).removeprefix(":") or None
    return ThreadSummary(row.thread_id, scope, row.checkpoints, row.checkpoint_id, row.step, row.at / 1_000_000)


class _Values:
    """Values of threads, from the bodies of events or from the blobs that the bodies name."""

    def __init__(self, payloads: Mapping[int, Json], blobs: Mapping[str, tuple[int, bytes]]) -> None:
        self._payloads = payloads
        self._blobs = blobs

    def payload(self, position: int) -> Json:
        """Return the body of the event at a position of the log."""
        payload = self._payloads.get(position)
        if payload is None:
            raise Corrupt(f"event {position}", "no body", "the body of a checkpoint or a write of a thread")
        return payload

    def typed(self, value: Json) -> Typed:
        """Return a value of a channel as LangGraph's serializer wrote it: the name of the format, and the bytes."""
        name = value.get("sha256")
        if name is None:
            return value["type"], base64.b64decode(value["base64"])
        blob = self._blobs.get(name)
        if blob is None:
            raise Corrupt(f"blob {name}", "no content", "a value of a thread")
        return value["type"], raw_json(*blob)


def _blob_names(payloads: Iterable[Json]) -> Iterable[str]:
    for payload in payloads:
        for value in payload["values"].values():
            if "sha256" in value:
                yield value["sha256"]


def _checkpoint(
    row: NamedRow, values: _Values, writes: Mapping[tuple[Any, ...], Sequence[ThreadWrite]]
) -> ThreadCheckpoint:
    payload = values.payload(row.body_position)
    key = _key_of(row)
    return ThreadCheckpoint(
        *key,
        parent_id=row.parent_id,
        checkpoint=values.typed(payload["checkpoint"]),
        values={channel: values.typed(value) for channel, value in payload["values"].items()},
        metadata=payload["metadata"],
        writes=writes.get(key, ()),
    )


def _write(row: NamedRow, values: _Values) -> ThreadWrite:
    value = values.payload(row.body_position)["values"][str(row.number)]
    return ThreadWrite(
        task_id=row.task_id,
        number=row.number,
        channel=row.channel,
        value=values.typed(value),
        task_path=row.task_path,
    )
