"""Routes of the labels and notes of rollouts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from store.models import Annotations
from store.server.call import Call
from store.server.routing import Id, OwnStatusRoute, needs
from store.wire import paths
from store.wire.annotation_bodies import AnnotationsQuery, LabelsQuery
from store.wire.encoding import dumps

annotations = APIRouter(route_class=OwnStatusRoute, tags=["Labels and notes"])


@annotations.get(paths.ANNOTATIONS, response_model=Annotations)
@needs("reader")
async def query_annotations(call: Call, rollout_id: Id, query: Annotated[AnnotationsQuery, Query()]) -> bytes:
    """Return the labels of a rollout and its notes, oldest first."""
    return dumps(await call.store.annotations.query(rollout_id, **vars(query)))


@annotations.post(paths.LABELS_SEARCH, response_model=dict[str, list[str]])
@needs("reader")
async def search_labels(call: Call, query: LabelsQuery) -> bytes:
    """Return the sorted labels of rollouts, by rollout id. Rollouts without labels are left out."""
    return dumps(await call.store.annotations.query_labels(query.rollout_id, as_at=query.as_at))
