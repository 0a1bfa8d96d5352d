"""Labels and notes over HTTP."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from store.client import requests, run_requests
from store.client.core import HTTPCore
from store.interface.annotations import StoreAnnotations
from store.interface.runs import AsAt
from store.models import Annotations
from store.models.calls import ChangingCall
from store.validation import arguments
from store.wire import encoding, paths

T = TypeVar("T")


class HTTPAnnotations(StoreAnnotations):
    """Client of a server's labels and notes."""

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
