"""The runners' side and the algorithm's side of a training, as objects that can be sent to another process.

A specification describes a component: an instance, a class, a name or a dict, as for `Components.build`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import random
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from store.adapters.triplets import TracerTraceToTriplet
from store.training.algorithms.algorithm import Algorithm, AlgorithmTrainer, Dataset, SpanAdapter
from store.training.algorithms.model_addresses import move_to_proxy
from store.training.algorithms.rollout_ends import newest_cursor
from store.training.components import Components
from store.training.execution.algorithm_store import AlgorithmStore
from store.training.running.agent_threads import future_of
from store.training.running.early_failure import first_attempts_fail
from store.training.running.runner import ExecutionEvent, Runner
from store.training.tracer import Tracer

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.llm_proxy import LLMProxy
    from store.models import NamedResources
    from store.training.running.agent import LitAgent
    from store.training.running.hooks import Hook

logger = logging.getLogger("store.training.sides")

TRACERS: Components[Tracer] = Components("tracer", Tracer, default_type=Tracer)
ADAPTERS: Components[SpanAdapter] = Components("adapter", SpanAdapter, default_type=TracerTraceToTriplet)
RUNNERS: Components[Runner[Any]] = Components("runner", Runner, default_type=Runner)

_EVENT_SECONDS = 0.1


@dataclass
class RunnerBundle:
    """Runners' side of a training. Each call runs one worker with a runner of its own.

    Attributes:
        agent: the agent to run.
        runner: specification of the runner; None for a `Runner`.
        tracer: specification of the tracer; None for a `Tracer`.
        hooks: the hooks that are called for the attempts.
        max_rollouts: the maximum number of attempts per worker; None for no limit.
        seed: seed of Python's `random` in other processes, combined with the worker's id; ignored in this process.
        trainer: the agent's trainer, or None. Another process receives a copy with the settings of the trainer.
        name: the prefix of the workers' names in the store; the number of the worker follows. None for the host and the
            process id.
        announce: function at the top level of a module. It is called with lines of text about the work. None to
            announce nothing.
    """

    agent: LitAgent[Any]
    runner: Any = None
    tracer: Any = None
    hooks: Sequence[Hook] = ()
    max_rollouts: int | None = None
    seed: int | None = None
    trainer: Any = field(default=None, repr=False)
    name: str | None = None
    announce: Callable[[str], None] | None = None
    _was_sent: bool = field(default=False, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process."""
        copied = None if self.trainer is None else self.trainer.copy_for_runner()
        return vars(self) | {"trainer": copied, "_was_sent": True}

    async def __call__(self, store: Store, worker_id: int, event: ExecutionEvent) -> None:
        """Run the rollouts of a store as one worker until the event is set."""
        if self.seed is not None and self._was_sent:
            random.seed(f"{self.seed}/{worker_id}")
        if self.trainer is not None:
            # The agent's reference to its trainer is weak, so the trainer is not sent to another process with the
            # agent.
            self.agent.set_trainer(self.trainer)
            if self._was_sent:
                self.trainer.use_store(store)
        runner = self.build()
        with runner.run_context(agent=self.agent, store=store, hooks=self.hooks, worker_id=worker_id):
            await runner.iter(event=event)

    def build(self) -> Runner[Any]:
        """Return a runner for one worker."""
        tracer = TRACERS.build(self.tracer, default=Tracer)
        options: dict[str, Any] = {"name": self.name, "announce": self.announce}
        fill = {"tracer": tracer, "max_rollouts": self.max_rollouts, **options}
        built = RUNNERS.build(self.runner, default=lambda: Runner(tracer, self.max_rollouts, **options), fill=fill)
        assert built is not None  # there is a default
        # A runner that the caller built is copied, because each worker sets its own id and store on its runner.
        return copy.copy(built) if built is self.runner else built


