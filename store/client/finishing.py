"""The end of an attempt over HTTP: one request, or one for each part if the server does not have this call."""

from __future__ import annotations

from functools import partial
from typing import Final

from store.client import requests
from store.client.core import HTTPCore
from store.errors import Incompatible, Invalid, StoreError
from store.interface.finishing import finish_by_parts, span_of_attempt
from store.interface.store import Store
from store.models import Span
from store.models.calls import FinishAttemptCall
from store.models.finished_attempts import FinishedAttempt
from store.validation.json_limits import check_call
from store.wire import finished_attempts

_LARGEST_BODY: Final = 31 * 1024 * 1024
"""The maximum size of the spans of one request: less than a server accepts."""


async def finish(store: Store, core: HTTPCore, call: FinishAttemptCall) -> FinishedAttempt:
    """Make a call of `finish_attempt`.

    Args:
        store: the store, whose other calls are made if its server does not have this one.
        core: the core of the store.
        call: the call.
    """
    check_call(len(call.spans), 0, "spans")
    results: list[Span | StoreError | None] = [None] * len(call.spans)
    texts: dict[int, bytes] = {}
    for index, span in enumerate(call.spans):
        try:
            texts[index] = requests.span(span_of_attempt(span, call, index), f"spans[{index}]")
        except Invalid as error:
            results[index] = error
    if not core.has_finish_attempt or sum(map(len, texts.values())) > _LARGEST_BODY:
        return await finish_by_parts(store, call)
    path, body = requests.of_finish(call, list(texts.values()))
    decode = partial(finished_attempts.decode, spans=[call.spans[index] for index in texts])
    try:
        finished = await core.change(call.method, path, body, decode, rollbook_only=True, claims=True)
    except Incompatible:
        # A server of Agent-lightning, or of an earlier version.
        core.has_finish_attempt = False
        return await finish_by_parts(store, call)
    for index, result in zip(texts, finished.spans, strict=True):
        results[index] = result
    return FinishedAttempt(results, finished.attempt, finished.claimed)
