"""The format otlp, and collectors: what they receive, and how their answers are treated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from store.errors import Forbidden, Incompatible, Invalid, Unauthorized, Unavailable
from store.exports import CollectorOptions, export_store, send_spans
from store.exports.otlp import collector as collectors
from store.interface.store import Store
from store.models.queries import RolloutQuery
from store.otel import json_format
from tests.exports.collector import Answer, CollectorServer, collecting

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def collector() -> Iterator[CollectorServer]:
    with collecting() as server:
        yield server


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "_SHORTEST_PAUSE", 0.01)


async def all_spans(store: Store) -> list[dict[str, Any]]:
    rollouts = await store.query_rollouts(sort_by="start_time")
    return [
        span.model_dump()
        for rollout in rollouts
        for span in await store.query_spans(rollout.rollout_id, sort_by="sequence_id")
    ]


async def test_a_line_of_the_files_is_a_span_that_is_read_as_it_was(store: Store, tmp_path: Path) -> None:
    report = await export_store(store, "otlp", tmp_path / "export")
    lines = (tmp_path / "export" / "part-00000.jsonl").read_bytes().splitlines()
    traces = [json_format.decode(line) for line in lines]
    assert report.rows == {"otlp": len(lines)}
    assert [span.model_dump() for trace in traces for span in trace.spans] == await all_spans(store)
    first, second = (traces[place].received[0].added for place in (0, 1))
    (rollout, *_) = await store.query_rollouts(sort_by="start_time")
    assert first == {
        "agentlightning.rollout_id": rollout.rollout_id,
        "agentlightning.attempt_id": traces[0].received[0].attempt_id,
        "agentlightning.span_sequence_id": 1,
        "rollbook.group": "task 0",
        "rollbook.step": 0,
        "rollbook.mode": "train",
        "rollbook.attempt": 1,
        "rollbook.status": "failed",
        "rollbook.input": '{"question":"What is 0+0?"}',
    }
    assert second.keys() == first.keys() - {"rollbook.input"} | {"rollbook.reward"}


async def test_the_score_of_a_version_replaces_the_reward(store: Store, collector: CollectorServer) -> None:
    version = "exact@v2"
    await send_spans(store, collector.url, query=RolloutQuery(reward_version=version))
    ids = [rollout.rollout_id for rollout in await store.query_rollouts()]
    recorded = await store.annotations.query_scores(ids, reward_version=version)
    scores = {score.attempt_id: score.value for score in recorded if score.value is not None}
    assert scores
    exported = {span.attempt_id: span.added.get("rollbook.reward") for span in collector.requests[0].traces.received}
    assert {attempt: value for attempt, value in exported.items() if value is not None} == scores


async def test_redacted_fields_are_not_in_the_files(store: Store, tmp_path: Path) -> None:
    await export_store(store, "otlp", tmp_path / "export", redact=["input", "attributes.*prompt*"])
    content = (tmp_path / "export" / "part-00000.jsonl").read_bytes()
    assert (b"question" in content, b"What is" in content, b"It is" in content) == (False, False, True)
    for wrong in ("otlp.request", "spans.attributes"):
        with pytest.raises(Invalid, match="redact"):
            await export_store(store, "otlp", tmp_path / "other", redact=[wrong])


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
async def test_a_collector_receives_the_spans_of_chosen_rollouts(
    encoding: Any, any_store: Store, collector: CollectorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret,x-tenant=1")
    options = CollectorOptions(
        encoding=encoding, compression="gzip" if encoding == "json" else "none", headers={"X-Tenant": "2"}
    )
    query = RolloutQuery(group_in=["task 1"])
    report = await send_spans(any_store, f"{collector.url}/otel/", query=query, options=options)
    (request,) = collector.requests
    assert (request.path, request.headers["authorization"], request.headers["x-tenant"]) == (
        "/otel/v1/traces",
        "Bearer secret",
        "2",
    )
    rollouts = {rollout.rollout_id for rollout in await any_store.find_rollouts(query)}
    expected = [span for span in await all_spans(any_store) if span["rollout_id"] in rollouts]
    assert [span.model_dump() for span in request.spans] == expected
    assert (report.rollouts, report.spans, report.refused, report.requests) == (2, 8, 0, 1)


async def test_passwords_in_netrc_are_not_sent_to_a_collector(
    store: Store, collector: CollectorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    await send_spans(store, collector.url)
    await send_spans(store, collector.url, options=CollectorOptions(headers={"authorization": "Bearer key"}))
    assert [request.headers.get("authorization") for request in collector.requests] == [None, "Bearer key"]


async def test_a_request_is_repeated_until_the_collector_takes_it(store: Store, collector: CollectorServer) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=0.5), usegmt=True)
    collector.answers = [
        Answer(503, headers={"Retry-After": "0.2"}),
        Answer(429, headers={"Retry-After": soon}),
        Answer(502, headers={"Retry-After": "soon"}),
        Answer(504, b"slow", headers={"Content-Type": "text/plain"}),
        Answer(drops_connection=True),
    ]
    notices: list[str] = []
    begun = time.monotonic()
    report = await send_spans(store, collector.url, on_notice=notices.append)
    assert time.monotonic() - begun >= 0.2
    assert (len(collector.requests), report.requests, report.spans) == (6, 1, len(await all_spans(store)))
    down, up = notices
    assert "does not take spans (status 503); trying again" in down
    assert up.endswith("takes spans again")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(
            body=ExportTraceServiceResponse(
                partial_success=ExportTracePartialSuccess(rejected_spans=3, error_message="no rollout")
            ).SerializeToString(),
            headers=PROTOBUF,
        ),
        Answer(body=b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no rollout"}}', headers=JSON),
        Answer(
            body=b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no rollout"}}', headers=JSON, is_divided=True
        ),
    ],
    ids=["protobuf", "json", "two pieces"],
)
async def test_a_partial_success_is_reported_and_not_repeated(
    answer: Answer, store: Store, collector: CollectorServer
) -> None:
    collector.answers = [answer]
    report = await send_spans(store, collector.url)
    assert (report.refused, report.refusal, len(collector.requests)) == (3, "no rollout", 1)


@pytest.mark.parametrize("answer", [Answer(body=b"\xff", headers=PROTOBUF), Answer(body=b"[]", headers=JSON), Answer()])
async def test_an_unreadable_answer_is_a_success(answer: Answer, store: Store, collector: CollectorServer) -> None:
    collector.answers = [answer]
    assert (await send_spans(store, collector.url)).refused == 0


async def test_a_request_that_is_too_large_is_divided(store: Store, collector: CollectorServer) -> None:
    collector.answers = [Answer(413), Answer(413), Answer(), Answer(413), Answer(413), Answer(413)]
    query = RolloutQuery(group_in=["task 1"])
    report = await send_spans(store, collector.url, query=query)
    # 8, 4, 2, 2 (divided: 1 is too large, 1 as well), then the other 4 (in the last two answers).
    assert [len(request.spans) for request in collector.requests] == [8, 4, 2, 2, 1, 1, 4]
    assert (report.spans, report.refused) == (8, 2)
    assert report.refusal.endswith("is too large for the collector")


@pytest.mark.parametrize(
    "answer,error,text",
    [
        (Answer(401), Unauthorized, "OTEL_EXPORTER_OTLP_HEADERS"),
        (Answer(403, b'{"message":"not yours"}', JSON), Forbidden, "status 403: not yours"),
        (Answer(400, b"\x12\x03bad", PROTOBUF), Incompatible, "status 400: bad"),
        (Answer(404, b'"gone"', JSON), Incompatible, 'status 404: "gone"'),
        (Answer(404, b"{", JSON), Incompatible, "status 404; check"),
        (Answer(415, b"no\njson", {"Content-Type": "text/plain"}), Incompatible, "415: no json"),
        (Answer(307, headers={"Location": "https://x/"}), Incompatible, "status 307: moved to https://x/"),
        (Answer(501, b"\xff", PROTOBUF), Incompatible, "status 501; check"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else "",
)
async def test_a_refused_request_is_an_error_with_the_reason_of_the_collector(
    answer: Answer, error: type[Exception], text: str, store: Store, collector: CollectorServer
) -> None:
    collector.answers = [answer]
    with pytest.raises(error, match="does not accept the spans") as failed:
        await send_spans(store, collector.url)
    assert text in str(failed.value)
    assert len(collector.requests) == 1


async def test_a_collector_that_stays_away_is_given_up(store: Store, collector: CollectorServer) -> None:
    collector.answers = [Answer(503)] * 1000
    with pytest.raises(Unavailable, match=r"has not taken spans for 0\.2 s \(status 503\)"):
        await send_spans(store, collector.url, options=CollectorOptions(retry_seconds=0.2))
    collector.close()
    with pytest.raises(Unavailable, match="Connection refused"):
        await send_spans(store, collector.url, options=CollectorOptions(retry_seconds=0.1))


async def test_a_collector_without_an_answer_is_given_up(store: Store) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unavailable, match="no answer in time"):
        await send_spans(
            store, f"http://127.0.0.1:{port}", options=CollectorOptions(timeout_seconds=0.1, retry_seconds=0.1)
        )
    server.close()


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "http://", "http://x:99999", "http://user:secret@x"])
async def test_a_url_that_is_not_of_a_collector_is_refused(url: str, store: Store) -> None:
    with pytest.raises(Invalid, match=r"^to: ") as refused:
        await send_spans(store, url)
    assert ("secret" in str(refused.value)) is False


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "xml"},
        {"compression": "zip"},
        {"timeout_seconds": 0},
        {"retry_seconds": -1},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"": "b"}},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(options))):
        CollectorOptions(**options)
