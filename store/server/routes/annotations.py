"""Routes of the labels and notes of a rollout."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from store.models import Annotations
from store.server.call import Call
from store.server.routing import Id, OwnStatusRoute, needs
from store.wire import paths
from store.wire.annotation_bodies import AnnotationsQuery
from store.wire.encoding import dumps

annotations = APIRouter(route_class=OwnStatusRoute, tags=["Labels and notes"])


@annotations.get(paths.ANNOTATIONS, response_model=Annotations)
@needs("reader")
async def query_annotations(call: Call, rollout_id: Id, query: Annotated[AnnotationsQuery, Query()]) -> bytes:
    """Return the labels of a rollout and its notes, oldest first."""
    return dumps(await call.store.annotations.query(rollout_id, **vars(query)))
