"""Records of our runner, tracer and proxy of an agent with the stock client become training data."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from store.interface.store import Store
from store.llm_proxy import LLMProxy
from store.models import LLM
from store.training import (
    LlmProxyTraceToTriplet,
    Runner,
    Tracer,
    TracerTraceToTriplet,
    TraceToMessages,
    emit_reward,
    llm_rollout,
    operation,
    trajectories,
)
from store.training.model_clients.openai_spans import uninstrument_openai
from tests.llm_proxy.model_server import MESSAGES, MODEL, chats, model_server
from tests.llm_proxy.proxied_agent import CLIENT_KEY, backend_of

TOKENS = ([11, 12, 13, 14], [21, 22, 23])


@pytest.mark.slow
@pytest.mark.parametrize("is_instrumented", [True, False])
async def test_calls_that_tracer_and_proxy_both_saw_are_counted_once_and_rewarded(
    live: Store, is_instrumented: bool
) -> None:
    async with model_server() as model, LLMProxy(store=live, backends=[backend_of(model)]) as proxy:
        model.will(*(chats(id=f"chatcmpl-{number}") for number in range(3)))

        @llm_rollout
        async def agent(task: Any, llm: LLM) -> float:
            async with openai.AsyncOpenAI(base_url=f"{llm.endpoint}/v1", api_key=CLIENT_KEY, max_retries=0) as client:
                await client.chat.completions.create(model=MODEL, messages=MESSAGES)
                emit_reward(0.25)
                with operation(name="agentlightning.reward"):
                    await client.chat.completions.create(model=MODEL, messages=MESSAGES)
                await client.chat.completions.create(model=MODEL, messages=MESSAGES)
            return 1.0

        uninstrument_openai()
        try:
            runner: Runner[Any] = Runner(Tracer(openai=is_instrumented))
            with runner.run_context(agent=agent, store=live):
                rollout = await runner.step("task", resources={"main_llm": proxy.as_resource(model=MODEL)})
        finally:
            uninstrument_openai()

    spans = list(await live.query_spans(rollout.rollout_id, "latest"))
    report = TracerTraceToTriplet().adapt_report(spans)
    assert [(triplet.metadata["response_id"], triplet.reward) for triplet in report.triplets] == [
        ("chatcmpl-0", 0.25),
        ("chatcmpl-2", 1.0),
    ]
    assert {(*triplet.prompt["token_ids"], *triplet.response["token_ids"]) for triplet in report.triplets} == {
        (*TOKENS[0], *TOKENS[1])
    }
    assert {len(triplet.metadata["span_ids"]) for triplet in report.triplets} == {2 if is_instrumented else 1}
    judged = {"in_a_reward": 2, "same_response": 2} if is_instrumented else {"in_a_reward": 1}
    assert report.reasons() == judged
    batch = trajectories(report.triplets, 0, 4, 3)
    assert (batch.input_ids, batch.token_level_scores) == (
        [TOKENS[0] + TOKENS[1]] * 2,
        [[0.0, 0.0, 0.25], [0.0, 0.0, 1.0]],
    )
    assert len(LlmProxyTraceToTriplet().adapt(spans)) == 3
    answers = [conversation["messages"][-1] for conversation in TraceToMessages().adapt(spans)]
    assert [answer["role"] for answer in answers] == ["assistant"] * 3
