"""The tokens of a call that several spans record are counted once, on both databases and over HTTP."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from store import open_store
from store.client import HTTPStore
from store.interface.store import Store
from store.models import Attempt, Span
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests import databases
from tests.client.served import Served

_numbers = itertools.count(1)
_USED = {"gen_ai.usage.input_tokens": 30, "gen_ai.usage.output_tokens": 7}
_MORE = {"gen_ai.usage.input_tokens": 30, "gen_ai.usage.output_tokens": 9}


# The server does not know the database, so one is enough over HTTP.
BOTH = pytest.mark.parametrize(
    "durable_url,writer",
    [("sqlite", "in process"), ("postgres", "in process"), pytest.param("sqlite", "http", marks=pytest.mark.http)],
    indirect=True,
)


@pytest.fixture
async def writer(request: pytest.FixtureRequest, store: SQLStore) -> AsyncIterator[Store]:
    if request.param == "in process":
        yield store
        return
    with Served() as server, server.serving(store) as url:
        async with HTTPStore(url) as client:
            yield client


def calls(attempt: Attempt, answer: str | None = "chatcmpl-1") -> Callable[[dict[str, Any]], Span]:
    """Return a function that makes spans of one call; each has an id of its own."""
    named = {} if answer is None else {"gen_ai.response.id": answer}

    def call(used: dict[str, Any]) -> Span:
        number = next(_numbers)
        return make_span(attempt, number, span_id=f"span-{number}", attributes={**named, **used})

    return call


async def tokens(url: str) -> tuple[int, int]:
    database = await databases.connect(url)
    ((tokens_in, tokens_out),) = await database.rows("SELECT tokens_in, tokens_out FROM rollouts")
    await database.close()
    return tokens_in, tokens_out


async def counted_before(store: Store, attempt: Attempt) -> list[Any]:
    history = await store.log.history(attempt.rollout_id)
    return [event.data.get("counted_before") for event in history if event.type == "span.recorded"]


@BOTH
async def test_a_call_of_proxy_and_agent_is_counted_once(writer: Store, store: SQLStore, store_url: str) -> None:
    attempt = (await writer.start_rollout("task")).attempt
    call = calls(attempt)
    await writer.add_span(call(_USED))
    await writer.add_span(call(_USED))
    assert await tokens(store_url) == (30, 7)
    await writer.add_many_spans([call(_USED), call(_MORE)])
    assert await tokens(store_url) == (30, 9)
    assert await counted_before(writer, attempt) == [None, [30, 7], [30, 7], [30, 7]]
    verified = await store.log.verify()
    assert verified.differences == []


@BOTH
async def test_spans_of_one_request_too(writer: Store, store_url: str) -> None:
    attempt = (await writer.start_rollout("task")).attempt
    call, other, unnamed = calls(attempt), calls(attempt, "chatcmpl-2"), calls(attempt, None)
    await writer.add_many_spans([call({}), other(_USED), call(_USED), other(_USED), unnamed(_USED), unnamed(_USED)])
    assert await tokens(store_url) == (4 * 30, 4 * 7)


async def test_after_a_restart_and_when_another_process_recorded_the_first_span(
    store: SQLStore, store_url: str, clock: ManualClock
) -> None:
    attempt = (await store.start_rollout("task")).attempt
    call = calls(attempt)
    await store.add_span(call(_USED))
    async with await open_store(store_url, clock=clock, scan_debounce_seconds=0) as other:
        await other.add_many_spans([call(_USED), *(calls(attempt, f"chatcmpl-{n}")(_USED) for n in range(2, 200))])
    await store.add_many_spans([call(_USED), *(calls(attempt, f"chatcmpl-{n}")(_MORE) for n in range(2, 200) if n % 2)])
    assert await tokens(store_url) == (199 * 30, 199 * 7 + 99 * 2)
    assert (await store.log.verify()).differences == []


async def test_a_repeated_span_changes_nothing(store: SQLStore, store_url: str) -> None:
    attempt = (await store.start_rollout("task")).attempt
    span = calls(attempt)(_USED)
    await store.add_span(span)
    await store.add_span(span)
    assert (await tokens(store_url), await counted_before(store, attempt)) == ((30, 7), [None])


async def test_rebuild_restores_token_counts(store: SQLStore, store_url: str) -> None:
    attempt = (await store.start_rollout("task")).attempt
    call = calls(attempt)
    await store.add_many_spans([call(_USED), call(_USED)])
    database = await databases.connect(store_url)
    await database.execute("UPDATE rollouts SET tokens_in = 60, tokens_out = 14")
    await database.close()
    fields = [difference.field for difference in (await store.log.verify()).differences]
    assert fields == ["tokens_in", "tokens_out"]
    await store.log.rebuild()
    assert await tokens(store_url) == (30, 7)
