"""Answers to invalid requests: the status and the form, while other clients are served."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.errors import Busy, Closed, Conflict, Corrupt, StoreError, TimedOut, Unavailable, WrongProcess
from store.interface.delegating import DelegatingStore
from store.interface.store import Store
from store.models import LightningStoreStatistics, Rollout
from store.server.middleware import MAX_BODY_BYTES
from store.server.partitions import Partitions
from store.wire.errors import error_of
from tests.postgres import PostgresServer, with_partition
from tests.server.api import PREFIX, Api, speaking_to

MAX_BODY = 10_000


@pytest.fixture
def store_url() -> str:
    """One database is enough for what never reaches it."""
    return "memory://"


class Failing(DelegatingStore):
    """A store on which every heartbeat and count fails."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.error: Exception = RuntimeError()

    @property
    def target(self) -> Store:
        return self._inner

    @property
    def capabilities(self) -> Any:
        return self._inner.capabilities

    async def enqueue_many_rollouts(self, *args: Any, **kwargs: Any) -> list[Rollout]:
        raise self.error

    async def statistics(self, *args: Any, **kwargs: Any) -> LightningStoreStatistics:
        raise self.error

    async def close(self) -> None:
        await self._inner.close()


@pytest.fixture
async def failing(store: Store) -> Failing:
    return Failing(store)


@pytest.fixture
async def failing_api(failing: Failing) -> AsyncIterator[Api]:
    async with speaking_to(Partitions(failing)) as api:
        yield api


@pytest.fixture
async def small_api(store: Store) -> AsyncIterator[Api]:
    """A server that takes small bodies alone."""
    async with speaking_to(Partitions(store), max_body_bytes=MAX_BODY) as api:
        yield api


@pytest.mark.parametrize(
    "error,status",
    [
        (Conflict("the key is taken"), 400),
        (Corrupt("events", 1, 2), 400),
        (WrongProcess(1, 2), 400),
        (Unavailable("the disk is full"), 503),
        (Busy(5, 4), 503),
        (TimedOut("commit", 2.0), 503),
        (Closed("a call"), 503),
    ],
)
async def test_an_error_of_the_store_arrives_as_itself(
    failing: Failing, failing_api: Api, error: StoreError, status: int
) -> None:
    failing.error = error
    answer = await failing_api.post("/queues/rollouts/enqueue", {"rollouts": []})
    assert answer.status == status
    assert answer.json["error_type"] == type(error).__name__
    again = error_of(answer.status, answer.body, "POST")
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


async def test_retryable_error_has_a_retry_after_header(failing: Failing, failing_api: Api) -> None:
    failing.error = Unavailable("the disk is full", retry_after_seconds=2.5)
    answer = await failing_api.post("/queues/rollouts/enqueue", {"rollouts": []})
    assert answer.headers["retry-after"] == "3"
    failing.error = Conflict("the key is taken")
    assert "retry-after" not in (await failing_api.post("/queues/rollouts/enqueue", {"rollouts": []})).headers


async def test_unexpected_error_gives_its_type_and_logs_the_traceback(
    failing: Failing, failing_api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    failing.error = KeyError("secret")
    answer = await failing_api.get("/statistics")
    assert answer.status == 500
    assert answer.json == {"detail": "Internal server error", "error_type": "KeyError"}
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)
    assert (await failing_api.get("//livez")).status == 200


async def test_the_health_check_of_upstream_reports_a_database_that_does_not_answer(
    failing: Failing, failing_api: Api
) -> None:
    failing.error = Unavailable("connection refused", retry_after_seconds=2.5)
    answer = await failing_api.get("/health")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert (answer.json["error_type"], answer.detail) == (
        "Unavailable",
        "the database does not answer: connection refused; try again in 1 s",
    )