@dataclass
class AlgorithmBundle:
    """Algorithm's side of a training.

    Attributes:
        algorithm: the algorithm; if None, the call only waits until the event is set.
        adapter: the object that converts spans to training data; None in another process, which builds the adapter
            from `adapter_spec`.
        adapter_spec: specification of the adapter; None for `TracerTraceToTriplet`.
        llm_proxy: the proxy through which agents call models, or None.
        initial_resources: the resources that the training starts from.
        train_dataset: tasks to train on.
        val_dataset: tasks for validation.
        seed: seed of Python's `random`.
        trainer: a weak reference to the trainer; None in another process.
        plans: the names of the plans whose rollouts the algorithm enqueued in this process.
    """

    algorithm: Algorithm | None
    adapter: Any
    llm_proxy: LLMProxy | None = None
    initial_resources: NamedResources | None = None
    train_dataset: Dataset[Any] | None = None
    val_dataset: Dataset[Any] | None = None
    seed: int | None = None
    trainer: weakref.ref[AlgorithmTrainer] | None = field(default=None, repr=False)
    adapter_spec: Any = None
    plans: set[str] = field(default_factory=set[str], init=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process."""
        return vars(self) | {"adapter": None, "trainer": None}

    async def __call__(self, store: Store, event: ExecutionEvent) -> None:
        """Train, and stop early if the first attempts all fail.

        Raises:
            AgentFails: the first attempts all failed.
            Exception: an exception that the algorithm raised.
        """
        if self.seed is not None:
            random.seed(self.seed)
        algorithm = self.algorithm
        if algorithm is None:
            while not event.is_set():  # noqa: ASYNC110 - an event of another thread cannot be awaited
                await asyncio.sleep(_EVENT_SECONDS)
            return
        trainer = None if self.trainer is None else self.trainer()
        if trainer is not None:
            algorithm.set_trainer(trainer)
        algorithm.set_store(store)
        if self.adapter is None:
            self.adapter = ADAPTERS.build(self.adapter_spec, default=TracerTraceToTriplet)
        algorithm.set_adapter(self.adapter)
        algorithm.set_initial_resources(self.initial_resources)
        if self.llm_proxy is not None:
            self.llm_proxy.set_store(store)
        algorithm.set_llm_proxy(self.llm_proxy)
        if isinstance(store, AlgorithmStore):
            store.plans = self.plans
        async with _proxy_running(self.llm_proxy, store):
            cursor = await newest_cursor(store)
            training = asyncio.ensure_future(self._run(algorithm))
            failure_watch = asyncio.ensure_future(first_attempts_fail(store, cursor))
            try:
                await asyncio.wait({training, failure_watch}, return_when=asyncio.FIRST_COMPLETED)
                if not training.done():
                    raise failure_watch.result()
                training.result()
            finally:
                training.cancel()
                failure_watch.cancel()
                await asyncio.wait({training, failure_watch})

    async def _run(self, algorithm: Algorithm) -> None:
        if algorithm.is_async():
            training = algorithm.run(self.train_dataset, self.val_dataset)
            assert training is not None  # `run` is a coroutine function
            await training
            return
        # A daemon thread does not delay the exit of the process.
        await future_of(
            lambda: algorithm.run(self.train_dataset, self.val_dataset),
            lambda work: threading.Thread(target=work, name="the algorithm", daemon=True).start(),
        )


async def start_proxy(proxy: LLMProxy, store: Store) -> None:
    """Start a proxy for a store, and publish its address for rollouts of an earlier training with another proxy.

    Raises:
        PortTaken: the proxy has a fixed port, and another program listens on it.
    """
    proxy.set_store(store)
    await proxy.start()
    try:
        await move_to_proxy(store, proxy)
    except BaseException:
        await proxy.stop()
        raise


@contextlib.asynccontextmanager
async def _proxy_running(proxy: LLMProxy | None, store: Store) -> AsyncGenerator[None]:
    """Run a proxy during a block; a proxy that already runs is not stopped."""
    if proxy is None or proxy.is_running:
        yield
        return
    await start_proxy(proxy, store)
    try:
        yield
    finally:
        if proxy.is_running:
            await proxy.stop()
