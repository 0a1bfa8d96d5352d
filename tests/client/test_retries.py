"""Repetition of requests: conditions, duration and idempotency keys."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from time import monotonic
from typing import Any

import orjson
import pytest

from store.client import HTTPStore
from store.client.retrying import Attempts, Retries, RetryableFailure, retry_after
from store.errors import (
    Busy,
    Closed,
    Incompatible,
    Invalid,
    NotFound,
    QuotaExceeded,
    RateLimited,
    StoreError,
    TimedOut,
    Unavailable,
)
from store.models import LLM, Attempt, EnqueueRolloutRequest
from store.testing.samples import make_sdk_span, make_span
from store.wire.errors import error_body
from tests.client.lossy_proxy import LossyProxy
from tests.client.scripted_server import HANG_UP, ScriptedServer, answer

HUNG = 30.0
"""Seconds after which something that should have happened is taken to hang."""

WORKER = answer("200 OK", b'{"worker_id": "w1"}')
UNAVAILABLE = answer("503 Service Unavailable", b"nobody home", content_type="text/plain")


def refusal(error: StoreError, status: str = "503 Service Unavailable", **headers: str) -> bytes:
    return answer(status, orjson.dumps(error_body(error)), **headers)


@pytest.mark.parametrize(
    "trouble",
    [
        HANG_UP,
        UNAVAILABLE,
        answer("502 Bad Gateway", b"<html>"),
        answer("504 Gateway Timeout"),
        refusal(Busy(10, 10)),
        refusal(Unavailable("the database is not reached", 0.01)),
        refusal(RateLimited("run_7", 500, 0.01)),
        refusal(RateLimited("run_7", 500, 0.01), "429 Too Many Requests"),
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{" + HANG_UP,
    ],
    ids=["hung up", "503", "502", "504", "busy", "unavailable", "limited", "429", "cut off"],
)
async def test_retryable_request_is_repeated_unchanged_until_it_succeeds(trouble: bytes) -> None:
    with ScriptedServer([trouble, trouble, WORKER]) as server:
        async with HTTPStore(server.url) as store:
            assert (await store.update_worker("w1", {"n": 1})).worker_id == "w1"
        assert len(server.requests) == 3
        assert len({body for _, body in server.requests}) == 1
        (key,) = set(server.header("idempotency-key"))
        assert re.fullmatch("[0-9a-f]{32}", key or "")


@pytest.mark.parametrize(
    "said,error",
    [
        (refusal(NotFound.rollout("ro-1"), "400 Bad Request"), NotFound),
        (refusal(Invalid("a", "b"), "400 Bad Request"), Invalid),
        (answer("422 Unprocessable", b'{"detail":[{"loc":["body","a"],"msg":"no","type":"x"}]}'), Invalid),
        (answer("401 Unauthorized", b'{"detail":"no key"}'), StoreError),
        (answer("404 Not Found", b'{"detail":"Not Found"}'), Incompatible),
        (answer("429 Too Many Requests", b"slower"), StoreError),
        (refusal(QuotaExceeded("run_7", "events", 9, 2, 10), "400 Bad Request"), QuotaExceeded),
        (refusal(QuotaExceeded("run_7", "bytes", 9, 2, 10), "507 Insufficient Storage"), QuotaExceeded),
    ],
)
async def test_refused_request_is_not_repeated(said: bytes, error: type[StoreError]) -> None:
    with ScriptedServer([said]) as server:
        async with HTTPStore(server.url) as store:
            with pytest.raises(error):
                await store.update_worker("w1", {})
        assert len(server.requests) == 1


async def test_a_server_that_was_not_there_yet_is_found_when_it_comes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with HTTPStore(f"http://127.0.0.1:{port}", retry_seconds=2) as store:
        with pytest.raises(Unavailable) as refused:
            await store.update_worker("w1")
    text = str(refused.value)
    assert re.match(
        rf"update_worker was tried \d+ times in \d+\.\d s, and http://127\.0\.0\.1:{port} did not answer", text
    )
    assert refused.value.retryable


async def test_when_the_time_is_over_the_servers_own_words_are_raised() -> None:
    with ScriptedServer([refusal(Busy(10_000, 10_000, 0.01))]) as server:
        async with HTTPStore(server.url, retry_seconds=2) as store:
            with pytest.raises(Busy) as refused:
                await store.update_worker("w1")
        assert (refused.value.waiting, refused.value.limit) == (10_000, 10_000)
        assert f"was sent to {server.url} {len(server.requests)} times" in refused.value.__notes__[0]


async def test_an_answer_that_does_not_come_is_a_timeout_that_may_have_taken_effect() -> None:
    with ScriptedServer([None]) as server:
        async with HTTPStore(server.url, retry_seconds=3, timeout_seconds=0.3) as store:
            with pytest.raises(TimedOut, match="may have taken effect"):
                await store.update_worker("w1")
        assert len(server.requests) >= 2


async def test_without_time_to_retry_a_call_is_sent_once() -> None:
    with ScriptedServer([UNAVAILABLE]) as server:
        async with HTTPStore(server.url, retry_seconds=0) as store:
            with pytest.raises(Unavailable, match="tried once"):
                await store.update_worker("w1")
        assert len(server.requests) == 1


async def test_the_pause_that_a_server_asks_for_is_kept() -> None:
    with ScriptedServer([answer("503 Busy", b"", retry_after="1"), WORKER]) as server:
        async with HTTPStore(server.url) as store:
            before = monotonic()
            await store.update_worker("w1")
            assert monotonic() - before >= 1


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_the_pause_of_a_limit_beyond_the_time_there_is_ends_it_at_once(status: str) -> None:
    limited = refusal(RateLimited("run_7", 1, 3600.0), status, retry_after="3600")
    with ScriptedServer([limited]) as server:
        async with HTTPStore(server.url) as store:
            with pytest.raises(RateLimited) as refused:
                await store.update_worker("w1")
        assert (refused.value.partition, refused.value.limit) == ("run_7", 1)
        assert len(server.requests) == 1


async def test_a_pause_beyond_the_time_there_is_ends_it_at_once() -> None:
    with ScriptedServer([answer("503 Busy", b"", retry_after="3600")]) as server:
        async with HTTPStore(server.url) as store:
            with pytest.raises(Unavailable):
                await store.update_worker("w1")
        assert len(server.requests) == 1


async def test_closing_ends_the_pause_before_another_try() -> None:
    with ScriptedServer([answer("503 Busy", b"", retry_after="20"), WORKER]) as server:
        store = HTTPStore(server.url)
        task = asyncio.ensure_future(store.update_worker("w1"))
        await asyncio.to_thread(server.came.wait, HUNG)
        await store.close()
        with pytest.raises(Closed):
            await task


def test_pauses_grow_differ_and_stay_below_two_seconds() -> None:
    def pauses() -> list[float]:
        attempts = Attempts(Retries(retry_seconds=1e6), "call", "http://host", waits=False)
        return [attempts.pause_after(RetryableFailure("did not answer")) for _ in range(30)]

    one, other = pauses(), pauses()
    assert one != other
    assert max(one + other) <= 2
    assert one[0] <= 0.05


@pytest.mark.parametrize(
    "header,least,most",
    [(None, 0, 0), ("2", 2, 2), ("soon", 0, 0), ("-1", 0, 0)],
)
def test_retry_after_is_a_number_of_seconds(header: str | None, least: float, most: float) -> None:
    assert least <= retry_after(header) <= most


@pytest.mark.parametrize("seconds,least,most", [(7200, 60, 7200), (-100, 0, 0)])
def test_retry_after_is_a_date(seconds: int, least: float, most: float) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    assert least <= retry_after(date) <= most


@pytest.mark.parametrize("name", ["retry_seconds", "timeout_seconds", "connect_seconds"])
def test_a_length_of_time_that_cannot_be_is_refused(name: str) -> None:
    for value in (-1, float("nan"), float("inf"), "soon"):
        settings: dict[str, Any] = {name: value}
        with pytest.raises(Invalid, match=name):
            HTTPStore("http://host", **settings)


# Keys


def mutations(attempt: Attempt) -> dict[str, Callable[[HTTPStore], Awaitable[object]]]:
    """Return a call of every kind that changes something, by the end of its path."""
    ro = attempt.rollout_id
    return {
        "/rollouts": lambda store: store.start_rollout(1),
        "/enqueue": lambda store: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)]),
        "/dequeue": lambda store: store.dequeue_rollout(),
        "/attempts": lambda store: store.start_attempt(ro),
        f"/{ro}": lambda store: store.update_rollout(ro, metadata={}),
        "/latest": lambda store: store.update_attempt(ro, "latest", metadata={}),
        "/spans": lambda store: store.add_span(make_span(attempt)),
        "/spans/batch": lambda store: store.add_otel_span(ro, attempt.attempt_id, make_sdk_span()),
        "/spans/next": lambda store: store.get_next_span_sequence_id(ro, "any"),
        "/next/batch": lambda store: store.get_many_span_sequence_ids([(ro, "any")]),
        "/resources": lambda store: store.add_resources({"llm": LLM(endpoint="e", model="m")}),
        "/rs-1": lambda store: store.update_resources("rs-1", {}),
        "/w1": lambda store: store.update_worker("w1"),
        "/rebuild": lambda store: store.log.rebuild(),
    }


def keys_of(proxy: LossyProxy) -> list[str]:
    matches = [re.search(rb"(?i)idempotency-key: ([0-9a-f]{32})\r\n", head) for head in proxy.heads]
    return [match.group(1).decode() for match in matches if match]


async def test_every_call_that_changes_something_has_a_key_of_its_own_and_keeps_it_when_sent_again(
    url: str, store: HTTPStore
) -> None:
    rollout = await store.start_rollout(1)
    await store.enqueue_rollout(1)
    for path, call in mutations(rollout.attempt).items():
        with LossyProxy.losing_first(url, path) as proxy:
            async with HTTPStore(proxy.url) as through:
                await call(through)
                await call(through)
            keys = keys_of(proxy)
            assert proxy.lost == 1, path
            assert len(keys) == len(proxy.heads) == 3, path
            assert keys[0] == keys[1] != keys[2], path


async def test_reads_carry_no_key(url: str, store: HTTPStore) -> None:
    rollout = await store.start_rollout(1)
    with LossyProxy.losing(url, 0) as proxy:
        async with HTTPStore(proxy.url) as through:
            await through.query_rollouts()
            await through.get_rollout_by_id(rollout.rollout_id)
            await through.query_spans(rollout.rollout_id)
            await through.statistics()
            await through.wait_for_rollouts([rollout.rollout_id], timeout=0)
            assert await through.log.history(rollout.rollout_id)
        assert len(proxy.heads) == 6
        assert keys_of(proxy) == []


async def test_reads_come_through_a_proxy_that_loses_half_of_all_answers(url: str, store: HTTPStore) -> None:
    rollouts = [await store.enqueue_rollout(number) for number in range(20)]
    with LossyProxy.losing(url, 0.5) as proxy:
        async with HTTPStore(proxy.url) as through:
            for rollout in rollouts:
                assert await through.get_rollout_by_id(rollout.rollout_id) == rollout
        assert proxy.lost > 3
