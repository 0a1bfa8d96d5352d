"""Calls of one attempt at the same time: the order of their numbers, and how many commits their spans cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.llm_proxy import LLMProxy
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
