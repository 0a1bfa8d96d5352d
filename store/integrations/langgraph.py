"""A LangGraph checkpointer on the log: `graph.compile(checkpointer=RollbookSaver(store))`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from store.domain.thread import CheckpointKey
from store.errors import Invalid, Unsupported
from store.interface.store import Store, SyncStore
from store.interface.threads import StoreThreads
from store.models.threads import ThreadCheckpoint, ThreadPlace, ThreadWrite
from store.runtime.blocking import BatchReader

T = TypeVar("T")

KEEP_LATEST: Final = "keep_latest"
DELETE: Final = "delete"


class Graph(Protocol):
    """The methods of a compiled graph that this module calls."""

    def aget_state_history(self, config: RunnableConfig, /) -> AsyncIterator[Any]:
        """Yield the states of a thread, the newest first."""
        ...

    async def aupdate_state(self, config: RunnableConfig, values: dict[str, Any], /) -> RunnableConfig:
        """Set values on top of a state, and return the config of the new state."""
        ...


class RollbookSaver(BaseCheckpointSaver[str]):
    """LangGraph checkpointer that stores checkpoints as events of a store's log.

    A thread named `<rollout_id>:<scope>` belongs to that rollout. With `attempt_id` in the config's `configurable`,
    each checkpoint and each write counts as a heartbeat of that attempt. The attempt's id becomes the `run_id` in the
    checkpoint's metadata, unless the metadata already has a `run_id`. Each method without the prefix `a` does the same
    as the method with the prefix, and blocks its caller. The blocking methods also work if an event loop runs in the
    caller's thread.
    """

    def __init__(self, store: Store | SyncStore, *, serde: SerializerProtocol | None = None) -> None:
        """Create a saver on a store that must stay open while the saver is used.

        Args:
            store: a store opened on a database.
            serde: the serializer of values; None for the default of LangGraph, msgpack.

        Raises:
            Unsupported: the store has no threads of checkpoints, for example because it is a client of a server.
        """
        super().__init__(serde=serde)
        opened = store.target if isinstance(store, SyncStore) else store
        if type(opened.threads) is StoreThreads:
            raise Unsupported("threads of checkpoints", type(opened).__name__)
        self.store = opened
        self._waiting = store if isinstance(store, SyncStore) else SyncStore(store)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        checkpoint = await self.store.threads.get_checkpoint(
            _thread_id(config), ns=_namespace(config), checkpoint_id=get_checkpoint_id(config)
        )
        return None if checkpoint is None else self._tuple(checkpoint)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (signature of the base class)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        remaining = -1 if limit is None else limit
        checkpoints = self.store.threads.iterate_checkpoints(
            None if config is None else _thread_id(config),
            ns=None if config is None else _configurable(config).get("checkpoint_ns"),
            checkpoint_id=None if config is None else get_checkpoint_id(config),
            before=None if before is None else get_checkpoint_id(before),
            limit=-1 if filter else remaining,
        )
        async for checkpoint in checkpoints:
            if remaining == 0:
                return
            if filter and not all(checkpoint.metadata.get(key) == value for key, value in filter.items()):
                continue
            remaining -= 1
            yield self._tuple(checkpoint)

    def _tuple(self, stored: ThreadCheckpoint) -> CheckpointTuple:
        read = self.serde.loads_typed
        values = {channel: read(value) for channel, value in stored.values.items()}
        parent = None if stored.parent_id is None else _config(stored.thread_id, stored.ns, stored.parent_id)
        return CheckpointTuple(
            config=_config(stored.thread_id, stored.ns, stored.checkpoint_id),
            checkpoint=cast("Checkpoint", {**read(stored.checkpoint), "channel_values": values}),
            metadata=cast("CheckpointMetadata", dict(stored.metadata)),
            parent_config=parent,
            pending_writes=[(write.task_id, write.channel, read(write.value)) for write in stored.writes],
        )

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        # The log identifies values by their content, so the saver need not know which values are new.
        del new_versions
        attempt_id = _attempt_id(config)
        recorded = dict(get_checkpoint_metadata(config, metadata))
        if attempt_id is not None:
            recorded.setdefault("run_id", attempt_id)
        rest = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        thread_id, ns = _thread_id(config), _namespace(config)
        stored = ThreadCheckpoint(
            thread_id=thread_id,
            ns=ns,
            checkpoint_id=checkpoint["id"],
            parent_id=get_checkpoint_id(config),
            checkpoint=self.serde.dumps_typed(rest),
            values={name: self.serde.dumps_typed(value) for name, value in checkpoint["channel_values"].items()},
            metadata=recorded,
        )
        await self.store.threads.save_checkpoint(stored, attempt_id=attempt_id)
        return _config(thread_id, ns, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        saved_writes = [
            ThreadWrite(
                task_id=task_id,
                number=WRITES_IDX_MAP.get(channel, index),
                channel=channel,
                value=self.serde.dumps_typed(value),
                task_path=task_path,
            )
            for index, (channel, value) in enumerate(writes)
        ]
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id is None:
            raise Invalid("checkpoint_id", "is not in the config; writes belong to a checkpoint")
        await self.store.threads.save_writes(
            _thread_id(config),
            saved_writes,
            ns=_namespace(config),
            checkpoint_id=checkpoint_id,
            attempt_id=_attempt_id(config),
        )

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 (signature of the base class)
        """Return a version that sorts after `current` and is unique among the branches of the thread."""
        count = 0 if current is None else int(str(current).partition(".")[0])
        return f"{count + 1:032}.{random.getrandbits(53):016x}"

    async def adelete_thread(self, thread_id: str) -> None:
        await self.store.threads.delete(str(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self.store.threads.delete_runs([str(run_id) for run_id in run_ids])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self.store.threads.copy(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = KEEP_LATEST) -> None:
        if strategy not in {KEEP_LATEST, DELETE}:
            raise Invalid("strategy", f"{strategy!r} is neither {KEEP_LATEST!r} nor {DELETE!r}")
        for thread_id in map(str, thread_ids):
            if strategy == DELETE:
                await self.store.threads.delete(thread_id)
            else:
                await self._keep_latest(thread_id)

    async def _keep_latest(self, thread_id: str) -> None:
        places = await self.store.threads.list_places(thread_id)
        latest: dict[str, ThreadPlace] = {}
        for place in places:
            latest.setdefault(place.ns, place)
        needed: set[CheckpointKey] = set()
        for place in latest.values():
            needed.add((place.ns, place.checkpoint_id))
            needed |= await self._ancestors_needed(place)
        obsolete = [key for place in places if (key := (place.ns, place.checkpoint_id)) not in needed]
        if obsolete:
            await self.store.threads.prune(thread_id, obsolete)

    async def _ancestors_needed(self, place: ThreadPlace) -> set[CheckpointKey]:
        """Return the ancestors with the full values of channels, if the checkpoint has only differences of these."""
        needed: set[CheckpointKey] = set()
        checkpoint = await self.store.threads.get_checkpoint(
            place.thread_id, ns=place.ns, checkpoint_id=place.checkpoint_id
        )
        if checkpoint is None:
            return needed
        missing_channels = (
            set(checkpoint.metadata.get("counters_since_delta_snapshot") or ()) - checkpoint.values.keys()
        )
        while missing_channels and checkpoint.parent_id is not None:
            checkpoint = await self.store.threads.get_checkpoint(
                place.thread_id, ns=place.ns, checkpoint_id=checkpoint.parent_id
            )
            if checkpoint is None:
                break
            needed.add((place.ns, checkpoint.checkpoint_id))
            missing_channels -= checkpoint.values.keys()
        return needed

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (signature of the base class)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        thread = self._waiting.thread.get()
        reader = BatchReader(self.alist(config, filter=filter, before=before, limit=limit))
        try:
            while items := thread.wait(reader.take()):
                yield from items
        finally:
            thread.finish(reader.close())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = KEEP_LATEST) -> None:
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self._waiting.thread.get().wait(call)


async def pointer_to_phase_end(graph: Graph, config: RunnableConfig, nodes: Collection[str]) -> dict[str, Any] | None:
    """Return a pointer to the newest checkpoint after which one of `nodes` runs next.

    The pointer is a value for the argument `external` of `runs.save_checkpoint`. If `nodes` are the nodes of a phase,
    the pointer leads to the end of the previous phase. Return None if there is no such checkpoint.
    """
    async for snapshot in graph.aget_state_history(config):
        if not set(nodes).isdisjoint(snapshot.next):
            return pointer(snapshot.config)
    return None


def pointer(config: RunnableConfig) -> dict[str, Any]:
    """Return a pointer to the checkpoint in a config, for the argument `external` of `runs.save_checkpoint`."""
    checkpoint_id = get_checkpoint_id(config)
    if checkpoint_id is None:
        raise Invalid("checkpoint_id", "is not in the config; pass the config of a state of the graph")
    place = {"thread_id": _thread_id(config), "ns": _namespace(config), "checkpoint_id": checkpoint_id}
    return {"kind": "langgraph", **place}


async def start_from(
    graph: Graph,
    external: Mapping[str, Any] | None,
    *,
    attempt_id: str | None = None,
    state_patch: Mapping[str, Any] | None = None,
) -> RunnableConfig:
    """Return the config with which `graph.ainvoke(None, config)` continues from a checkpoint.

    Args:
        graph: a graph compiled with a `RollbookSaver`.
        external: the pointer in a checkpoint of a run.
        attempt_id: the attempt that continues, such as the attempt of a fork.
        state_patch: values to set before the graph continues, such as the `state_patch` of a fork; the checkpoint
            itself does not change.

    Raises:
        Invalid: `external` does not point to a checkpoint of LangGraph.
    """
    if external is None or external.get("kind") != "langgraph":
        raise Invalid("external", f"{external!r} is not a checkpoint of LangGraph; save one with external=pointer(...)")
    config = _config(external["thread_id"], external["ns"], external["checkpoint_id"])
    if attempt_id is not None:
        config["configurable"] = _configurable(config) | {"attempt_id": attempt_id}
    if not state_patch:
        return config
    patched = await graph.aupdate_state(config, dict(state_patch))
    return {"configurable": _configurable(config) | _configurable(patched)}


def _configurable(config: RunnableConfig) -> dict[str, Any]:
    return config.get("configurable", {})


def _thread_id(config: RunnableConfig) -> str:
    thread_id = _configurable(config).get("thread_id")
    if thread_id is None:
        raise Invalid("thread_id", 'is not in the config; give {"configurable": {"thread_id": ...}}')
    return str(thread_id)


def _namespace(config: RunnableConfig) -> str:
    return _configurable(config).get("checkpoint_ns", "")


def _attempt_id(config: RunnableConfig) -> str | None:
    attempt_id = _configurable(config).get("attempt_id")
    return None if attempt_id is None else str(attempt_id)


def _config(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
