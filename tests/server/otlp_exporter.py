"""A client that posts traces to a server and reads the stored spans."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from store.interface.store import Store
from store.models import Attempt, Span
from store.server.app import build_app
from store.server.otlp import MAX_BODY_BYTES
from store.server.partitions import Partitions
from tests.otel.otlp_messages import as_json, request
from tests.server.loopback_server import served

PROTOBUF, JSON = "application/x-protobuf", "application/json"


class Exporter:
    """What posts traces; keeps nothing of its own."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = f"{url}/v1/traces"
        self.port = int(url.rpartition(":")[2])

    async def post(
        self, body: bytes | AsyncIterator[bytes], content_type: str = PROTOBUF, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers (in lower case) of the answer, as they came over the wire."""
        sent = {"Content-Type": content_type, "Accept-Encoding": "identity", **headers}
        async with self.session.post(
            self.url, data=io.BytesIO(body) if isinstance(body, bytes) else body, headers=sent
        ) as answer:
            return answer.status, await answer.read(), {name.lower(): held for name, held in answer.headers.items()}

    async def export(self, *groups: ResourceSpans, content_type: str = PROTOBUF) -> tuple[int, str]:
        """Return how many spans were refused, and why."""
        message = request(*groups)
        body = message.SerializeToString() if content_type == PROTOBUF else as_json(message)
        status, answer, headers = await self.post(body, content_type)
        assert (status, headers["content-type"]) == (200, content_type)
        if content_type == JSON:
            partial = json.loads(answer).get("partialSuccess", {})
            return int(partial.get("rejectedSpans", 0)), partial.get("errorMessage", "")
        success = ExportTraceServiceResponse.FromString(answer).partial_success
        return success.rejected_spans, success.error_message


@asynccontextmanager
async def exporting(store: Store, max_otlp_bytes: int = MAX_BODY_BYTES) -> AsyncGenerator[Exporter]:
    """Serve a store and give an exporter that knows where."""
    app = build_app(Partitions(store), max_otlp_bytes=max_otlp_bytes)
    async with served(app) as url, aiohttp.ClientSession(auto_decompress=False) as session:
        yield Exporter(session, url)


async def stored(store: Store, attempt: Attempt) -> list[Span]:
    return list((await store.query_spans(attempt.rollout_id, attempt.attempt_id, sort_by=None)).items)


async def numbers(store: Store, attempt: Attempt) -> dict[str, int]:
    """Return the number of each span by its name."""
    return {span.name: span.sequence_id for span in await stored(store, attempt)}


def message_of(body: bytes, content_type: str) -> str:
    """Return the message of a failure."""
    from google.rpc.status_pb2 import Status as RpcStatus

    if content_type == JSON:
        return json.loads(body)["message"]
    return cast("Any", RpcStatus.FromString(body)).message
