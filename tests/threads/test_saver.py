"""LangGraph graphs store their state in the store and resume from it."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from store import SyncStore, open_store
from store.errors import Invalid, NotFound, Unsupported
from store.integrations.langgraph import RollbookSaver, pointer, start_from
from store.models import RolloutConfig
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.client.served import Served
from tests.threads.langgraph_samples import abc, config, line, saying


async def test_thread_continues_with_its_earlier_messages(saver: RollbookSaver) -> None:
    graph = abc(saver)
    assert (await graph.ainvoke({"said": ["hello"]}, config("t")))["said"] == ["hello", "A", "B", "C"]
    assert (await graph.ainvoke({"said": ["again"]}, config("t")))["said"][4:] == ["again", "A", "B", "C"]
    history = [snapshot.next async for snapshot in graph.aget_state_history(config("t"))]
    assert history[:5] == [(), ("C",), ("B",), ("A",), ("__start__",)]
    assert (await graph.aget_state(config("other"))).values == {}


async def test_a_graph_that_failed_goes_on_where_it_failed(saver: RollbookSaver) -> None:
    ran: list[str] = []

    async def fails(_: Any) -> dict[str, Any]:
        ran.append("fails")
        if ran.count("fails") == 1:
            raise RuntimeError("not today")
        return {"said": ["fine"]}

    graph = line(saver, [("A", saying("A", ran)), ("B", fails)])
    with pytest.raises(RuntimeError, match="not today"):
        await graph.ainvoke({"said": []}, config("t"))
    assert (await graph.ainvoke(None, config("t")))["said"] == ["A", "fine"]
    assert ran == ["A", "fails", "fails"]


async def test_a_branch_from_an_old_checkpoint_keeps_the_old_one(saver: RollbookSaver) -> None:
    ran: list[str] = []
    graph = abc(saver, ran)
    await graph.ainvoke({"said": []}, config("t"))
    before = [snapshot async for snapshot in graph.aget_state_history(config("t"))]
    after_b = next(snapshot for snapshot in before if snapshot.next == ("C",))
    ran.clear()
    start = await start_from(graph, pointer(after_b.config), state_patch={"said": ["patched"]})
    assert (await graph.ainvoke(None, start))["said"] == ["A", "B", "patched", "C"]
    assert ran == ["C"]
    assert (await graph.aget_state(before[0].config)).values["said"] == ["A", "B", "C"]


async def test_values_keep_their_types(saver: RollbookSaver) -> None:
    messages = [
        HumanMessage("hi", id="1"),
        AIMessage("", id="2", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c"}]),
    ]
    values = {"messages": messages, "at": datetime(2026, 1, 2, tzinfo=UTC), "id": uuid.UUID(int=7), "null": "a\x00b"}

    async def node(_: Any) -> dict[str, Any]:
        return {"said": [values]}

    await line(saver, [("A", node)]).ainvoke({"said": []}, config("t"))
    stored = await saver.aget_tuple(config("t"))
    assert stored is not None
    assert stored.checkpoint["channel_values"]["said"] == [values]


async def test_blocking_methods_work_also_inside_a_running_loop(saver: RollbookSaver) -> None:
    state = await abc(saver).ainvoke({"said": []}, config("t"))
    assert state["said"] == ["A", "B", "C"]
    saver.copy_thread("t", "u")
    (newest, *older) = saver.list(config("t"))
    assert saver.get_tuple(config("t")) == newest
    assert len(list(saver.list(config("u"), limit=2, before=newest.config))) == 2
    assert len(older) == 4
    saver.put_writes(newest.config, [("said", ["x"])], "task", "path")
    stored = saver.get_tuple(newest.config)
    assert stored is not None
    assert stored.pending_writes == [("task", "said", ["x"])]
    saver.prune(["t"])
    assert [item.config for item in saver.list(config("t"))] == [newest.config]
    saver.delete_thread("t")
    assert saver.get_tuple(config("t")) is None
    saver.delete_for_runs(["nobody's"])
    assert len(list(saver.list(None))) == 5


def test_a_saver_on_a_store_without_await_runs_a_graph_without_await() -> None:
    with SyncStore(asyncio.run(open_store("memory://"))) as store:
        saver = RollbookSaver(store)

        def node(_: Any) -> dict[str, Any]:
            return {"said": ["A"]}

        graph = line(saver, [("A", node)])
        assert graph.invoke({"said": []}, config("t"))["said"] == ["A"]
        assert graph.get_state(config("t")).next == ()


async def test_checkpoints_are_found_by_any_metadata(saver: RollbookSaver) -> None:
    graph = abc(saver)
    for thread_id, customer in (("t", "a"), ("u", "b")):
        await graph.ainvoke({"said": []}, {**config(thread_id), "metadata": {"customer": customer}})

    async def listed(runnable: RunnableConfig | None = None, **asked: Any) -> list[tuple[str, Any]]:
        return [
            (item.config["configurable"]["thread_id"], item.metadata.get("step"))  # pyright: ignore[reportTypedDictNotRequiredAccess]
            async for item in saver.alist(runnable, **asked)
        ]

    assert await listed(filter={"customer": "b"}) == [("u", step) for step in (3, 2, 1, 0, -1)]
    assert await listed(filter={"customer": "a", "step": 2}) == [("t", 2)]
    assert await listed(config("t"), filter={"source": "loop"}, limit=2) == [("t", 3), ("t", 2)]
    assert await listed(filter={"customer": "c"}) == []
    assert await listed(limit=0) == []


async def test_prune_keeps_the_newest_checkpoint_and_the_base_of_its_deltas(saver: RollbookSaver) -> None:
    parent: str | None = None
    for number in range(5):
        values = {"log": ["whole"]} if number == 1 else {}
        parent_config = config("t", checkpoint_ns="", **({} if parent is None else {"checkpoint_id": parent}))
        state: Any = {
            "v": 4,
            "id": f"cp-{number}",
            "ts": "",
            "channel_values": values,
            "channel_versions": {"log": number + 1},
            "versions_seen": {},
            "updated_channels": None,
        }
        metadata: Any = {"step": number, "counters_since_delta_snapshot": {"log": (number, number)}}
        await saver.aput(parent_config, state, metadata, {})
        parent = f"cp-{number}"
        await saver.aput_writes(config("t", checkpoint_ns="", checkpoint_id=parent), [("log", number)], "task")
    asked: Any = {"config": config("t", checkpoint_ns="", checkpoint_id="cp-4"), "channels": ["log"]}
    before = await saver.aget_delta_channel_history(**asked)
    await saver.aprune(["t"])
    assert [place.checkpoint_id for place in await saver.store.threads.list_places("t")] == [
        "cp-4",
        "cp-3",
        "cp-2",
        "cp-1",
    ]
    assert await saver.aget_delta_channel_history(**asked) == before
    assert [write[2] for write in before["log"]["writes"]] == [1, 2, 3]


async def test_a_graph_that_asked_somebody_goes_on_with_the_answer_in_a_subgraph_too(saver: RollbookSaver) -> None:
    types: Any = import_module("langgraph.types")
    ran: list[str] = []

    async def asks(_: Any) -> dict[str, Any]:
        ran.append("asks")
        return {"said": [types.interrupt("really?")]}

    inner = line(None, [("inner A", saying("inner A", ran)), ("asks", asks)])
    graph = line(saver, [("A", saying("A", ran)), ("inner", inner), ("C", saying("C", ran))])
    stopped = await graph.ainvoke({"said": []}, config("t"))
    assert [interrupt.value for interrupt in stopped["__interrupt__"]] == ["really?"]
    done = await graph.ainvoke(types.Command(resume="yes"), config("t"))
    assert done["said"] == ["A", "A", "inner A", "yes", "C"]
    assert ran == ["A", "inner A", "asks", "asks", "C"]
    namespaces = {place.ns.partition(":")[0] for place in await saver.store.threads.list_places("t")}
    assert namespaces == {"", "inner"}
    await saver.aprune(["t"])
    assert len(await saver.store.threads.list_places("t")) == 2
    assert (await graph.aget_state(config("t"))).values == done


async def test_a_checkpoint_is_a_sign_of_life_and_shown_in_its_rollout(sql: SQLStore, clock: ManualClock) -> None:
    run = await sql.start_rollout({}, config=RolloutConfig(unresponsive_seconds=10))
    saver, thread_id = RollbookSaver(sql), f"{run.rollout_id}:RIG"

    async def slow(_: Any) -> dict[str, Any]:
        clock.advance(9)
        return {"said": ["slow"]}

    graph = line(saver, [(name, slow) for name in "ABCD"])
    await graph.ainvoke({"said": []}, config(thread_id, attempt_id=run.attempt.attempt_id))
    assert [attempt.status for attempt in (await sql.query_attempts(run.rollout_id)).items] == ["running"]
    rollout = await sql.get_rollout_by_id(run.rollout_id)
    assert rollout is not None
    assert rollout.status == "running"
    (thread,) = await sql.threads.list_threads(run.rollout_id)
    assert (thread.thread_id, thread.scope, thread.checkpoints, thread.step) == (thread_id, "RIG", 6, 4)
    assert thread.latest == (await graph.aget_state(config(thread_id))).config["configurable"]["checkpoint_id"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    clock.advance(11)
    await sql.query_rollouts()
    assert (await sql.query_attempts(run.rollout_id)).items[0].status == "unresponsive"
    await graph.ainvoke({"said": []}, config(thread_id, attempt_id=run.attempt.attempt_id))
    assert (await sql.query_attempts(run.rollout_id)).items[0].status == "running"


async def test_the_checkpoints_of_an_attempt_go_by_its_id(sql: SQLStore, saver: RollbookSaver) -> None:
    run = await sql.start_rollout({})
    graph = abc(saver)
    await graph.ainvoke({"said": []}, config(run.rollout_id, attempt_id=run.attempt.attempt_id))
    again = await sql.start_attempt(run.rollout_id)
    await graph.ainvoke({"said": []}, config(run.rollout_id, attempt_id=again.attempt.attempt_id))
    (thread,) = await sql.threads.list_threads(run.rollout_id)
    assert (thread.scope, thread.checkpoints) == (None, 10)
    await saver.adelete_for_runs([run.attempt.attempt_id])
    assert [item.metadata.get("run_id") async for item in saver.alist(None)] == [again.attempt.attempt_id] * 5


async def test_threads_of_other_rollouts_are_not_shown(sql: SQLStore, saver: RollbookSaver) -> None:
    run = await sql.start_rollout({})
    for thread_id in (f"{run.rollout_id}:b", f"{run.rollout_id}:a:x", f"{run.rollout_id}0:c", f"x{run.rollout_id}:d"):
        await abc(saver).ainvoke({"said": []}, config(thread_id))
    assert [thread.scope for thread in await sql.threads.list_threads(run.rollout_id)] == ["a:x", "b"]


@pytest.mark.parametrize("thread_id", ["ro-nobody:RIG", ""])
async def test_an_attempt_that_is_not_the_threads_is_refused(
    sql: SQLStore, saver: RollbookSaver, thread_id: str
) -> None:
    run = await sql.start_rollout({})
    asked = config(thread_id or run.rollout_id, attempt_id="at-nobody")
    with pytest.raises(NotFound):
        await abc(saver).ainvoke({"said": []}, asked)
    assert await sql.threads.list_threads(run.rollout_id) == []


async def test_a_store_at_a_distance_says_that_it_keeps_no_threads(sql: SQLStore) -> None:
    with Served() as server, server.serving(sql) as url:
        async with await open_store(url) as distant:
            with pytest.raises(Unsupported, match="HTTPStore has no threads of checkpoints; open the database itself"):
                RollbookSaver(distant)


async def test_invalid_saver_arguments_are_refused_by_name(saver: RollbookSaver) -> None:
    with pytest.raises(Invalid, match="thread_id"):
        await saver.aget_tuple({"configurable": {}})
    with pytest.raises(Invalid, match="checkpoint_id"):
        await saver.aput_writes(config("t"), [("said", 1)], "task")
    with pytest.raises(Invalid, match="strategy"):
        await saver.aprune(["t"], strategy="keep_some")
    with pytest.raises(Invalid, match="target_thread_id"):
        await saver.acopy_thread("t", "t")
    with pytest.raises(Invalid, match=r"metadata.*number"):
        await abc(saver).ainvoke({"said": []}, {**config("t"), "metadata": {"number": float("nan")}})
    with pytest.raises(Invalid, match="external"):
        await start_from(abc(saver), {"kind": "other"})
