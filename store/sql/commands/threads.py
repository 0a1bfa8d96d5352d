"""Commands about threads, made from arguments that are checked, encoded, compressed and hashed here.

A thread is a conversation of an agent, stored as checkpoints. A channel is a named part of the agent's state, and a
write is a value that a task of the agent stored for a channel after a checkpoint. The `data` of an event in the log is
limited to 8 KiB.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from store.domain.body import Body
from store.domain.events import Json
from store.domain.thread import CheckpointKey
from store.domain.thread_commands import CopyThread, DeleteThread, KeepInThread, NewThreadFact, PruneThread
from store.domain.thread_events import ThreadCheckpointSaved, ThreadWritesSaved
from store.errors import Invalid
from store.models.threads import ThreadCheckpoint, ThreadWrite, Typed
from store.validation import arguments
from store.validation.json_limits import check_call, check_text, dumps_fields, encode_body

BLOB_FROM: Final = 1024
"""The minimum length, in bytes, of values that are stored as blobs. Equal values share a blob."""

MAX_PATH_BYTES: Final = 1024
"""The maximum length of a task's path in bytes."""

# The maximum number of blobs of an event, so that their hashes fit into `data`. The body contains the other values.
_BLOBS_AT_MOST: Final = 48
_WRITES_AT_ONCE: Final = 100
_CHANNEL_BYTES: Final = 1500


@dataclass(slots=True)
class _Values:
    """Values of a body. The longest values are stored as blobs, and the body contains only the hashes of the blobs."""

    blobs: dict[str, Body] = field(default_factory=dict[str, Body])
    size: int = 0

    def take(self, values: Mapping[Any, Typed]) -> dict[Any, Json]:
        sizes = {key: len(raw) for key, (_, raw) in values.items() if len(raw) >= BLOB_FROM}
        blob_keys = set(sorted(sizes, key=lambda key: -sizes[key])[:_BLOBS_AT_MOST])
        encoded: dict[Any, Json] = {}
        for key, (format_name, raw) in values.items():
            self.size += len(raw)
            if key in blob_keys:
                blob = encode_body(raw)
                name = blob.sha256.hex()
                self.blobs[name] = blob
                encoded[key] = {"type": format_name, "sha256": name}
            else:
                encoded[key] = {"type": format_name, "base64": base64.b64encode(raw).decode()}
        return encoded

    @property
    def names(self) -> list[str] | None:
        return list(self.blobs) or None


def checkpoint(item: ThreadCheckpoint, attempt_id: str | None) -> KeepInThread:
    """Return the command that saves a checkpoint without its writes."""
    values = _Values()
    metadata = dict(item.metadata)
    body: Json = {
        "checkpoint": {"type": item.checkpoint[0], "base64": base64.b64encode(item.checkpoint[1]).decode()},
        "metadata": metadata,
        "values": values.take({_channel(channel, "channel_values"): typed for channel, typed in item.values.items()}),
    }
    step = metadata.get("step")
    fact = ThreadCheckpointSaved(
        ns=check_text(item.ns, "checkpoint_ns"),
        checkpoint_id=_id(item.checkpoint_id, "checkpoint_id"),
        parent_id=None if item.parent_id is None else _id(item.parent_id, "checkpoint_id"),
        run_id=_word(metadata.get("run_id"), "metadata.run_id"),
        source=_word(metadata.get("source"), "metadata.source"),
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        sha256s=values.names,
    )
    new_fact = _item(fact, body, values)
    check_call(0, new_fact.size, "checkpoint")
    return _keep(item.thread_id, [new_fact], attempt_id)


def writes(
    thread_id: str, ns: str, checkpoint_id: str, task_writes: Sequence[ThreadWrite], attempt_id: str | None
) -> KeepInThread:
    """Return the command that saves the writes of a task on a checkpoint; `task_writes` must not be empty."""
    task_id, path = (
        _id(task_writes[0].task_id, "task_id"),
        check_text(task_writes[0].task_path, "task_path", MAX_PATH_BYTES),
    )
    check_call(len(task_writes), 0, "writes")
    items: list[NewThreadFact] = []
    for part in _parts({write.number: write for write in task_writes}):
        values = _Values()
        encoded = values.take({write.number: write.value for write in part})
        fact = ThreadWritesSaved(
            ns=check_text(ns, "checkpoint_ns"),
            checkpoint_id=_id(checkpoint_id, "checkpoint_id"),
            task_id=task_id,
            writes=[[write.number, write.channel] for write in part],
            task_path=path or None,
            sha256s=values.names,
        )
        items.append(_item(fact, {"values": {str(number): value for number, value in encoded.items()}}, values))
    check_call(0, sum(item.size for item in items), "writes")
    return _keep(thread_id, items, attempt_id)


def _parts(by_number: Mapping[int, ThreadWrite]) -> Iterator[list[ThreadWrite]]:
    """Yield groups of writes. The channel names of a group fit into the `data` of one event."""
    part: list[ThreadWrite] = []
    size = 0
    for write in by_number.values():
        length = len(_channel(write.channel, "writes").encode())
        if part and (size + length > _CHANNEL_BYTES or len(part) == _WRITES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(write)
        size += length
    yield part


def delete(thread_id: str) -> DeleteThread:
    """Return the command that deletes the contents of a thread."""
    return DeleteThread(thread_id=_id(thread_id, "thread_id"))


def prune(thread_id: str, checkpoints: Sequence[CheckpointKey], reason: str) -> PruneThread:
    """Return the command that deletes some checkpoints of a thread."""
    return PruneThread(
        thread_id=_id(thread_id, "thread_id"),
        checkpoints=[(check_text(ns, "checkpoint_ns"), _id(key, "checkpoint_id")) for ns, key in checkpoints],
        reason=reason,
    )


def copy(source_id: str, target_id: str) -> CopyThread:
    """Return the command that copies a thread."""
    if source_id == target_id:
        raise Invalid("target_thread_id", f"{target_id!r} is the source thread; give the copy another id")
    return CopyThread(source_id=_id(source_id, "source_thread_id"), target_id=_id(target_id, "target_thread_id"))


def _keep(thread_id: str, items: list[NewThreadFact], attempt_id: str | None) -> KeepInThread:
    thread_id = _id(thread_id, "thread_id")
    return KeepInThread(
        thread_id=thread_id,
        items=items,
        rollout_id=None if attempt_id is None else thread_id.partition(":")[0],
        attempt_id=None if attempt_id is None else _id(attempt_id, "attempt_id"),
    )


def _item(fact: ThreadCheckpointSaved | ThreadWritesSaved, body: Json, values: _Values) -> NewThreadFact:
    return NewThreadFact(fact, encode_body(dumps_fields(body, "")), list(values.blobs.values()))


def _id(value: str, path: str) -> str:
    if not arguments.text(value, path):
        raise Invalid(path, "is empty; give an id")
    return check_text(value, path)


def _channel(name: str, path: str) -> str:
    return check_text(name, path)


def _word(value: Any, path: str) -> str | None:
    return check_text(value, path) if isinstance(value, str) else None
