"""The callback handler records the operations of LangChain in an attempt, and each model call once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from store.interface.store import Store
from store.models import Span
from store.training import Tracer, TracerTraceToTriplet, TraceToMessages
from store.training.model_clients.openai_spans import uninstrument_openai
from tests.llm_proxy.model_server import MODEL, ModelServer, chats, delta, events, model_server, replies
from tests.llm_proxy.model_server import streams as streaming
from tests.training.training_helpers import spans_of_attempt

pytest.importorskip("langchain_core")
langchain_openai: Any = pytest.importorskip("langchain_openai")

from langchain_core.language_models import FakeListLLM, GenericFakeChatModel  # noqa: E402
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage  # noqa: E402
from langchain_core.runnables import RunnableLambda  # noqa: E402
from langchain_core.tools import tool  # noqa: E402

CALL = "openai.chat.completion"


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as model:
        yield model


@pytest.fixture(autouse=True)
def uninstrumented() -> Iterator[None]:
    uninstrument_openai()
    yield
    uninstrument_openai()


def chat_model(model: ModelServer, **details: Any) -> Any:
    return langchain_openai.ChatOpenAI(
        model=MODEL, base_url=f"{model.url}/v1", api_key="sk-secret", max_retries=0, **details
    )


@tool
def search(query: str) -> str:
    """Search."""
    if query == "nothing":
        raise LookupError("there is nothing")
    return f"found {query}"


def answers(*contents: str) -> GenericFakeChatModel:
    """A chat model that no instrumented client serves."""
    usage: Any = {"input_tokens": 4, "output_tokens": 3, "total_tokens": 7}
    called: Any = [{"id": "call-1", "name": "search", "args": {"query": "a"}}]
    return GenericFakeChatModel(
        messages=iter(
            AIMessage(
                text,
                id=f"msg_{text}",
                usage_metadata=usage,
                tool_calls=called,
                response_metadata={"model_name": MODEL, "finish_reason": "tool_calls"},
            )
            for text in contents
        )
    )


def of_calls(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.name == CALL]


async def test_chains_tools_and_models_are_spans_in_the_store(live: Store) -> None:
    handler = Tracer().get_langchain_handler(tags=["mine"])

    def ask(question: str) -> list[BaseMessage]:
        return [SystemMessage("Be brief."), HumanMessage(question)]

    chain: Any = RunnableLambda(ask) | answers("42")

    async def work() -> None:
        config: Any = {"callbacks": [handler], "run_name": "planner"}
        await chain.ainvoke("six times seven?", config)
        called = {"type": "tool_call", "id": "call-1", "name": "search", "args": {"query": "a"}}
        await search.ainvoke(called, {"callbacks": [handler]})

    *spans, root = await spans_of_attempt(live, work)
    first, call, planner, used = spans
    assert [span.name for span in spans] == [
        "langchain.Chain.ask",
        CALL,
        "langchain.Chain.planner",
        "langchain.Tool.search",
    ]
    assert [span.parent_id for span in spans] == [planner.span_id, planner.span_id, root.span_id, root.span_id]
    assert (first.attributes.get("lc_name"), planner.attributes["lc_name"]) == (None, "planner")
    assert {str(span.attributes["agentlightning.tag.0"]) for span in spans} == {"mine"}
    assert {span.status.status_code for span in spans} == {"OK"}
    assert dict(used.attributes) == {
        "agentlightning.tag.0": "mine",
        "tool.name": "search",
        "tool.parameters": '{"query": "a"}',
        "tool.call.id": "call-1",
        "tool.call.type": "function",
        "tool.result": "found a",
    }
    expected = {
        "gen_ai.request.type": "chat",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "six times seven?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "42",
        "gen_ai.completion.0.finish_reason": "tool_calls",
        "gen_ai.completion.0.tool_calls.0.id": "call-1",
        "gen_ai.completion.0.tool_calls.0.name": "search",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"query":"a"}',
        "gen_ai.response.id": "msg_42",
        "gen_ai.response.model": MODEL,
        "gen_ai.usage.prompt_tokens": 4,
        "gen_ai.usage.completion_tokens": 3,
        "gen_ai.usage.total_tokens": 7,
    }
    assert {name: call.attributes.get(name) for name in expected} == expected
    assert call.start_time is not None
    assert planner.start_time is not None
    assert planner.start_time <= call.start_time
    (triplet,) = TracerTraceToTriplet().adapt([*spans, root])
    assert (triplet.metadata["agent_name"], triplet.metadata["response_id"]) == ("planner", "msg_42")
    (conversation,) = TraceToMessages().adapt([*spans, root])
    assert [message["role"] for message in conversation["messages"]] == ["system", "user", "assistant"]


STREAM = events(
    {**delta("It ", [21], role="assistant"), "prompt_token_ids": [11, 12]}, delta("is 42.", [22, 23], finish="stop")
)


@pytest.mark.parametrize("is_instrumented", [True, False])
async def test_a_call_that_the_client_records_is_recorded_once_below_its_chain(
    memory: Store, model: ModelServer, is_instrumented: bool
) -> None:
    model.will(chats(), chats(), streaming(STREAM), streaming(STREAM), chats(), chats())
    tracer = Tracer(openai=is_instrumented)
    handler = tracer.get_langchain_handler()
    config: Any = {"callbacks": [handler], "run_name": "planner"}

    async def work() -> None:
        llm = chat_model(model)
        chain = RunnableLambda(str) | llm
        await chain.ainvoke("1", config)
        await asyncio.to_thread(chain.invoke, "2", config)
        assert "".join([chunk.text async for chunk in chain.astream("3", config)]) == "It is 42."
        await asyncio.to_thread(lambda: list(chain.stream("4", config)))
        await llm.agenerate([[HumanMessage("5")], [HumanMessage("6")]], callbacks=[handler])

    *spans, root = await spans_of_attempt(memory, work, tracer)
    calls = of_calls(spans)
    assert sorted(str(call.attributes["gen_ai.prompt.0.content"]) for call in calls) == list("123456")
    assert {str(call.attributes["gen_ai.completion.0.content"]) for call in calls} == {"It is 42."}
    assert {str(call.attributes["gen_ai.system"]) for call in calls} == {"openai"}
    chains = {span.span_id for span in spans if span.name == "langchain.Chain.planner"}
    assert [call.parent_id in chains for call in calls] == [True] * 4 + [False] * 2
    assert {call.parent_id for call in calls[4:]} == {root.span_id}
    ids = [call.attributes.get("response_token_ids") for call in calls]
    assert ids == [[21, 22, 23] if is_instrumented else None] * 6
    assert "sk-secret" not in "".join(span.model_dump_json() for span in spans)


@pytest.mark.parametrize("is_instrumented", [True, False])
async def test_failures_are_recorded_once(memory: Store, model: ModelServer, is_instrumented: bool) -> None:
    model.will(replies({"error": {"message": "too many"}}, 429))
    tracer = Tracer(openai=is_instrumented)
    config: Any = {"callbacks": [tracer.get_langchain_handler()], "run_name": "planner"}
    chain = RunnableLambda(str) | chat_model(model)

    async def work() -> None:
        with pytest.raises(Exception, match="too many"):
            await chain.ainvoke("1", config)
        with pytest.raises(LookupError, match="there is nothing"):
            await search.ainvoke({"query": "nothing"}, config)

    *spans, _ = await spans_of_attempt(memory, work, tracer)
    failed = [span for span in spans if span.status.status_code == "ERROR"]
    assert [span.name for span in failed] == [CALL, "langchain.Chain.planner", "langchain.Tool.search"]
    raised = [str(span.events[0].attributes["exception.type"]) for span in failed[::2]]
    assert raised[0].endswith("RateLimitError")
    assert raised[1] == "LookupError"
    assert failed[0].attributes["gen_ai.prompt.0.content"] == "1"


async def test_a_stream_that_is_left_is_recorded_once(memory: Store, model: ModelServer) -> None:
    model.will(streaming(STREAM))
    tracer = Tracer()
    config: Any = {"callbacks": [tracer.get_langchain_handler()]}

    async def work() -> None:
        stream = chat_model(model).astream("1", config)
        assert (await anext(stream)).text == "It "
        await stream.aclose()
        del stream
        gc.collect()
        # LangChain leaves it to the event loop to close the generators inside.
        for _ in range(20):
            await asyncio.sleep(0)

    *spans, _ = await spans_of_attempt(memory, work, tracer)
    (call,) = of_calls(spans)
    assert call.attributes["gen_ai.completion.0.content"] == "It "


async def test_a_call_of_its_own_after_the_model_of_a_chain_is_below_the_attempt(
    memory: Store, model: ModelServer
) -> None:
    tracer = Tracer()
    config: Any = {"callbacks": [tracer.get_langchain_handler()]}

    async def work() -> None:
        llm = chat_model(model)
        await (RunnableLambda(str) | llm).ainvoke("1", config)
        await llm.ainvoke("2", config)
        # This one has no handler.
        await llm.ainvoke("3")

    *spans, root = await spans_of_attempt(memory, work, tracer)
    assert [call.parent_id == root.span_id for call in of_calls(spans)] == [False, True, True]


async def test_a_model_that_completes_texts_is_recorded(memory: Store) -> None:
    tracer = Tracer()
    config: Any = {"callbacks": [tracer.get_langchain_handler()]}
    *spans, _ = await spans_of_attempt(memory, lambda: FakeListLLM(responses=["42"]).ainvoke("six?", config), tracer)
    (call,) = of_calls(spans)
    assert call.attributes["gen_ai.request.type"] == "completion"
    assert call.attributes["gen_ai.prompt.0.content"] == "six?"
    assert call.attributes["gen_ai.completion.0.content"] == "42"


async def test_one_handler_serves_attempts_side_by_side_in_tasks_and_threads(memory: Store) -> None:
    tracer = Tracer()
    handler = tracer.get_langchain_handler()

    async def one(number: int) -> list[Span]:
        chain = RunnableLambda(str) | answers(f"task {number}", f"thread {number}")
        config: Any = {"callbacks": [handler], "run_name": f"planner {number}"}

        async def work() -> None:
            await chain.ainvoke(f"{number}", config)
            # LangChain's own threads.
            await asyncio.to_thread(chain.batch, [f"{number}"], config)

        return await spans_of_attempt(memory, work, Tracer(provider=tracer.provider))

    for number, (*spans, root) in enumerate(await asyncio.gather(*map(one, range(4)))):
        chains = {span.span_id for span in spans if span.name == f"langchain.Chain.planner {number}"}
        texts = [span.attributes["gen_ai.completion.0.content"] for span in of_calls(spans)]
        assert texts == [f"task {number}", f"thread {number}"]
        assert {span.parent_id for span in spans} == {root.span_id, *chains}


async def test_nodes_of_langgraph_are_agents(memory: Store) -> None:
    graphs: Any = pytest.importorskip("langgraph.graph")
    tracer = Tracer()
    handler = tracer.get_langchain_handler()
    planner, writer = answers("plan"), answers("text")

    def plan(_: Any) -> Any:
        return {"plan": planner.invoke("plan")}

    def write(_: Any) -> Any:
        return {"text": (RunnableLambda(str) | writer).invoke("write")}

    graph = graphs.StateGraph(dict)
    graph.add_node("planner", plan)
    graph.add_node("writer", write)
    graph.add_edge(graphs.START, "planner")
    graph.add_edge("planner", "writer")
    compiled: Any = graph.compile()

    spans = await spans_of_attempt(memory, lambda: compiled.ainvoke({}, {"callbacks": [handler]}), tracer)
    labels = {
        triplet.metadata["response_id"]: triplet.metadata["agent_name"]
        for triplet in TracerTraceToTriplet().adapt(spans)
    }
    assert labels == {"msg_plan": "planner", "msg_text": "writer"}
    (of_writer,) = TracerTraceToTriplet(agent_match="^writer$").adapt(spans)
    assert of_writer.metadata["response_id"] == "msg_text"


async def test_outside_of_attempts_nothing_is_recorded_and_nothing_is_kept(memory: Store) -> None:
    tracer = Tracer()
    handler = tracer.get_langchain_handler()
    chain = RunnableLambda(str) | answers("1", "2", "3")
    config: Any = {"callbacks": [handler]}
    await chain.ainvoke("1", config)
    left: list[Any] = []

    async def work() -> None:
        left.append(chain.astream("2", config))
        await anext(left[0])

    *spans, _ = await spans_of_attempt(memory, work, tracer)
    assert [span.name for span in spans if span.name.startswith("langchain.Chain.RunnableSequence")] == []
    assert vars(handler)["_runs"]
    *spans, _ = await spans_of_attempt(memory, lambda: chain.ainvoke("3", config), tracer)
    assert len(of_calls(spans)) == 1
    assert vars(handler)["_runs"] == {}
    await left[0].aclose()
