"""Labels and notes over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from store.client import requests, run_requests
from store.client.core import HTTPCore
from store.interface.annotations import StoreAnnotations
from store.interface.runs import AsAt
from store.models import AnnotateResult, Annotations
from store.validation import annotations, arguments
from store.wire import encoding, paths


class HTTPAnnotations(StoreAnnotations):
    """Client of a server's labels and notes."""

    def __init__(self, core: HTTPCore) -> None:
        super().__init__("HTTPStore")
        self.core = core

    async def annotate(
        self,
        rollout_id: str,
        note: str | None = None,
        *,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
    ) -> AnnotateResult:
        annotations.check(note, add_labels, remove_labels)
        path = run_requests.path(paths.ANNOTATIONS, rollout_id)
        body = run_requests.body(note=note, add_labels=list(add_labels), remove_labels=list(remove_labels))
        return await self.core.rollbook_change("annotate_rollout", path, body, encoding.decode_annotated)

    async def query(
        self, rollout_id: str, *, limit: int = -1, as_at: AsAt | None = None, at: int | None = None
    ) -> Annotations:
        arguments.part_of_history(0, limit)
        path = run_requests.path(paths.ANNOTATIONS, rollout_id)
        fields = {"limit": limit, **requests.moment(as_at, at)}
        return await self.core.rollbook_read("query_annotations", path, fields, encoding.decode_annotations)
