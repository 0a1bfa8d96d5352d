"""Enqueueing of past rollouts once more, in the same store or in another one."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from store.errors import Conflict, Invalid, TooLarge
from store.exports.source import ExportSource
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, NamedResources, Rollout
from store.models.enums import Frozen
from store.models.queries import RolloutQuery
from store.replaying.recorded_resources import RecordedResources, moment_at
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.semconv import DROPPED, GROUP_KEY, PLAN_KEY, REPLAY, plan_key_of

_LONGEST_NAME: Final = 100
_LONGEST_ID: Final = 512
_AT_ONCE: Final = 200
_EXAMPLES: Final = 5
_OTHERS_AT_ONCE: Final = 100


class ReplayedRollout(Frozen):
    """A rollout and its replay."""

    rollout_id: str
    """The id of the past rollout."""
    replay_id: str | None
    """The id of the new rollout; None in a dry run."""
    input: Any
    mode: str | None
    resources_id: str | None
    """The id of the resources of the new rollout."""
    resources_version: int | None
    """The version of the resources that the past rollout was given; None if there is none."""


class ReplayReport(Frozen):
    """The result of `replay_as_queue`."""

    name: str
    is_dry_run: bool
    selected: int
    """The number of rollouts that the query selects."""
    enqueued: int
    """The number of rollouts that this run enqueued; in a dry run, of all selected rollouts that can be enqueued."""
    enqueued_before: int
    """The number of rollouts that an earlier run of the replay enqueued. A dry run does not count them."""
    payload_removed: int
    """The number of rollouts that cannot be enqueued, because their input was removed from the store."""
    by_mode: dict[str, int]
    """The number of rollouts by mode, without those whose input was removed. The key `none` is for no mode."""
    published: list[str]
    """The ids under which versions of resources were published; in a dry run, the ids that would be used."""
    examples: list[ReplayedRollout]
    """The first rollouts, at most 5."""
    seconds: float


async def replay_as_queue(
    source: Store,
    name: str,
    *,
    query: RolloutQuery | None = None,
    target: Store | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = ignore,
) -> ReplayReport:
    """Enqueue past rollouts again, in the order of their creation.

    Each new rollout has the input, mode, config, step and metadata of a past rollout. It also has the version of the
    resources that the latest attempt of the past rollout was given. If another version is the current one, or the
    target is another store, the recorded version is published under the id
    `replay/<name>/<resources_id>@<version>`. The latest resources of the target stay the latest. The group is
    `<name>/<group>`, so existing groups get no new members. The metadata refers to the past rollout; see
    `semconv.REPLAY`. The plan key is `<name>/<rollout_id>`, so a call that was stopped can be repeated and enqueues
    each rollout once. Rollouts that a replay with the same name created are not enqueued again.

    Args:
        source: the store of the past rollouts; it must have a log.
        name: the name of the replay, of 1 to 100 bytes. Another name enqueues the rollouts once more.
        query: which rollouts; None for all. The order and the limit of the query are ignored.
        target: the store in which the rollouts are enqueued, which must have a log; None for the source.
        dry_run: whether to count the rollouts only.
        on_progress: called with the number of rollouts that are done.

    Raises:
        Invalid: the name is empty or too long.
        Conflict: the target has a rollout of another source, or other resources, under the name of this replay.
        Unsupported: a store has no log.
    """
    if not 0 < len(name.encode()) <= _LONGEST_NAME:
        raise Invalid("name", f"has {len(name.encode())} bytes; use 1 to {_LONGEST_NAME}")
    query = query or RolloutQuery()
    target = source if target is None else target
    moment, began = await source.log.position(query.as_at), await target.log.position()
    is_same = moment.store_id == began.store_id
    recorded = RecordedResources(source, moment.position)
    replay = _Replay(name, target, moment.store_id, began.position, recorded, is_same=is_same, is_dry_run=dry_run)
    records = ExportSource(source, query, moment.position)
    if not dry_run:
        await replay.restore_latest()
    async for batch in records.records():
        rollouts = [record.rollout for record in batch if not replay.is_own(record.rollout)]
        for start in range(0, len(rollouts), _AT_ONCE):
            await replay.enqueue(rollouts[start : start + _AT_ONCE])
        on_progress(OperationProgress("enqueueing rollouts", batch[-1].offset, records.listed, "rollouts"))
    return replay.report()


@dataclass(slots=True)
class _Replay:
    name: str
    target: Store
    source_id: str
    began_at: int
    """The position of the target at which this run began."""
    recorded: RecordedResources
    is_same: bool
    """Whether the target is the source."""
    is_dry_run: bool
    selected: int = 0
    enqueued: int = 0
    enqueued_before: int = 0
    removed: int = 0
    by_mode: Counter[str] = field(default_factory=Counter[str])
    target_ids: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """For each id and version of the source's resources, the id under which the target has them."""
    published: list[str] = field(default_factory=list[str])
    examples: list[ReplayedRollout] = field(default_factory=list[ReplayedRollout])
    started: float = field(default_factory=time.monotonic)

    def is_own(self, rollout: Rollout) -> bool:
        """Return whether a rollout is a result of this replay."""
        replay = (rollout.metadata or {}).get(REPLAY)
        return isinstance(replay, dict) and cast("dict[str, Any]", replay).get("name") == self.name

    async def enqueue(self, rollouts: Sequence[Rollout]) -> None:
        """Enqueue some rollouts, and count them."""
        self.selected += len(rollouts)
        usable = [rollout for rollout in rollouts if not (rollout.metadata or {}).get(DROPPED)]
        self.removed += len(rollouts) - len(usable)
        self.by_mode.update(rollout.mode or "none" for rollout in usable)
        pairs = [(rollout, await self._request(rollout)) for rollout in usable]
        if not self.is_dry_run:
            await self.restore_latest()
        created = [None] * len(pairs) if self.is_dry_run else await self._send([request for _, request in pairs])
        if self.is_dry_run:
            self.enqueued += len(pairs)
        for (rollout, request), replay in zip(pairs[: _EXAMPLES - len(self.examples)], created, strict=False):
            version = (request.metadata or {})[REPLAY].get("resources_version")
            replay_id = None if replay is None else replay.rollout_id
            self.examples.append(
                ReplayedRollout(
                    rollout_id=rollout.rollout_id,
                    replay_id=replay_id,
                    input=rollout.input,
                    mode=rollout.mode,
                    resources_id=request.resources_id,
                    resources_version=version,
                )
            )

    async def _send(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        if not requests:
            return []
        try:
            rollouts = await self.target.enqueue_many_rollouts(requests)
        except TooLarge:
            if len(requests) == 1:
                raise
            half = len(requests) // 2
            return [*await self._send(requests[:half]), *await self._send(requests[half:])]
        for rollout, request in zip(rollouts, requests, strict=True):
            # If a rollout of another source has the plan key, the target has returned this rollout.
            origin: Any = (rollout.metadata or {}).get(REPLAY) or {}
            if origin.get("store_id") != self.source_id:
                raise Conflict(
                    f"rollout {rollout.rollout_id} with the key {(request.metadata or {})[PLAN_KEY]} is no replay of"
                    f" store {self.source_id}",
                    "choose another name for the replay",
                )
        ids = [rollout.rollout_id for rollout in rollouts]
        earlier = await self.target.query_rollouts(rollout_id_in=ids, limit=0, as_at=self.began_at)
        self.enqueued += len(ids) - earlier.total
        self.enqueued_before += earlier.total
        return rollouts

    async def _request(self, rollout: Rollout) -> EnqueueRolloutRequest:
        version = await self.recorded.version_of(rollout)
        replay: dict[str, Any] = {"name": self.name, "store_id": self.source_id, "rollout_id": rollout.rollout_id}
        metadata = {**(rollout.metadata or {})}
        if (key := plan_key_of(metadata)) is not None:
            replay["key"] = key
        if version is not None:
            replay |= {"resources_id": rollout.resources_id, "resources_version": version}
        metadata |= {REPLAY: replay, PLAN_KEY: self._named(rollout.rollout_id)}
        if isinstance(group := metadata.get(GROUP_KEY), str):
            metadata[GROUP_KEY] = self._named(group)
        return EnqueueRolloutRequest(
            input=rollout.input,
            mode=rollout.mode,
            resources_id=await self._resources_in_target(rollout.resources_id, version),
            config=rollout.config,
            metadata=metadata,
        )

    def _named(self, text: str) -> str:
        """Return an id that consists of the name of the replay and a text. A long text is replaced by its hash."""
        return _fitting(f"{self.name}/", text)

    async def _resources_in_target(self, resources_id: str | None, version: int | None) -> str | None:
        """Return the id under which the target has a version of the source's resources. Publish the version if needed.

        An id without resources is returned unchanged, because rollouts may name resources that do not exist.
        """
        if resources_id is None or version is None:
            return resources_id
        key = (resources_id, version)
        if key not in self.target_ids:
            content = self.recorded.take(resources_id, version)
            current = await self.target.get_resources_by_id(resources_id) if self.is_same else None
            if current is not None and current.resources == content:
                self.target_ids[key] = resources_id
            else:
                self.target_ids[key] = target_id = _fitting(self._prefix, f"{resources_id}@{version}")
                await self._publish(target_id, content)
        return self.target_ids[key]

    async def _publish(self, target_id: str, content: NamedResources) -> None:
        self.published.append(target_id)
        if self.is_dry_run:
            return
        present = await self.target.get_resources_by_id(target_id)
        if present is None:
            await self.target.update_resources(target_id, content)
            # Rollouts that other callers enqueue without resources get the latest ones.
            await self.restore_latest()
            return
        if present.version > 1:
            # A later version may contain the address of another proxy. So the first version is compared.
            present = await self.target.get_resources_by_id(target_id, as_at=moment_at(present.create_time))
        if present is None or present.resources != content:
            raise Conflict(f"resources {target_id} have other content", "choose another name for the replay")

    @property
    def _prefix(self) -> str:
        return f"replay/{self.name}/"

    async def restore_latest(self) -> None:
        """Publish once more the resources that were the latest before this replay published resources."""
        latest = await self.target.get_latest_resources()
        if latest is None or not latest.resources_id.startswith(self._prefix):
            return
        offset = 0
        while True:
            page = await self.target.query_resources(
                sort_by="update_time", sort_order="desc", limit=_OTHERS_AT_ONCE, offset=offset
            )
            for update in page:
                if not update.resources_id.startswith(self._prefix):
                    await self.target.update_resources(update.resources_id, update.resources)
                    return
            offset += len(page)
            if not page.items:
                return

    def report(self) -> ReplayReport:
        """Return the result."""
        return ReplayReport(
            name=self.name,
            is_dry_run=self.is_dry_run,
            selected=self.selected,
            enqueued=self.enqueued,
            enqueued_before=self.enqueued_before,
            payload_removed=self.removed,
            by_mode=dict(self.by_mode.most_common()),
            published=self.published,
            examples=self.examples,
            seconds=time.monotonic() - self.started,
        )


def _fitting(prefix: str, text: str) -> str:
    if len(f"{prefix}{text}".encode()) <= _LONGEST_ID:
        return f"{prefix}{text}"
    return f"{prefix}{hashlib.sha256(text.encode()).hexdigest()}"
