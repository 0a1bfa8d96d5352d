"""A trainer runs an algorithm and an agent to the end, and its report agrees with the store."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from store import InMemoryLightningStore, open_store
from store.errors import Invalid
from store.interface.store import Store
from store.llm_proxy import Backend, LLMProxy
from store.models import LLM, ProxyLLM
from store.runtime.process import worker_name
from store.training.algorithms.algorithm import Algorithm, algo
from store.training.algorithms.baseline import Baseline
from store.training.algorithms.fit_report import Version
from store.training.bundle import AlgorithmBundle, RunnerBundle
from store.training.execution import ClientServerExecutionStrategy, RunnersGone, SharedMemoryExecutionStrategy
from store.training.execution.algorithm_store import AlgorithmStore
from store.training.execution.pickling import pack, unpack
from store.training.running.agent import llm_rollout as agent
from store.training.running.early_failure import AgentFails
from store.training.running.hooks import Hook
from store.training.running.runner import Runner
from store.training.tracer import Tracer
from store.training.trainer import Trainer
from store.wire.listener import PortTaken
from tests.training import agents


@pytest.fixture
def store() -> Iterator[InMemoryLightningStore]:
    """A store of this process."""
    opened = InMemoryLightningStore(scan_debounce_seconds=0.05)
    yield opened
    opened.sync.close()


def trainer(store: Any, **settings: Any) -> Trainer:
    """Return a trainer that stays in this process."""
    plain: dict[str, Any] = {"store": store, "strategy": "shm", "initial_resources": agents.RESOURCES}
    return Trainer(**(plain | settings))


def total(store: Store) -> int:
    """Return how many rollouts there are."""
    return store.sync.query_rollouts(limit=0).total


def test_a_baseline_without_the_resources_that_the_agent_needs_is_refused(store: InMemoryLightningStore) -> None:
    needs = "initial_resources: the agent needs a PromptTemplate, and Baseline publishes only initial_resources"
    with pytest.raises(Invalid, match=needs):
        trainer(store, initial_resources=None).dev(agents.scaled, [1.0], quiet=True)
    only_a_model = {"main_llm": agents.RESOURCES["main_llm"]}
    with pytest.raises(Invalid, match=needs):
        trainer(store, initial_resources=only_a_model, algorithm=Baseline()).fit(agents.scaled, [1.0], quiet=True)
    assert total(store) == 0


def test_an_agent_that_takes_only_the_task_is_trained_without_resources(store: InMemoryLightningStore) -> None:
    report = trainer(store, initial_resources=None).dev(agents.plain, [1.0, 3.0], quiet=True)
    assert [(row.mode, row.rollouts, row.mean) for row in report.rewards] == [("train", 2, 2.0)]


def test_a_run_is_reported_by_mode_step_and_version(
    store: InMemoryLightningStore, capsys: pytest.CaptureFixture[str]
) -> None:
    report = trainer(store, algorithm=agents.improve, n_runners=2).fit(agents.scaled, [1.0, 2.0], [3.0])
    first, second = Version("improve/0", 1), Version("improve/1", 1)
    assert [(row.mode, row.step, row.version, row.rollouts, row.mean) for row in report.rewards] == [
        ("train", 0, first, 2, 1.5),
        ("val", 0, first, 1, 3.0),
        ("train", 1, second, 2, 2.0),
        ("val", 1, second, 1, 3.5),
    ]
    assert (report.best, report.rollouts, report.attempts, report.retries, report.drops) == (second, 6, 6, 0, {})
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    assert "improve/1 v1 (best)" in printed


def test_complete_plan_is_not_run_again_and_reported_as_a_whole(store: InMemoryLightningStore) -> None:
    store.sync.add_resources(agents.RESOURCES)
    first, second = (
        trainer(store, algorithm=agents.improve).fit(agents.scaled, [1.0, 2.0], [3.0], quiet=True) for _ in range(2)
    )
    assert total(store) == 6
    assert (first.rollouts, first.earlier, second.rollouts, second.earlier) == (6, 0, 6, 6)
    assert (second.rewards, second.best, second.attempts) == (first.rewards, first.best, first.attempts)
    assert "ended before this start: 6 rollouts" in str(second)


def test_report_of_a_resumed_plan_counts_all_rollouts_under_one_version(store: InMemoryLightningStore) -> None:
    other = store.sync.enqueue_rollout(9.0)
    store.sync.update_rollout(other.rollout_id, status="succeeded")
    for items in ([1.0], [1.0, 2.0]):
        proxy = LLMProxy(backends=[Backend("main", "http://127.0.0.1:9", models=["tiny"])])
        report = trainer(store, algorithm=agents.through_a_proxy, llm_proxy=proxy).fit(agents.plain, items, quiet=True)
    assert [(str(row.version), row.rollouts, row.mean) for row in report.rewards] == [("proxied/0 v1", 2, 1.5)]
    assert (report.rollouts, report.earlier) == (2, 1)
    published = store.sync.get_resources_by_id("proxied/0")
    assert published is not None
    assert published.version == 2


def test_trainer_runs_the_proxy_from_before_the_first_claim_until_after_the_last(
    store: InMemoryLightningStore,
) -> None:
    proxy = LLMProxy(backends=[Backend("main", "http://127.0.0.1:9", models=["tiny"])])
    stale = ProxyLLM(endpoint="http://127.0.0.1:9", model="tiny")
    store.sync.add_resources({"main_llm": stale})
    rollout = store.sync.enqueue_rollout(1.0)
    endpoints: list[str] = []

    @agent
    def noting(task: Any, llm: LLM) -> float:
        endpoints.append(llm.endpoint.partition("/rollout/")[0])
        assert proxy.is_running
        return 1.0

    @algo
    async def wait(store: Store) -> None:
        await store.wait_for_rollouts([rollout.rollout_id])
        async with proxy:
            pass
        assert proxy.is_running

    trainer(store, algorithm=wait, llm_proxy=proxy).fit(noting, quiet=True)
    assert endpoints == [proxy.endpoint]
    assert not proxy.is_running


@pytest.mark.parametrize("mode", ["thread", "asyncio"])
def test_fixed_port_in_use_ends_the_training_with_one_line(store: InMemoryLightningStore, mode: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxy = LLMProxy(taken.getsockname()[1], launch_mode=mode)
        with pytest.raises(PortTaken) as raised:
            trainer(store, algorithm=Baseline(), llm_proxy=proxy).fit(agents.scaled, [1.0], quiet=True)
    assert "\n" not in str(raised.value)
    assert f"already in use: {proxy.endpoint.removeprefix('http://')}" in str(raised.value)
    assert total(store) == 0


def test_report_contains_resumed_rollouts_with_mode_and_step(
    store: InMemoryLightningStore,
) -> None:
    store.sync.add_resources(agents.prompt(0.25))
    rollout = store.sync.enqueue_rollout(1.0, mode="val", metadata={"rollbook.step": 7})
    later = store.sync.enqueue_rollout(5.0)

    class Wait(Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            await self.get_store().wait_for_rollouts([rollout.rollout_id, later.rollout_id])

    report = trainer(store, algorithm=Wait()).fit(agents.scaled, quiet=True)
    assert [(row.mode, row.step, row.version.version, row.mean) for row in report.rewards] == [
        ("val", 7, 1, 1.25),
        (None, None, 1, 5.25),
    ]


def test_report_counts_rollouts_without_training_data_by_reason(store: InMemoryLightningStore) -> None:
    report = trainer(store, algorithm=Baseline()).fit(agents.Picky(), [0, 1, 2, 3], quiet=True)
    assert report.drops == {"KeyError": 2}
    assert trainer(store, algorithm=Baseline()).fit(agents.mute, [1], quiet=True).drops == {"no reward": 1}
    assert "nothing to learn from: 2 KeyError" in str(report)


def test_an_algorithm_that_is_not_async_runs_too(store: InMemoryLightningStore) -> None:
    report = trainer(store, algorithm=agents.improve_slowly).fit(agents.scaled, [1.0], quiet=True)
    assert [row.mean for row in report.rewards] == [1.0]


def test_when_the_first_ten_attempts_fail_it_stops_and_shows_where(store: InMemoryLightningStore) -> None:
    with pytest.raises(AgentFails, match="the first 10 attempts all failed, 10 of them with ValueError") as raised:
        trainer(store, algorithm=Baseline()).fit(agents.failing, list(range(500)), quiet=True)
    assert "secret_of_the_traceback = int" in str(raised.value)
    assert total(store) < 100


def test_a_success_among_the_first_ten_lets_it_go_on(store: InMemoryLightningStore) -> None:
    report = trainer(store, algorithm=Baseline()).fit(agents.Picky(), [0, *range(1, 31, 2)], quiet=True)
    assert report.drops == {"KeyError": 15}


def test_failures_of_an_earlier_run_do_not_stop_the_next(store: InMemoryLightningStore) -> None:
    with pytest.raises(AgentFails):
        trainer(store, algorithm=Baseline()).fit(agents.failing, list(range(50)), quiet=True)
    for waiting in store.sync.query_rollouts(status_in=["queuing"]):
        store.sync.update_rollout(waiting.rollout_id, status="cancelled")
    report = trainer(store, algorithm=Baseline()).fit(agents.failing, [1], quiet=True)
    assert report.drops == {"ValueError": 1}


def test_dev_takes_fast_algorithms_only_and_a_baseline_by_default(store: InMemoryLightningStore) -> None:
    assert trainer(store).dev(agents.scaled, [1.0], quiet=True).rollouts == 1
    with pytest.raises(TypeError, match="needs a FastAlgorithm, not FunctionAlgorithm"):
        trainer(store, algorithm=agents.improve).dev(agents.scaled, [1.0])


def test_trainer_without_algorithm_runs_max_rollouts_of_the_queue(store: InMemoryLightningStore) -> None:
    store.sync.add_resources(agents.RESOURCES)
    for number in range(3):
        store.sync.enqueue_rollout(number)
    report = trainer(store, max_rollouts=2).fit(agents.scaled, quiet=True)
    assert report.rollouts == 2


def test_waiting_for_more_than_max_rollouts_raises_runners_gone(
    store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.training.execution.algorithm_store.STANDSTILL_SECONDS", 0.1)
    with pytest.raises(RunnersGone, match="max_rollouts"):
        trainer(store, algorithm=Baseline(), max_rollouts=1).fit(agents.scaled, [1.0, 2.0], quiet=True)


def test_error_of_the_algorithm_is_raised(store: InMemoryLightningStore) -> None:
    class Broken(Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            raise LookupError("weights")

    with pytest.raises(LookupError, match="weights"):
        trainer(store, algorithm=Broken()).fit(agents.scaled, quiet=True)


def test_an_algorithm_is_given_everything_that_it_may_ask_for(store: InMemoryLightningStore) -> None:
    seen: list[Any] = []

    class Curious(Algorithm):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            used = self.get_store()
            assert isinstance(used, AlgorithmStore)
            seen.extend([self.get_trainer(), used.target, self.get_adapter(), self.get_initial_resources()])
            seen.extend([self.get_llm_proxy(), train_dataset, val_dataset])

    fitted = trainer(store, algorithm=Curious())
    fitted.fit(agents.scaled, [1], [2], quiet=True)
    assert seen == [fitted, store, fitted.adapter, agents.RESOURCES, None, [1], [2]]


async def test_seed_determines_the_random_choices_of_an_algorithm(memory: Store) -> None:
    drawn: list[float] = []

    class Chance(Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            drawn.append(random.random())

    for _ in range(2):
        await AlgorithmBundle(Chance(), None, seed=4)(memory, threading.Event())
    assert drawn == 2 * [random.Random(4).random()]


def test_hooks_run_for_each_attempt(store: InMemoryLightningStore) -> None:
    class Counting(Hook):
        def __init__(self) -> None:
            self.workers: list[str] = []

        async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
            self.workers.append(runner.label)

    hook = Counting()
    trainer(store, algorithm=Baseline(), hooks=hook).fit(agents.scaled, [1.0, 2.0], quiet=True)
    assert hook.workers == 2 * [worker_name(0)]


def test_each_worker_has_a_runner_of_its_own() -> None:
    runner = Runner[Any](max_rollouts=3)
    bundle = RunnerBundle(agents.scaled, runner=runner)
    assert bundle.build() is not bundle.build() is not runner
    filled = RunnerBundle(agents.scaled, runner={"heartbeat_interval": 0}, tracer=Tracer, max_rollouts=5).build()
    assert (vars(filled)["_max_rollouts"], vars(filled)["_heartbeat_interval"]) == (5, 0)


def test_agent_is_pickled_without_its_trainer() -> None:
    trainer, picky = Trainer(strategy="shm"), agents.Picky()
    picky.set_trainer(trainer)
    again = unpack(pack("agent", RunnerBundle(picky, hooks=[Hook()]))).agent
    assert isinstance(again, agents.Picky)
    with pytest.raises(ValueError, match="no trainer"):
        _ = again.trainer


async def test_the_agent_in_the_process_of_a_runner_has_a_copy_of_its_trainer(memory: Store) -> None:
    original = trainer(memory, strategy="cs", n_runners=3, max_rollouts=1, seed=7, hooks=Hook(), algorithm=Baseline())
    acting = agents.Informed()
    acting.set_trainer(original)
    sent = RunnerBundle(acting, hooks=original.hooks, max_rollouts=1, seed=7, trainer=original)
    bundle = unpack(pack("agent", sent))
    await memory.add_resources(dict(agents.RESOURCES))
    rollout = await memory.enqueue_rollout("task")
    await bundle(memory, 0, threading.Event())
    copied = bundle.agent.trainer
    assert isinstance(copied, Trainer)
    assert copied is not original
    assert copied.store is memory
    assert (copied.n_runners, copied.max_rollouts, copied.seed) == (3, 1, 7)
    assert copied.initial_resources == agents.RESOURCES
    assert [type(hook) for hook in copied.hooks] == [Hook]
    assert copied.hooks[0] is bundle.hooks[0]
    for name in ("algorithm", "adapter", "llm_proxy", "strategy"):
        assert hasattr(original, name)
        with pytest.raises(AttributeError, match=f"the trainer's {name} exists only in the process of the algorithm"):
            getattr(copied, name)
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        getattr(original, "unknown")  # noqa: B009 - there is no such attribute
    assert (await memory.get_rollout_by_id(rollout.rollout_id)).status == "succeeded"  # pyright: ignore[reportOptionalMemberAccess]
    assert acting.trainer is original
    assert original.store is memory


@pytest.mark.slow
@pytest.mark.usefixtures("forked_parts")
def test_agents_in_processes_know_their_trainer(store: InMemoryLightningStore) -> None:
    fitted = trainer(store, algorithm=agents.improve, strategy="cs", port=0, n_runners=2, seed=3)
    report = fitted.fit(agents.Informed(), [1], [], quiet=True)
    assert {row.mean for row in report.rewards} == {2.0}
    for rollout in store.sync.query_rollouts():
        (noted,) = store.sync.query_spans(rollout.rollout_id, name="agentlightning.annotation", limit=1)
        assert noted.attributes == {"seed": 3, "resources": ["main_llm", "prompt"], "status": "preparing"}


def test_a_single_hook_may_be_of_any_class() -> None:
    class Other:
        async def on_rollout_end(self, *, rollout: Any) -> None: ...

    one = Other()
    assert Trainer(strategy="shm", hooks=one).hooks == [one]  # pyright: ignore[reportArgumentType]
    assert Trainer(strategy="shm", hooks=(one, one)).hooks == [one, one]  # pyright: ignore[reportArgumentType]


def test_an_agent_made_of_a_function_is_found_again_by_its_name() -> None:
    assert unpack(pack("agent", RunnerBundle(agents.scaled))).agent is agents.scaled


async def test_a_url_opens_the_store_and_close_closes_it(durable_url: str) -> None:
    def train() -> int:
        fitted = trainer(durable_url, algorithm=Baseline())
        rollouts = fitted.fit(agents.scaled, [1.0], quiet=True).rollouts
        fitted.close()
        return rollouts

    with pytest.raises(RuntimeError, match=r"await asyncio.to_thread\(trainer.fit"):
        trainer(durable_url).fit(agents.scaled)
    assert await asyncio.to_thread(train) == 1
    async with await open_store(durable_url) as store:
        assert [rollout.status for rollout in await store.query_rollouts()] == ["succeeded"]


def test_a_store_that_was_given_stays_open(store: InMemoryLightningStore) -> None:
    opened = trainer(store)
    assert opened.store is store
    opened.close()
    assert total(store) == 0


def test_the_defaults_are_a_store_in_memory_and_processes() -> None:
    trainer = Trainer()
    assert isinstance(trainer.strategy, ClientServerExecutionStrategy)
    assert isinstance(trainer.store, Store)
    assert (trainer.n_runners, trainer.algorithm, trainer.llm_proxy) == (1, None, None)
    trainer.close()


def test_strategies_are_named_and_counted() -> None:
    assert isinstance(Trainer(strategy="shm", n_runners=3).strategy, SharedMemoryExecutionStrategy)
    trainer = Trainer(
        strategy={"type": "store.training.execution.ClientServerExecutionStrategy", "n_runners": 2}, port=0
    )
    assert isinstance(trainer.strategy, ClientServerExecutionStrategy)
    assert (trainer.n_runners, trainer.strategy.server_port) == (2, 0)
    assert Trainer(strategy={"name": "shm"}, n_runners=2).n_runners == 2
    with pytest.raises(Invalid, match="port"):
        Trainer(strategy="shm", port=4747)
    with pytest.raises(Invalid, match="'slurm' is neither a short name"):
        Trainer(strategy="slurm")


@pytest.mark.slow
def test_agents_run_in_processes_of_their_own(store: InMemoryLightningStore) -> None:
    report = trainer(store, algorithm=agents.improve, strategy="cs", port=0, n_runners=2, seed=1).fit(
        agents.scaled, [1.0, 2.0], [3.0], quiet=True
    )
    assert [row.mean for row in report.rewards] == [1.5, 3.0, 2.0, 3.5]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_parts")
def test_the_algorithm_may_run_in_another_process_and_the_agent_here(store: InMemoryLightningStore) -> None:
    strategy = ClientServerExecutionStrategy("both", server_port=0, main_process="runner")
    report = trainer(store, algorithm=agents.improve, strategy=strategy).fit(agents.scaled, [1.0], [2.0], quiet=True)
    assert [row.mean for row in report.rewards] == [1.0, 2.0, 1.5, 2.5]