@pytest.mark.postgres
@pytest.mark.slow
async def test_the_health_check_reports_a_postgres_that_is_stopped_or_frozen(private_postgres: PostgresServer) -> None:
    store = await open_store(with_partition(private_postgres.url))
    async with store, speaking_to(Partitions(store)) as api:
        assert (await api.get("/health")).status == 200
        await asyncio.to_thread(private_postgres.stop, "immediate")
        async with asyncio.timeout(30):
            answer = await api.get("/health")
            assert (answer.status, answer.json["error_type"]) == (503, "Unavailable")
            assert answer.detail.startswith("the database does not answer: ")
            assert (await api.get("//livez")).status == 200
        await asyncio.to_thread(private_postgres.restart)
        async with asyncio.timeout(30):
            while (await api.get("/health")).status != 200:
                pass
        await asyncio.to_thread(private_postgres.freeze)
        async with asyncio.timeout(30):
            answer = await api.get("/health")
        assert (answer.status, "has not answered for 2 s" in answer.detail) == (503, True)
        await asyncio.to_thread(private_postgres.thaw)
        async with asyncio.timeout(30):
            while (await api.get("/health")).status != 200:
                pass


async def test_the_health_check_reports_a_sqlite_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    async with await open_store(f"sqlite:///{path}") as store, speaking_to(Partitions(store)) as api:
        assert (await api.get("/health")).status == 200
        for file in (path, path.with_name("run.db-wal")):
            os.truncate(file, 0)
        answer = await api.get("/health")
        assert (answer.status, answer.json["error_type"]) == (503, "Unavailable")
        assert answer.detail.startswith("the database does not answer: ")


async def test_readiness_names_the_missing_database(failing: Failing, failing_api: Api) -> None:
    failing.error = Unavailable("the database does not answer")
    answer = await failing_api.get("//readyz")
    assert answer.status == 503
    assert "does not answer" in answer.json["missing"]["database"]
    assert (await failing_api.get("//livez")).ok() == {"status": "alive"}


async def test_a_server_that_could_serve_is_ready(api: Api) -> None:
    assert (await api.get("//readyz")).ok() == {"status": "ready"}


@pytest.mark.parametrize(
    "method,path,status",
    [
        ("GET", "/nothing", 404),
        ("GET", "/rollouts/", 404),
        ("GET", "//v1/nothing", 404),
        ("GET", "/spans/search", 404),
        ("GET", "/rollouts/x/attempts/y/z", 404),
        ("GET", "/queues/rollouts/dequeue", 404),
        ("HEAD", "/rollouts", 405),
        ("POST", "/nothing", 405),
        ("POST", "/rollouts/", 405),
        ("POST", "/health", 405),
        ("PUT", "/rollouts", 405),
        ("DELETE", "/rollouts/x", 405),
        ("OPTIONS", "/health", 405),
    ],
)
async def test_unknown_routes_and_methods_answer_in_json(api: Api, method: str, path: str, status: int) -> None:
    answer = await api.send(method, path)
    assert answer.status == status
    assert method == "HEAD" or answer.json == {"detail": "Not Found" if status == 404 else "Method Not Allowed"}


async def test_wrong_method_is_answered_with_an_allow_header(api: Api) -> None:
    assert (await api.send("PUT", "/rollouts")).headers["allow"] == "GET, POST"


async def test_health_may_be_checked_with_head(api: Api) -> None:
    for path in ("/health", "//p/default/v1/agl/health", "//livez"):
        answer = await api.send("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("path", ["//v1/metrics", "//v1/logs", "//v1/development/profiles"])
async def test_signals_other_than_traces_are_not_implemented(api: Api, path: str) -> None:
    answer = await api.post(path, data=b"\x00")
    assert (answer.status, answer.body) == (501, b"")


ENQUEUE = "/queues/rollouts/enqueue"


@pytest.mark.parametrize("body", [b"{", b"nonsense", b'{"rollouts":[}', b"\xff\xfe", b'{"rollouts": [{"input": 1]'])
async def test_a_body_that_is_no_json_is_refused(api: Api, body: bytes) -> None:
    answer = await api.post(ENQUEUE, body)
    assert answer.status == 422
    assert answer.detail[0]["type"] == "json_invalid"


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"5", b"true", b"null"])
async def test_a_body_of_another_kind_is_refused(api: Api, body: bytes) -> None:
    assert (await api.post(ENQUEUE, body)).status == 422


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""])
async def test_a_body_that_is_not_declared_as_json_is_refused(api: Api, content_type: str) -> None:
    answer = await api.post(ENQUEUE, {"rollouts": []}, headers={"Content-Type": content_type})
    assert answer.status == 422


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
async def test_json_may_be_declared_in_several_ways(api: Api, content_type: str) -> None:
    assert (await api.post(ENQUEUE, {"rollouts": []}, headers={"Content-Type": content_type})).status == 201


