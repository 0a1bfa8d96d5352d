"""Client of a server's log of events, with the methods history, tail, verify, rebuild and seal."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from store.client import requests
from store.client.core import HTTPCore
from store.client.transport import StoreCall, changing, reading
from store.errors import Incompatible
from store.interface.log import StoreLog
from store.interface.runs import AsAt
from store.models import History, HistoryEvent, LoggedEvent, LogPosition, RebuildReport, Seal, VerifyReport
from store.models.flat_spans import TakeSpans, flat_span
from store.models.queries import SearchQuery, SpanQuery, UsageQuery
from store.models.search import SearchPage
from store.models.trainer_metrics import Metric, MetricsQuery
from store.models.usage import UsageReport
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.validation import arguments
from store.wire import encoding, paths
from store.wire.errors import error_of

_PAGE: Final = 500
_SHORTEST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

_decode_usage = encoding.decoder(UsageReport)
_decode_metrics = encoding.decoder(list[Metric])


class HTTPLog(StoreLog):
    """Client of a server's log."""

    def __init__(self, core: HTTPCore) -> None:
        super().__init__("HTTPStore")
        self.core = core

    async def history(
        self, rollout_id: str, *, as_at: AsAt | None = None, after: int = 0, limit: int = -1
    ) -> list[HistoryEvent]:
        path = requests.path(paths.HISTORY, rollout_id=requests.lookup_id(rollout_id, "rollout_id"))
        moment = requests.moment(as_at)
        arguments.part_of_history(after, limit)
        events = History()
        while True:
            # With limit 0, one event is requested and dropped, so that a rollout that does not exist raises NotFound.
            page_limit = _PAGE if limit < 0 else min(_PAGE, max(limit - len(events), 1))
            query = requests.query_string({**moment, "after": after, "limit": page_limit})
            page = await self.core.transport.request(
                reading("history", path + query, rollbook_only=True), encoding.decode_history
            )
            events += page[: None if limit < 0 else limit - len(events)]
            if len(page) < page_limit or len(events) == limit or not limit:
                return events
            after = events[-1].number

    async def position(self, as_at: AsAt | None = None) -> LogPosition:
        path = paths.LOG_POSITION + requests.query_string(requests.moment(as_at))
        return await self.core.transport.request(
            reading("log.position", path, rollbook_only=True), encoding.decode_log_position
        )

    async def take_spans(self, query: SpanQuery, take: TakeSpans) -> int:
        page = await self.core.page("log.take_spans", paths.SPANS_SEARCH, query, requests.decode_span_page)
        take([flat_span(span) for span in page])
        return page.total

    async def search_texts(self, query: SearchQuery) -> SearchPage:
        fields = {name: getattr(query, name) for name in query.model_fields_set if getattr(query, name) is not None}
        return await self.core.rollbook_query("search", paths.SEARCH, encoding.decode_search_page, **fields)

    async def usage(self, query: UsageQuery) -> UsageReport:
        fields = requests.query(query) | requests.moment(query.as_at)
        return await self.core.rollbook_query("log.usage", paths.USAGE_SEARCH, _decode_usage, **fields)

    async def metrics(self, query: MetricsQuery | None = None) -> list[Metric]:
        query = query or MetricsQuery()
        fields = query.model_dump(exclude_none=True, exclude={"as_at"}) | requests.moment(query.as_at)
        return await self.core.rollbook_query("log.metrics", paths.METRICS_SEARCH, _decode_metrics, **fields)

    async def tail(
        self,
        after: str | None = None,
        *,
        follow: bool = False,
        types: Sequence[str] | None = None,
        rollout_id: str | None = None,
    ) -> AsyncIterator[LoggedEvent]:
        arguments.log_part(types, rollout_id)
        if after is not None:
            arguments.text(after, "after")
        if follow:
            async for event in self._follow(after, types, rollout_id):
                yield event
            return
        while True:
            call = reading("tail", _log_path(after, types, rollout_id), rollbook_only=True)
            page = await self.core.transport.request(call, encoding.decode_log_page)
            for event in page.events:
                yield event
            after = page.cursor or after
            if len(page.events) < _PAGE:
                return

    async def _follow(
        self, after: str | None, types: Sequence[str] | None, rollout_id: str | None
    ) -> AsyncGenerator[LoggedEvent]:
        """Yield events as the server sends them; connect again whenever a connection ends."""
        pause = _SHORTEST_PAUSE
        while True:
            call = reading("tail", _log_path(after, types, rollout_id), rollbook_only=True)
            stream = await self.core.transport.follow(call)
            if stream is None:
                raise Incompatible(
                    f"{self.core.transport.address.base} does not stream the log",
                    "give the URL of a Rollbook server",
                )
            try:
                while frames := await stream.take():
                    for event in _events(frames):
                        yield event
                        after, pause = event.cursor, _SHORTEST_PAUSE
                    if _has_ended(frames[-1]):
                        break
            finally:
                stream.close()
            await self.core.transport.pause("tail", pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def verify(
        self, seal: Seal | str | os.PathLike[str] | None = None, *, on_progress: OnProgress = ignore
    ) -> VerifyReport:
        arguments.seal(seal)
        expected_seal = seal if seal is None or isinstance(seal, Seal) else await asyncio.to_thread(_read_seal, seal)
        body = None if expected_seal is None else requests.body(seal=expected_seal)
        on_progress(OperationProgress("waiting for the server"))
        call = StoreCall("verify", "POST", paths.VERIFY, body, waits=math.inf, rollbook_only=True)
        return await self.core.transport.request(call, encoding.decode_verify_report)

    async def rebuild(self, *, on_progress: OnProgress = ignore) -> RebuildReport:
        self.core.check_writable("rebuild")
        on_progress(OperationProgress("waiting for the server"))
        call = changing("rebuild", paths.REBUILD, waits=math.inf, rollbook_only=True)
        return await self.core.transport.request(call, encoding.decode_rebuild_report)

    async def seal(self, path: str | os.PathLike[str]) -> Seal:
        if await asyncio.to_thread(Path(path).exists):
            raise FileExistsError(f"{path} exists; a seal is never overwritten, choose another name")
        call = StoreCall("seal", "POST", paths.SEAL, rollbook_only=True)
        head = await self.core.transport.request(call, encoding.decode_seal)
        await asyncio.to_thread(_write_seal, head, path)
        return head


def _log_path(after: str | None, types: Sequence[str] | None, rollout_id: str | None) -> str:
    named = requests.texts(types, "types")
    # A query string cannot contain an empty list. One empty text is sent instead, which is the name of no event type.
    fields = requests.given(after=after, type=[""] if named == [] else named, rollout=rollout_id)
    return paths.LOG + requests.query_string({**fields, "limit": _PAGE})


def _events(frames: list[dict[str, Any]]) -> Iterator[LoggedEvent]:
    """Yield the events in frames, which are the messages of the server's stream.

    Raises:
        StoreError: the stream ended with an error that is not retryable.
    """
    for frame in frames:
        if frame["kind"] == "event":
            yield LoggedEvent.model_validate(frame)
        elif _has_ended(frame) and not frame.get("retryable"):
            raise error_of(400, orjson.dumps(frame), "tail")


def _has_ended(frame: dict[str, Any]) -> bool:
    return frame["kind"] in {"error", "gap"}


# These functions import the module of seals only when they are called, because it imports SQLAlchemy, which takes long
# and which a client without seals does not need.


def _read_seal(path: str | os.PathLike[str]) -> Seal:
    from store.verification import seal

    return seal.read(path)


def _write_seal(head: Seal, path: str | os.PathLike[str]) -> None:
    from store.verification import seal

    seal.write(head, path)
