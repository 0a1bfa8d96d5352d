"""Our store in Agent-lightning's process, on the database or server at `--url`: all methods and specific behaviour."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentlightning import LightningStoreClient, LightningStoreServer
from agentlightning.types import EnqueueRolloutRequest, PromptTemplate, Span

from store.errors import Conflict, Invalid, NotFound, WrongProcess
from store.integrations.agentlightning import RollbookStore
from tests.interop.inside import methods
from tests.interop.inside.claims import arguments, claims_of, hold, stay_on_this_machine
from tests.postgres import free_port


async def an_id_that_does_not_exist_is_a_value_error_with_the_usual_text(store: RollbookStore) -> None:
    span = Span.from_attributes(attributes={}, rollout_id="ro-none", attempt_id="at-none")
    item = "Item does not exist with primary key(s): rollout_id='ro-none'"
    for call, text in (
        (store.start_attempt("ro-none"), "Rollout ro-none not found"),
        (store.update_rollout("ro-none", status="failed"), item),
        (store.update_attempt("ro-none", "latest", status="failed"), "Rollout ro-none not found"),
        (store.add_span(span), "Rollout ro-none not found"),
        (store.add_many_spans([span]), "Rollout ro-none not found"),
    ):
        (refused,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(refused, ValueError)
        assert isinstance(refused, NotFound)
        assert str(refused) == text


async def reads_of_missing_things_return_none(store: RollbookStore) -> None:
    assert await store.get_rollout_by_id("ro-none") is None
    assert await store.get_latest_attempt("ro-none") is None
    assert await store.get_resources_by_id("rs-none") is None
    assert await store.get_worker_by_id("w-none") is None
    assert len(await store.query_attempts("ro-none")) == 0
    assert len(await store.query_spans("ro-none")) == 0


async def unstorable_values_are_refused_by_name(store: RollbookStore) -> None:
    for call in (
        store.query_rollouts(sort_by="colour"),
        store.query_rollouts(limit=-2),
        store.enqueue_rollout(float("nan")),
        store.update_rollout("ro-none", status=None),
    ):
        (refused,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(refused, Invalid), refused
    (refused,) = await asyncio.gather(store.update_worker("w", heartbeat_stats=None), return_exceptions=True)
    assert isinstance(refused, TypeError)


async def a_stored_span_is_the_passed_object(store: RollbookStore) -> None:
    rollout = await store.start_rollout("task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    one, two = (Span.from_attributes(attributes={}, sequence_id=number, **ids) for number in (1, 2))
    assert await store.add_span(one) is one
    again = two.model_copy(update={"name": "again"})
    added = await store.add_many_spans([one, two, again])
    assert len(added) == 1
    assert added[0] is two


async def a_returned_model_is_a_copy_that_may_be_changed(store: RollbookStore) -> None:
    task = {"list": [1]}
    rollout = await store.enqueue_rollout(task, metadata={"m": {}})
    rollout.input["list"].append(2)
    rollout.metadata["m"]["changed"] = True
    read = await store.get_rollout_by_id(rollout.rollout_id)
    assert read is not None
    assert (read.input, read.metadata, task) == ({"list": [1]}, {"m": {}}, {"list": [1]})
    await store.dequeue_rollout()


async def plan_keys_enqueue_once_through_the_usual_methods(store: RollbookStore) -> None:
    key = {"rollbook.key": f"plan-{os.getpid()}"}
    first, second = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1, metadata=key)] * 2)
    assert first.rollout_id == second.rollout_id
    (refused,) = await asyncio.gather(store.enqueue_rollout(2, metadata=key), return_exceptions=True)
    assert isinstance(refused, Conflict)
    await store.dequeue_rollout()


async def missing_methods_are_one_call_away(store: RollbookStore) -> None:
    rollout = await store.start_rollout("task")
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    opened = await store.rollbook()
    types = [event.type for event in await opened.log.history(rollout.rollout_id)]
    assert types[0] == "rollout.started"
    assert (await opened.log.verify()).ok


async def it_states_its_capabilities(store: RollbookStore) -> None:
    database = RollbookStore("sqlite:///never-opened.db")
    assert database.capabilities == {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": False}
    try:
        database.otlp_traces_endpoint()
    except NotImplementedError:
        pass
    else:
        raise AssertionError("a database takes no traces")
    served = RollbookStore("http://127.0.0.1:4747/p/two/")
    assert served.capabilities["otlp_traces"] is True
    assert served.otlp_traces_endpoint() == "http://127.0.0.1:4747/p/two/v1/traces"


async def an_invalid_url_is_refused_at_once(store: RollbookStore) -> None:
    for url in ("run.db", "sqlite://run.db", "sqlite:///run.db?partition=Ümlaut"):
        try:
            RollbookStore(url)
        except Invalid:
            continue
        raise AssertionError(url)


async def many_first_calls_at_once_open_the_store_once(store: RollbookStore) -> None:
    copy: RollbookStore = pickle.loads(pickle.dumps(store))
    opened = await asyncio.gather(*(asyncio.to_thread(asyncio.run, copy.rollbook()) for _ in range(8)))
    assert len({id(one) for one in opened}) == 1
    await copy.close()


async def a_closed_store_is_opened_again_by_the_next_call(store: RollbookStore) -> None:
    rollout = await store.start_rollout("task")
    await store.close()
    assert await store.get_rollout_by_id(rollout.rollout_id) == rollout


async def a_forked_child_inherits_no_file_of_the_database(store: RollbookStore) -> None:
    await store.statistics()
    _in_a_fork(_has_no_file_open, store)


async def a_forked_child_continues_with_another_store(store: RollbookStore) -> None:
    rollout = await store.start_rollout("task")
    _in_a_fork(_finish, store, rollout.rollout_id)
    read = await store.get_rollout_by_id(rollout.rollout_id)
    assert read is not None
    assert read.status == "succeeded"
    assert await store.update_attempt(rollout.rollout_id, "latest", metadata={"parent": "writes on"})


async def a_fork_while_writing_disturbs_neither_process(store: RollbookStore) -> None:
    written, done = threading.Semaphore(0), threading.Event()
    counted = await store.start_rollout("written to")

    async def write() -> None:
        while not done.is_set():
            await store.get_next_span_sequence_id(counted.rollout_id, "")
            written.release()

    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[counted.rollout_id]))
    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(asyncio.run, write()) for _ in range(3)]
        rollouts = [await store.start_rollout(number) for number in range(6)]
        for rollout in rollouts:
            await asyncio.to_thread(written.acquire)
            _in_a_fork(_finish, store, rollout.rollout_id)
        done.set()
        for one in writing:
            one.result()
    ids = [rollout.rollout_id for rollout in rollouts]
    assert len(await store.wait_for_rollouts(rollout_ids=ids, timeout=0)) == 6
    await store.update_rollout(counted.rollout_id, status="cancelled")
    assert len(await waiting) == 1


async def a_store_in_memory_belongs_to_its_process(store: RollbookStore) -> None:
    private = RollbookStore("memory://")
    assert private.capabilities["zero_copy"] is False
    (refused,) = await asyncio.gather(asyncio.to_thread(pickle.dumps, private), return_exceptions=True)
    assert isinstance(refused, TypeError)
    assert (await private.start_rollout("task")).input == "task"
    _in_a_fork(_is_refused, private)
    assert (await private.statistics())["total_rollouts"] == 1
    await private.close()


async def its_server_may_serve_it_in_a_thread_or_in_the_loop(store: RollbookStore) -> None:
    for mode in ("thread", "asyncio"):
        server = LightningStoreServer(store, host="127.0.0.1", port=free_port(), launch_mode=mode)
        await server.start()
        client = LightningStoreClient(server.endpoint)
        rollout = await client.start_rollout("task", metadata={"through": mode})
        assert (
            await store.get_rollout_by_id(rollout.rollout_id)
            == rollout
            == await client.get_rollout_by_id(rollout.rollout_id)
        )
        await client.close()
        await server.stop()


async def its_server_may_serve_it_from_several_processes(store: RollbookStore) -> None:
    server = LightningStoreServer(store, host="127.0.0.1", port=free_port(), launch_mode="mp", n_workers=2)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    ids = [rollout.rollout_id for rollout in await asyncio.gather(*(client.start_rollout(n) for n in range(20)))]
    assert len(await store.query_rollouts(rollout_id_in=ids)) == 20
    await client.close()
    await server.stop()


async def resources_come_back_as_types_of_agent_lightning(store: RollbookStore) -> None:
    await store.add_resources({"p": PromptTemplate(template="{a}!", engine="f-string")})
    latest = await store.get_latest_resources()
    assert latest is not None
    assert isinstance(latest.resources["p"], PromptTemplate)
    assert latest.resources["p"].format(a="b") == "b!"


def _in_a_fork(target: Any, *arguments: Any) -> None:
    child = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    child.start()
    child.join(40)
    if child.is_alive():
        child.kill()
        raise AssertionError("the child hangs")
    assert child.exitcode == 0


def _has_no_file_open(_: RollbookStore) -> None:
    descriptors = Path("/proc/self/fd")
    if descriptors.exists():
        opened = {str(descriptor.readlink()) for descriptor in descriptors.iterdir() if descriptor.is_symlink()}
        assert not [name for name in opened if ".db" in name], opened


def _finish(store: RollbookStore, rollout_id: str) -> None:
    asyncio.run(_succeed(store, rollout_id))


async def _succeed(store: RollbookStore, rollout_id: str) -> None:
    await store.update_attempt(rollout_id, "latest", status="succeeded")
    await store.close()


def _is_refused(store: RollbookStore) -> None:
    try:
        asyncio.run(store.statistics())
    except WrongProcess:
        return
    raise AssertionError("the child has a store of its own")


async def _main() -> None:
    options = arguments()
    logging.disable(logging.INFO)
    store = RollbookStore(options.url)
    try:
        await hold([*claims_of(methods.__name__), *claims_of(__name__)], store, options)
    finally:
        await store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(_main())