@pytest.mark.parametrize(
    "number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"123456789012345678901234567890", b"1" + b"0" * 400]
)
async def test_numbers_that_no_store_holds_are_refused_by_their_place(api: Api, number: bytes) -> None:
    answer = await api.post(ENQUEUE, b'{"rollouts":[{"input":{"a":[%s]}}]}' % number)
    assert answer.status == 400
    assert answer.json["error_type"] == "Invalid"
    assert "rollouts[0].input" in answer.json["field"]
    assert await api.dequeue() == []


@pytest.mark.parametrize("text", [rb"\u0000", rb"\ud800"])
async def test_text_that_no_store_holds_is_refused_by_its_place(api: Api, text: bytes) -> None:
    answer = await api.post(ENQUEUE, b'{"rollouts":[{"input":"%s"}]}' % text)
    assert answer.status == 400
    assert "rollouts[0].input" in answer.json["field"]


async def test_a_field_of_time_takes_no_nan(api: Api) -> None:
    rollout_id, attempt_id = await api.claimed()
    answer = await api.post(f"/rollouts/{rollout_id}/attempts/{attempt_id}", b'{"last_heartbeat_time": NaN}')
    assert (answer.status, answer.json["field"]) == (400, "last_heartbeat_time")


@pytest.mark.parametrize("depth", [190, 300, 5_000, 400_000])
async def test_deep_nesting_is_taken_or_refused_and_never_fatal(api: Api, depth: int) -> None:
    answer = await api.post(ENQUEUE, b'{"rollouts":[{"input":%s%s}]}' % (b"[" * depth, b"]" * depth))
    assert answer.status == 201 if depth < 200 else answer.status in {400, 422}
    assert (await api.get("/health")).status == 200


async def test_a_refusal_does_not_send_the_payload_back(api: Api) -> None:
    answer = await api.post(ENQUEUE, {"rollouts": [{"input": 1, "mode": "x" * 5_000}] * 100})
    assert answer.status == 422
    assert len(answer.body) < 5_000


async def test_a_body_that_announces_too_much_is_not_read(small_api: Api) -> None:
    answer = await small_api.post(ENQUEUE, b" " * (MAX_BODY + 1))
    assert answer.status == 413
    assert answer.json["error_type"] == "TooLarge"
    assert answer.json["limit"] == MAX_BODY
    assert answer.headers["connection"] == "close"


