"""Labels, notes and scores over HTTP."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from store.client import requests, run_requests
from store.client.core import HTTPCore
from store.interface.annotations import StoreAnnotations
from store.interface.runs import AsAt
from store.models import Annotations
from store.models.calls import ChangingCall
from store.models.scores import RewardVersion, Score
from store.validation import arguments, scores
from store.wire import encoding, paths

T = TypeVar("T")

_decode_labels = encoding.decoder(dict[str, list[str]])
_decode_scores = encoding.decoder(list[Score])
_decode_versions = encoding.decoder(list[RewardVersion])


class HTTPAnnotations(StoreAnnotations):
    """Client of a server's labels, notes and scores."""

    def __init__(self, core: HTTPCore) -> None:
        super().__init__("HTTPStore")
        self.core = core

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return self.core.call(call)

    async def query(
        self, rollout_id: str, *, limit: int = -1, as_at: AsAt | None = None, at: int | None = None
    ) -> Annotations:
        arguments.part_of_history(0, limit)
        path = run_requests.path(paths.ANNOTATIONS, rollout_id)
        fields = {"limit": limit, **requests.moment(as_at, at)}
        return await self.core.rollbook_read("query_annotations", path, fields, encoding.decode_annotations)

    async def query_labels(self, rollout_ids: Sequence[str], *, as_at: AsAt | None = None) -> dict[str, list[str]]:
        fields = {"rollout_id": scores.rollout_ids(rollout_ids), **requests.moment(as_at)}
        return await self.core.rollbook_query("query_labels", paths.LABELS_SEARCH, _decode_labels, **fields)

    async def query_scores(
        self, rollout_id: str | Sequence[str], *, reward_version: str | None = None, as_at: AsAt | None = None
    ) -> list[Score]:
        fields = {"rollout_id": scores.rollout_ids(rollout_id), **requests.moment(as_at)}
        if reward_version is not None:
            fields["reward_version"] = str(scores.version_key(reward_version))
        return await self.core.rollbook_query("query_scores", paths.SCORES_SEARCH, _decode_scores, **fields)

    async def query_reward_versions(self, *, as_at: AsAt | None = None) -> list[RewardVersion]:
        fields = requests.moment(as_at)
        return await self.core.rollbook_read("query_reward_versions", paths.SCORE_VERSIONS, fields, _decode_versions)
