"""Expired keys: streams and calls that wait end soon after their key does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from store.interface.store import Store
from store.server.auth import admission
from store.server.streaming.paths import LOG_SOCKET
from store.testing import ManualClock
from tests.otel.otlp_messages import ids_of
from tests.server.keyed import Keyed, bearer, keyed_server
from tests.server.stream_clients import LOG, Events, Socket, until


@pytest.fixture
async def keyed(
    store: Store, store_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Keyed]:
    monkeypatch.setattr(admission, "CHECK_SECONDS", 0.02)
    async with keyed_server(store, store_url, clock) as keyed:
        yield keyed


@asynccontextmanager
async def _events(keyed: Keyed, key: str) -> AsyncGenerator[Events]:
    headers = {"Accept": "text/event-stream", **bearer(key)}
    async with keyed.api.session.get(keyed.api.url + LOG, headers=headers) as answer:
        assert answer.status == 200
        yield Events(answer)
        answer.close()


@asynccontextmanager
async def _socket(keyed: Keyed, key: str) -> AsyncGenerator[Socket]:
    async with keyed.api.session.ws_connect(keyed.api.url + LOG_SOCKET, headers=bearer(key)) as socket:
        yield Socket(socket)


@pytest.mark.parametrize("way", [_events, _socket], ids=["events", "socket"])
async def test_a_stream_ends_with_its_key(keyed: Keyed, store: Store, way: object) -> None:
    key, text = await keyed.make("reader")
    await store.enqueue_rollout(1)
    follow = _events if way is _events else _socket
    async with follow(keyed, text) as stream:
        assert len(await stream.events(1)) == 1
        await keyed.revoke(key)
        last = await stream.frame()
        while last is not None and last["kind"] == "heartbeat":
            last = await stream.frame()
        assert last is not None
        assert (last["kind"], last["error_type"], last["retryable"]) == ("error", "Unauthorized", False)
        assert await stream.frame() is None


async def test_a_stream_ends_when_its_keys_time_is_over(keyed: Keyed, clock: ManualClock) -> None:
    text = await keyed.key("reader", expires_seconds=1e9)
    async with _events(keyed, text) as stream:
        assert await stream.frame()
        clock.advance(2e9)
        last = await stream.frame()
        while last is not None and last["kind"] == "heartbeat":
            last = await stream.frame()
        assert last is not None
        assert "has expired" in last["detail"]


async def test_a_claim_that_waits_ends_with_its_key_and_takes_nothing(keyed: Keyed) -> None:
    await keyed.key("admin")
    key, text = await keyed.make("runner")
    body = b'{"wait_seconds": 600, "worker_id": "w"}'
    headers = {"Content-Type": "application/json"}
    waiting = asyncio.ensure_future(keyed.ask(text, "POST", "/queues/rollouts/dequeue", data=body, headers=headers))
    await keyed.api.until_parked()
    await keyed.revoke(key)
    assert (await waiting).status == 401
    other = await keyed.key("algorithm")
    keyed.api.session.headers.update(bearer(other))
    (rollout,) = await keyed.api.enqueue(1)
    (claimed,) = await keyed.api.dequeue()
    assert claimed["rollout_id"] == rollout["rollout_id"]


async def test_waiting_call_continues_while_its_key_is_valid(keyed: Keyed) -> None:
    text = await keyed.key("algorithm")
    keyed.api.session.headers.update(bearer(text))
    waiting = asyncio.ensure_future(keyed.api.dequeue(wait_seconds=600, worker_id="w"))
    await keyed.api.until_parked()
    for count in range(2, 5):
        # Nobody else asks: what the server knows grows by its checks alone.
        await keyed.key("reader")
        await until(lambda count=count: len(keyed.ring) == count)
    (rollout,) = await keyed.api.enqueue(1)
    assert [entry["rollout_id"] for entry in await waiting] == [rollout["rollout_id"]]


async def test_a_page_sends_its_key_as_a_subprotocol_and_another_is_chosen(keyed: Keyed) -> None:
    text = await keyed.key("reader")
    protocols = ["rollbook", f"rollbook.key.{text}"]
    connecting = keyed.api.session.ws_connect(keyed.api.url + LOG_SOCKET, protocols=protocols)
    async with connecting as socket:
        assert socket.protocol == "rollbook"
        assert await Socket(socket).frame()


@pytest.mark.parametrize("protocols", [[], ["rollbook"], ["rollbook", "rollbook.key.x"], ["two"]], ids=str)
async def test_a_socket_without_a_key_is_not_opened(keyed: Keyed, protocols: list[str]) -> None:
    text = await keyed.key("reader")
    if protocols == ["two"]:
        protocols = [f"rollbook.key.{text}"] * 2
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with keyed.api.session.ws_connect(keyed.api.url + LOG_SOCKET, protocols=protocols):
            pass
    assert refused.value.status == 403


async def test_a_socket_of_another_partition_or_path_is_not_opened(keyed: Keyed) -> None:
    text = await keyed.key("reader", partition="other")
    for path in (LOG_SOCKET, "/v1/agl/nothing/ws"):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with keyed.api.session.ws_connect(keyed.api.url + path, headers=bearer(text)):
                pass


@pytest.mark.parametrize("header", ["authorization=Bearer%20{}", "x-api-key={}"])
async def test_the_stock_exporter_sends_a_key_from_its_environment(
    keyed: Keyed, store: Store, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    text = await keyed.key("runner")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", header.format(text))
    attempt = (await store.start_rollout(1)).attempt
    exporter = OTLPSpanExporter(endpoint=f"{keyed.api.url}/v1/traces", timeout=60)
    provider = TracerProvider(resource=Resource(ids_of(attempt)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def work() -> None:
        with provider.get_tracer("agent").start_as_current_span("step"):
            pass
        provider.shutdown()

    await asyncio.to_thread(work)
    assert [span.name for span in (await store.query_spans(attempt.rollout_id)).items] == ["step"]
