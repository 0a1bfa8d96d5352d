"""Labels and notes: what is said about a rollout."""

from __future__ import annotations

from store.models import AnnotateResult, Annotations
from store.runtime import context
from store.server.call import Call
from store.server.routing import Operations
from store.wire import paths
from store.wire.annotation_bodies import AnnotateBody, AnnotationsQuery
from store.wire.encoding import dumps

annotations = Operations("Labels and notes", own_statuses=True)


@annotations.post(paths.ANNOTATIONS, body=AnnotateBody, answer=AnnotateResult)
async def annotate_rollout(call: Call) -> bytes:
    """Put labels on a rollout, take others off it, and make a note of it, all in one event."""
    body = await call.body(AnnotateBody)
    admission = call.scope.get("rollbook.admission")
    acting = context.actor.set(None if admission is None else f"key:{admission.key.key_id}")
    try:
        return dumps(await call.store.annotations.annotate(call.ids["rollout_id"], **vars(body)))
    finally:
        context.actor.reset(acting)


@annotations.get(paths.ANNOTATIONS, query=AnnotationsQuery, answer=Annotations)
async def query_annotations(call: Call) -> bytes:
    """Return the labels of a rollout and its notes, oldest first."""
    return dumps(await call.store.annotations.query(call.ids["rollout_id"], **vars(call.query(AnnotationsQuery))))
