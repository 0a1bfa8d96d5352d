"""Calls of one attempt at the same time: the order of their numbers, and how many commits their spans cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from store.errors import Invalid, TimedOut
from store.interface.store import Store
from store.llm_proxy import LLMProxy, attempt_calls
from store.models import Span
from store.sql.store import SQLStore
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer, chats, delta, events, streams, waits
from tests.llm_proxy.proxied_agent import Agent, Gated, NewProxy

AT_ONCE = 32


@pytest.fixture
def store(memory: Store) -> Gated:
    return Gated(memory)


@pytest.fixture
async def proxy(new_proxy: NewProxy) -> LLMProxy:
    # In the loop of the test, like the gate.
    return await new_proxy(launch_mode="asyncio")


class Silent(Gated):
    """A store that never answers a draw of a number."""

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return await asyncio.get_running_loop().create_future()


def commits(store: Gated) -> int:
    target = store.target
    assert isinstance(target, SQLStore)
    return target.core.writer_statistics.commits


def asking(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def texts(agent: Agent) -> list[str]:
    """Return the prompts of the recorded calls, in the order of the numbers."""
    return [str(span.attributes["gen_ai.prompt.0.content"]) for span in await agent.spans()]


async def test_call_without_overlap_costs_one_commit(agent: Agent, store: Gated) -> None:
    await agent.chat()
    before = commits(store)
    for _ in range(5):
        await agent.chat()
    assert commits(store) - before == 5
    assert [span.sequence_id for span in await agent.spans()] == [1, 2, 3, 4, 5, 6]


async def test_call_that_ends_first_gets_the_number_after_a_call_that_began_first(
    agent: Agent, model: ModelServer
) -> None:
    model.will(waits(gate := asyncio.Event()), chats())
    first = asyncio.create_task(agent.chat(messages=asking("first")))
    await model.was_asked()
    await agent.chat(messages=asking("second"))
    assert await texts(agent) == ["second"]
    gate.set()
    await first
    assert await texts(agent) == ["first", "second"]
    assert [span.sequence_id for span in await agent.spans()] == [1, 2]


async def test_calls_at_once_are_numbered_in_order_of_beginning_and_stored_together(
    agent: Agent, model: ModelServer, store: Gated
) -> None:
    model.will(waits(gate := asyncio.Event()))
    calls: list[asyncio.Task[Any]] = []
    for number in range(AT_ONCE):
        calls.append(asyncio.create_task(agent.chat(messages=asking(str(number)))))
        await model.was_asked(number + 1)
    before = commits(store)
    gate.set()
    await asyncio.gather(*calls)
    assert await texts(agent) == [str(number) for number in range(AT_ONCE)]
    assert [span.sequence_id for span in await agent.spans()] == list(range(1, AT_ONCE + 1))
    assert commits(store) - before < AT_ONCE / 2


class Refusing(Gated):
    """A store that refuses a call with a span whose prompt is `refused`."""

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Store spans, or refuse them all."""
        if any(span.attributes["gen_ai.prompt.0.content"] == "refused" for span in spans):
            raise Invalid("spans", "contain one that is refused")
        return await super().record_spans(spans, number=number)


async def test_span_that_the_store_refuses_does_not_prevent_spans_stored_with_it(
    memory: Store, new_proxy: NewProxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = Refusing(memory)
    proxy = await new_proxy(store=store, launch_mode="asyncio")
    async with Agent.at_work(store, proxy) as agent:
        store.gate.clear()
        leader = asyncio.create_task(agent.chat(messages=asking("leader")))
        await store.came.wait()
        followers = [asyncio.create_task(agent.chat(messages=asking(text))) for text in ("a", "refused", "b")]
        store.gate.set()
        answers = await asyncio.gather(leader, *followers)
        assert {answer.choices[0].message.content for answer in answers} == {"It is 42."}
        assert sorted(await texts(agent)) == ["a", "b", "leader"]
        assert "contain one that is refused" in caplog.text
        # What was refused leaves nothing behind.
        await agent.chat(messages=asking("last"))
        assert (await texts(agent))[-1] == "last"


async def test_calls_that_wait_for_a_store_without_answers_wait_at_the_same_time(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_calls, "_LONGEST", 0.2)
    calls = attempt_calls.AttemptCalls(Silent(memory), "ro", "at", lambda: None)
    began = time.monotonic()
    results = await asyncio.gather(*(calls.draw(calls.begin()) for _ in range(20)), return_exceptions=True)
    assert {type(result) for result in results} == {TimedOut}
    assert time.monotonic() - began < 20 * 0.2


async def test_number_that_is_refused_at_the_beginning_of_a_stream_is_drawn_with_its_span(
    agent: Agent, model: ModelServer, store: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: str) -> int:
        raise Invalid("rollout_id", "is refused")

    model.will(streams(events(delta("It is 42."), delta(finish="stop"))))
    monkeypatch.setattr(store, "get_next_span_sequence_id", refuse)
    stream = await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    assert [chunk async for chunk in stream]
    assert (await agent.span()).sequence_id == 1