async def test_a_client_that_sends_a_much_too_large_body_to_its_end_learns_its_limit(api: Api) -> None:
    def post() -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"{api.url}{PREFIX}{ENQUEUE}", b" " * 40_000_000, {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value:
            return refused.value.code, json.load(refused.value)

    status, told = await asyncio.to_thread(post)
    assert (status, told["error_type"], told["limit"]) == (413, "TooLarge", MAX_BODY_BYTES)


async def test_a_body_in_pieces_is_counted_while_it_comes(small_api: Api) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 4096
            await asyncio.sleep(0)

    headers = {"Content-Type": "application/json"}
    answer = await small_api.send("POST", ENQUEUE, data=endless(), headers=headers)
    assert answer.status == 413
    assert (await small_api.get("/health")).status == 200


async def test_a_body_up_to_the_limit_is_taken(small_api: Api) -> None:
    body = b'{"rollouts":[]}'
    assert (await small_api.post(ENQUEUE, body + b" " * (MAX_BODY - len(body)))).status == 201


async def test_a_request_keeps_its_id_or_gets_one(api: Api) -> None:
    assert (await api.get("/health", headers={"X-Request-ID": "mine-1"})).headers["x-request-id"] == "mine-1"
    first, second = [(await api.get("/nothing")).headers["x-request-id"] for _ in range(2)]
    assert first != second
    spaced = await api.get("/health", headers={"X-Request-ID": "not an id"})
    assert spaced.headers["x-request-id"] != "not an id"


async def test_every_answer_forbids_guessing_and_keeping(api: Api) -> None:
    for path in ("/health", "/nothing", "//openapi.json"):
        headers = (await api.get(path)).headers
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


@pytest.mark.parametrize("key", ["", "with space", "x" * 200, "é"])
async def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    answer = await api.post("/workers/w", headers={"Idempotency-Key": key})
    assert (answer.status, answer.json["field"]) == (400, "Idempotency-Key")


async def test_access_log_contains_no_payload(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "store.server.access")
    await api.enqueue("the secret question")
    await api.get("/rollouts?rollout_id_contains=secret&limit=0")
    created, refused = [record for record in caplog.records if record.name == "store.server.access"]
    assert (created.levelname, vars(created)["status"]) == ("DEBUG", 201)
    assert (refused.levelname, vars(refused)["status"], vars(refused)["path"]) == ("INFO", 400, "/v1/agl/rollouts")
    assert "secret" not in str(vars(created)) + str(vars(refused))


async def test_metrics_count_by_route_never_by_id(api: Api) -> None:
    for name in ("w1", "w2"):
        await api.post(f"/workers/{name}")
    text = (await api.get("//metrics")).body.decode()
    assert 'rollbook_requests_total{method="POST",route="/v1/agl/workers/{worker_id}",status="200"} 2' in text
    assert "w1" not in text


async def test_metrics_count_waiting_rollouts_and_commits(api: Api) -> None:
    await api.enqueue(1, 2, 3)
    await api.dequeue()
    lines = (await api.get("//metrics")).body.decode().splitlines()
    measured = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert measured['rollbook_rollouts{partition="default",status="queuing"}'] == "2"
    assert measured['rollbook_rollouts{partition="default",status="preparing"}'] == "1"
    assert measured['rollbook_commits_total{partition="default"}'] == "2"
    assert float(measured['rollbook_oldest_waiting_seconds{partition="default"}']) > 0
    assert measured['rollbook_partition_up{partition="default"}'] == "1"


async def test_metrics_of_a_database_that_is_gone_say_so(api: Api, store: Store) -> None:
    await store.close()
    assert b'rollbook_partition_up{partition="default"} 0' in (await api.get("//metrics")).body


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}


async def test_no_origin_is_allowed_unless_asked_for(api: Api) -> None:
    answer = await api.get("/health", headers={"Origin": "http://a.test"})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origins", [["http://a.test", " "], ["*"]])
async def test_an_allowed_origin_is_named(store: Store, origins: list[str]) -> None:
    async with speaking_to(Partitions(store), cors_origins=origins) as api:
        answer = await api.get("/health", headers={"Origin": "http://a.test"})
        assert answer.headers["access-control-allow-origin"] in {"http://a.test", "*"}
        assert answer.headers["access-control-allow-credentials"] == "true"
        preflight = await api.send("OPTIONS", "/health", headers={"Origin": "http://a.test", **PREFLIGHT})
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] == "http://a.test"
        assert "GET" in preflight.headers["access-control-allow-methods"]


async def test_another_origin_is_not_named(store: Store) -> None:
    async with speaking_to(Partitions(store), cors_origins=["http://a.test"]) as api:
        answer = await api.get("/health", headers={"Origin": "http://b.test"})
        assert (answer.status, "access-control-allow-origin" in answer.headers) == (200, False)
        preflight = await api.send("OPTIONS", "/health", headers={"Origin": "http://b.test", **PREFLIGHT})
        assert preflight.status == 400
        assert (await api.send("OPTIONS", "/health")).status == 405


async def test_closing_the_store_does_not_end_its_server() -> None:
    store = await open_store("memory://")
    async with speaking_to(Partitions(store)) as api:
        await store.close()
        answer = await api.get("/rollouts")
        assert (answer.status, answer.json["error_type"]) == (503, "Closed")
        assert ((await api.get("/health")).status, (await api.get("//livez")).status) == (503, 200)
