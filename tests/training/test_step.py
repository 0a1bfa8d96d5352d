"""One attempt: resources, hooks, trace, agent, reward and status, in this order, despite any failure."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import RolloutConfig
from store.runtime.process import worker_name
from store.training import (
    Hook,
    LitAgent,
    Outcome,
    Runner,
    Trainer,
    current_scope,
    emit_message,
    emit_reward,
)
from store.training.tracer import ATTEMPT_SPAN
from tests.training.doing import (
    Doing,
    Recording,
    failure_of,
    last,
    raising,
    returning,
    step,
)
from tests.training.stores import ON_EACH_STORE
from tests.training.training_helpers import RESOURCES, names_of, spans_of
from tests.training.unreliable import Unreliable


async def test_a_step_creates_its_rollout_runs_it_and_returns_it_ended(live: Store) -> None:
    rollout = await step(live, returning(0.5))
    assert (rollout.status, rollout.input, rollout.mode) == ("succeeded", "task", "train")
    assert (rollout.attempt.status, rollout.attempt.worker_id) == ("succeeded", worker_name(3))
    latest = await live.get_latest_resources()
    assert latest is not None
    assert rollout.resources_id == latest.resources_id
    assert await names_of(live, rollout) == ["agentlightning.annotation", ATTEMPT_SPAN]


class Modes(LitAgent[Any]):
    """Says which of its methods was called."""

    called: list[str]

    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> None:
        self.called.append("training")

    def validation_rollout(self, task: Any, resources: Any, rollout: Any) -> None:
        self.called.append("validation")


async def test_mode_train_trains_and_every_other_validates(memory: Store) -> None:
    agent = Modes()
    agent.called = []
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=agent, store=memory):
        await memory.add_resources(dict(RESOURCES))
        for mode in ("train", "val", "test", None):
            await runner.step("t", mode=mode)  # pyright: ignore[reportArgumentType]
    assert agent.called == ["training", "validation", "validation", "validation"]


async def test_an_agent_gets_task_resources_and_its_rollout_with_the_attempt(memory: Store) -> None:
    seen: list[Any] = []
    agent = Doing(lambda *arguments: seen.extend(arguments))
    rollout = await step(memory, agent)
    task, resources, received = seen
    assert (task, resources) == ("task", RESOURCES)
    assert received.attempt.attempt_id == rollout.attempt.attempt_id


async def test_an_agent_finds_the_runner_of_its_own_attempt(memory: Store) -> None:
    runners: list[Any] = []
    agent = Doing(lambda *_: runners.append(agent.runner))
    one, other = Runner[Any](), Runner[Any]()
    await memory.add_resources(dict(RESOURCES))
    with one.run_context(agent=agent, store=memory), other.run_context(agent=agent, store=memory):
        await one.step("t")
        await other.step("t")
        assert agent.runner is other
    assert runners == [one, other]


async def test_a_sync_agent_may_use_asyncio_run(memory: Store) -> None:
    async def inner() -> float:
        emit_message("inside")
        return 0.5

    rollout = await step(memory, Doing(lambda *_: asyncio.run(inner())))
    assert await names_of(memory, rollout) == ["agentlightning.message", "agentlightning.annotation", ATTEMPT_SPAN]


async def test_a_sync_agent_may_be_run_in_the_loop(memory: Store) -> None:
    threads: list[str] = []
    for in_thread in (True, False):
        await step(memory, Doing(lambda *_: threads.append(threading.current_thread().name)), sync_in_thread=in_thread)
    assert threads == ["rollbook-agent", "MainThread"]


async def test_error_of_the_agent_fails_the_attempt_and_is_raised(live: Store) -> None:
    def agent(*_: Any) -> None:
        scope = current_scope()
        assert scope is not None
        with scope.tracer.start_as_current_span("tool"):
            raise LookupError("no such page" + "!" * 1000)

    with pytest.raises(LookupError, match="no such page"):
        await step(live, Doing(agent))
    rollout = await last(live)
    tool, root = await spans_of(live, rollout)
    assert (rollout.status, rollout.attempt.status) == ("failed", "failed")
    assert rollout.attempt.metadata == {"reason": "error"}
    assert await failure_of(live, rollout) == [
        {"type": "LookupError", "message": ("no such page" + "!" * 1000)[:500], "span_id": tool.span_id}
    ]
    assert root.status.status_code == "ERROR"


async def test_an_error_whose_text_no_database_keeps_is_reported_without_it(
    memory: Store, caplog: pytest.LogCaptureFixture
) -> None:
    # What was logged goes with a test's result to another process, as UTF-8.
    caplog.set_level(logging.CRITICAL, logger="store")
    with pytest.raises(LookupError):
        await step(memory, raising(LookupError("a\0b\ud800c")))
    rollout = await last(memory)
    assert (await failure_of(memory, rollout))[0]["message"] == "ab?c"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), StopIteration()], ids=repr)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_no_exception_of_any_kind_makes_a_success(memory: Store, error: BaseException, is_async: bool) -> None:
    async def agent(*_: Any) -> None:
        raise error

    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        await step(memory, Doing(agent) if is_async else raising(error))
    rollout = await last(memory)
    assert (rollout.status, rollout.attempt.status) == ("failed", "failed")
    expected_reason = "error" if isinstance(error, StopIteration) else "interrupted"
    assert rollout.attempt.metadata == {"reason": expected_reason}


async def test_an_agent_that_cancels_itself_fails(memory: Store) -> None:
    async def agent(*_: Any) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled by itself"):
        await step(memory, Doing(agent))
    assert (await last(memory)).status == "failed"


async def test_a_step_that_is_cancelled_is_interrupted_and_never_succeeded(live: Store) -> None:
    at_work = asyncio.Event()
    cleaned_up = asyncio.Event()

    async def agent(*_: Any) -> float:
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()
        return 1.0

    running = asyncio.create_task(step(live, Doing(agent)))
    await at_work.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned_up.is_set()
    rollout = await last(live)
    assert (rollout.status, rollout.attempt.status) == ("failed", "failed")
    assert rollout.attempt.metadata == {"reason": "interrupted"}


async def test_a_step_that_is_cancelled_while_its_rollout_begins_leaves_nothing_at_work(memory: Store) -> None:
    begun, answered = asyncio.Event(), asyncio.Event()

    class Slow(Unreliable):
        async def start_rollout(self, *args: Any, **kwargs: Any) -> Any:
            rollout = await super().start_rollout(*args, **kwargs)
            begun.set()
            await answered.wait()
            return rollout

    running = asyncio.create_task(step(Slow(memory), returning(0.5)))
    await begun.wait()
    running.cancel()
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    attempt = (await last(memory)).attempt
    assert (attempt.status, attempt.metadata) == ("failed", {"reason": "interrupted"})


async def test_cancelling_again_does_not_break_the_report_off(memory: Store) -> None:
    at_work, in_hook, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(Recording):
        async def on_rollout_end(self, **about: Any) -> None:
            in_hook.set()
            await go_on.wait()
            await super().on_rollout_end(**about)

    async def agent(*_: Any) -> None:
        at_work.set()
        await asyncio.Event().wait()

    hook = Slow()
    running = asyncio.create_task(step(memory, Doing(agent), [hook], hooks_before_status=True))
    await at_work.wait()
    running.cancel()
    await in_hook.wait()
    running.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await last(memory)).attempt.status == "failed"
    assert hook.outcomes[0].kind == "interrupted"


async def test_without_resources_the_attempt_fails_before_any_hook(live: Store) -> None:
    hook = Recording()
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=returning(1.0), store=live, hooks=[hook]), pytest.raises(RuntimeError, match="none"):
        await runner.step("t")
    rollout = await last(live)
    assert (rollout.status, rollout.attempt.status) == ("failed", "failed")
    assert rollout.attempt.metadata == {"reason": "resources"}
    assert hook.told == []


async def claimed(store: Store, **config: Any) -> Any:
    """Return a rollout of the queue with a config."""
    return await store.enqueue_rollout("t", config=RolloutConfig(**config))


@ON_EACH_STORE
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_an_attempt_that_takes_too_long_is_ended_at_its_deadline(live: Store, is_async: bool) -> None:
    release = threading.Event()
    cancelled: list[bool] = []

    async def patient(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    def stubborn(*_: Any) -> None:
        release.wait(30)
        with pytest.raises(RuntimeError, match="outside of an attempt"):
            emit_reward(1.0)
        cancelled.append(True)

    await live.add_resources(dict(RESOURCES))
    rollout = await claimed(live, timeout_seconds=0.3)
    hook = Recording()
    runner: Runner[Any] = Runner(max_rollouts=1)
    with runner.run_context(agent=Doing(patient if is_async else stubborn), store=live, hooks=[hook]):
        await runner.iter()
    current: Any = await live.get_rollout_by_id(rollout.rollout_id)
    assert current.status == "failed"
    assert current.attempt.status == "timeout"
    assert hook.outcomes[0].reason in {"timeout", "superseded"}  # the watchdog may have been first
    release.set()
    for _ in range(1000):
        if cancelled:
            break
        await asyncio.sleep(0.01)
    assert cancelled == [True]
    # What an abandoned agent says later is part of nothing.
    assert await names_of(live, rollout) == [ATTEMPT_SPAN]


async def test_hooks_run_in_order_and_the_last_after_the_report(live: Store) -> None:
    one, other = Recording(), Recording()
    rollout = await step(live, returning(0.5), [one, other])
    assert one.told == other.told == ["rollout start", "trace start", "trace end", "rollout end"]
    assert one.statuses == ["succeeded"]
    assert one.spans == await spans_of(live, rollout)
    assert (one.outcomes[0].kind, one.outcomes[0].status) == ("ok", "succeeded")


async def test_hooks_may_come_before_the_status_as_in_agent_lightning(memory: Store) -> None:
    hook = Recording()
    rollout = await step(memory, returning(0.5), [hook], hooks_before_status=True)
    assert hook.statuses == ["running"]
    assert rollout.status == "succeeded"


async def test_error_of_the_agent_skips_only_the_hook_on_trace_end(memory: Store) -> None:
    hook = Recording()
    with pytest.raises(LookupError):
        await step(memory, raising(LookupError("x")), [hook])
    assert hook.told == ["rollout start", "trace start", "rollout end"]
    assert hook.statuses == ["failed"]
    assert (hook.outcomes[0].kind, hook.outcomes[0].reason) == ("error", "error")
    assert isinstance(hook.outcomes[0].error, LookupError)


@pytest.mark.parametrize("at", ["rollout start", "trace start", "trace end", "rollout end"])
async def test_error_of_a_hook_changes_nothing(memory: Store, at: str) -> None:
    failing, other = Recording(fails_at=at), Recording()
    rollout = await step(memory, returning(0.5), [failing, other])
    assert rollout.status == "succeeded"
    assert other.told == failing.told == ["rollout start", "trace start", "trace end", "rollout end"]


async def test_hook_written_for_agent_lightning_gets_its_parameters(memory: Store) -> None:
    ended: list[int] = []

    class Old:
        async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None: ...
        async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
            emit_message("from a hook")

        async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None: ...
        async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
            ended.append(len(spans))

    rollout = await step(memory, returning(None), [Old()])
    assert ended == [2]
    assert await names_of(memory, rollout) == ["agentlightning.message", ATTEMPT_SPAN]


async def test_hooks_may_declare_any_part_of_their_arguments(memory: Store) -> None:
    arguments: dict[str, Any] = {}

    class ByPosition:
        async def on_rollout_start(self, agent: Any, runner: Any, rollout: Any) -> None:
            arguments["rollout start"] = (agent, runner, rollout)

        async def on_trace_start(self, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
            arguments["trace start"] = (agent, runner, tracer, rollout)

        async def on_rollout_end(self, spans: Any, /, agent: Any, **others: Any) -> None:
            arguments["rollout end"] = (spans, agent, sorted(others))

    class Partial:
        """Neither derives from Hook nor has all methods."""

        def on_trace_end(self, *, rollout: Any, missing: int = 3) -> None:
            arguments["trace end"] = (rollout, missing)

        @staticmethod
        async def on_rollout_end(outcome: Outcome, error: BaseException | None = None) -> None:
            arguments["outcome"] = (outcome.kind, error)

    agent = returning(0.5)
    rollout = await step(memory, agent, [ByPosition(), Partial()])
    runner, claimed = arguments["rollout start"][1:]
    assert (type(runner), claimed.rollout_id) == (Runner, rollout.rollout_id)
    spans = await spans_of(memory, rollout)
    assert arguments == {
        "rollout start": (agent, runner, claimed),
        "trace start": (agent, runner, runner.tracer, claimed),
        "trace end": (claimed, 3),
        "rollout end": (spans, agent, ["outcome", "rollout", "runner"]),
        "outcome": ("ok", None),
    }


async def test_hook_with_an_error_parameter_gets_the_error_of_the_agent(memory: Store) -> None:
    seen: list[Any] = []

    class Ended(Hook):
        async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any, error: Any = None) -> None:
            seen.append(error)

    error = LookupError("x")
    with pytest.raises(LookupError):
        await step(memory, raising(error), [Ended()])
    assert seen == [error]


async def test_end_of_a_rollout_passes_every_documented_argument(memory: Store) -> None:
    calls: list[Any] = []

    class ByStatus(Hook):
        async def on_rollout_end(self, agent: Any, runner: Any, rollout: Any, status: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            calls.append((agent, runner, rollout.rollout_id, status))

    class ByTask:
        def on_rollout_start(self, task: Any, runner: Any, tracer: Any) -> None:
            calls.append((task, runner, tracer))

        def on_rollout_end(self, task: Any, rollout: Any, runner: Any, tracer: Any) -> None:
            calls.append((task, rollout.rollout_id, runner, tracer))

    runner: Runner[Any] = Runner()
    agent, hooks = returning(0.5), [ByStatus(), ByTask()]
    with runner.run_context(agent=agent, store=memory, hooks=hooks):  # pyright: ignore[reportArgumentType]
        rollout_id = (await runner.step("task", resources=dict(RESOURCES))).rollout_id
    assert calls == [
        ("task", runner, runner.tracer),
        (agent, runner, rollout_id, "succeeded"),
        ("task", rollout_id, runner, runner.tracer),
    ]


def test_a_hook_with_an_unknown_parameter_is_refused_at_registration(memory: Store) -> None:
    class Demanding:
        async def on_trace_end(self, *, reward: float, **_: Any) -> None: ...

    hooks: Any = [Demanding()]
    with pytest.raises(Invalid, match=r"on_trace_end of Demanding requires the argument 'reward'.* agent, runner"):
        Runner().init(returning(0.5), hooks=hooks)
    with pytest.raises(Invalid, match="'reward'"):
        Trainer(strategy="shm", store=memory, hooks=hooks)


def test_runner_without_agent_or_store_explains_how_to_set_them() -> None:
    runner: Runner[Any] = Runner()
    with pytest.raises(ValueError, match=r"init\(agent\)"):
        runner.get_agent()
    with pytest.raises(ValueError, match="init_worker"):
        runner.get_store()
    with pytest.raises(RuntimeError, match=r"use iter\(\)"):
        runner.run()
    with pytest.raises(ValueError, match="'thread' or 'asyncio'"):
        Runner(heartbeat_launch_mode="fork")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least 1"):
        Runner(concurrency=0)
    assert runner.get_worker_id() == "Worker-Unknown"


async def test_a_run_context_uses_the_worker_id_it_is_given_and_undoes_all(memory: Store) -> None:
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=returning(1.0), store=memory, worker_id=7) as entered:
        assert entered is runner
        assert runner.label == worker_name(7)
        assert runner.store is memory
    assert runner.label == "Worker-Unknown"
    with pytest.raises(ValueError, match="no store"):
        _ = runner.store
    with pytest.raises(ValueError, match="no agent"):
        _ = runner.agent
