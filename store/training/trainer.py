"""Brings an algorithm, an agent, runners and a store together, runs them, and reports what came of it."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from store.adapters.triplets import TracerTraceToTriplet
from store.errors import Invalid
from store.interface.store import Store
from store.training.agent import LitAgent, rollout
from store.training.algorithm import Algorithm, Dataset, FastAlgorithm, algo
from store.training.baseline import Baseline
from store.training.bundle import ADAPTERS, AlgorithmBundle, RunnerBundle
from store.training.components import Components
from store.training.continuous import newest_cursor
from store.training.execution import ClientServerExecutionStrategy, ExecutionStrategy
from store.training.execution.blocking import run_blocking
from store.training.fit_report import FitReport, read_report
from store.training.hooks import Hook

if TYPE_CHECKING:
    from store.llm_proxy import LLMProxy
    from store.models import NamedResources

logger = logging.getLogger(__name__)

_STRATEGY_PATH: Final = "store.training.execution"
_STORES: Final[Components[Store]] = Components("store", Store)
_ALGORITHMS: Final[Components[Algorithm]] = Components("algorithm", Algorithm)
# By their paths: processes of runners, which import a user's program anew, need neither proxy nor server.
_PROXY_PATH: Final = "store.llm_proxy.LLMProxy"
_PROXIES: Final[Components[LLMProxy]] = Components("llm_proxy", _PROXY_PATH, default_type=_PROXY_PATH)
_STRATEGIES: Final[Components[ExecutionStrategy]] = Components(
    "strategy",
    ExecutionStrategy,
    registry={
        "cs": f"{_STRATEGY_PATH}.ClientServerExecutionStrategy",
        "shm": f"{_STRATEGY_PATH}.SharedMemoryExecutionStrategy",
    },
    default_type=ClientServerExecutionStrategy,
)


class Trainer:
    """Trains an agent: `Trainer(algorithm=..., n_runners=4).fit(agent, tasks)`.

    Each component is given as an instance, a class, a function that makes it, a dotted path, or a dict with its `type`
    and arguments.

    Args:
        algorithm: what learns; a function is taken as by `algo`. None: nothing does, and `fit` runs what is enqueued
            until Ctrl+C or `max_rollouts`.
        store: where everything is kept: a component, or a URL as for `open_store`; None for one in memory.
        runner: of which each worker gets one of its own; None for `Runner`.
        tracer: what records agents; None for `Tracer`.
        adapter: what turns spans into what the algorithm learns from; None for `TracerTraceToTriplet`.
        strategy: "cs", each runner a process of its own, also on other machines; or "shm", all in this process.
        llm_proxy: the proxy through which agents call models; None for none.
        hooks: what is told of each attempt: one, or several.
        initial_resources: what the algorithm starts from, and publishes.
        n_runners: how many runners; None for as many as the strategy has, or 1.
        max_rollouts: how many attempts each runner runs; None for no limit.
        port: of the server, for "cs"; 0 for any that is free.
        seed: of Python's `random`, in the algorithm's process and in those of runners. Threads of one process share it,
            so what they draw depends on who comes first; a `Plan` has a seed of its own.

    Raises:
        Invalid: a specification leads nowhere, or arguments do not go together.
        TypeError: a component is of the wrong kind.
    """

    def __init__(
        self,
        *,
        algorithm: Any = None,
        store: Any = None,
        runner: Any = None,
        tracer: Any = None,
        adapter: Any = None,
        strategy: Any = None,
        llm_proxy: Any = None,
        hooks: Hook | Sequence[Hook] | None = None,
        initial_resources: NamedResources | None = None,
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        port: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.runner = runner
        self.tracer = tracer
        self.initial_resources = initial_resources
        self.max_rollouts = max_rollouts
        self.seed = seed
        self.hooks: list[Hook] = [hooks] if isinstance(hooks, Hook) else list(hooks or ())
        self._store_spec = store
        self._store: Store | None = None
        self.algorithm = _ALGORITHMS.build(_as_algorithm(algorithm), default=_nothing)
        self._adapter_spec = adapter
        self.adapter: Any = ADAPTERS.build(adapter, default=TracerTraceToTriplet)
        self.llm_proxy = _PROXIES.build(llm_proxy, default=_nothing)
        self.strategy = self._build_strategy(strategy, n_runners, port)

    def _build_strategy(self, spec: Any, n_runners: int | None, port: int | None) -> ExecutionStrategy:
        fill: dict[str, Any] = {} if n_runners is None else {"n_runners": n_runners}
        if port is not None:
            fill["server_port"] = port
        spec = ClientServerExecutionStrategy if spec is None else spec
        built = _STRATEGIES.build(spec, fill=fill)
        assert built is not None  # there is a specification
        if port is not None and not isinstance(built, ClientServerExecutionStrategy):
            raise Invalid("port", f"{type(built).__name__} has no server; leave it out, or choose strategy='cs'")
        if port is not None and isinstance(built, ClientServerExecutionStrategy):
            built.server_port = port
        if n_runners is not None and built is spec and built.n_runners != n_runners:
            logger.warning("the strategy given has %d runners, and n_runners=%d is ignored", built.n_runners, n_runners)
        return built

    @property
    def n_runners(self) -> int:
        """How many runners there are."""
        return self.strategy.n_runners

    @property
    def store(self) -> Store:
        """The store; opened when it is first asked for, and open until `close`.

        Raises:
            RuntimeError: a URL is to be opened, and an event loop runs in this thread.
        """
        if self._store is None:
            spec = self._store_spec
            if isinstance(spec, str) and "://" in spec:
                from store.opening import open_store

                self._store = run_blocking(lambda: open_store(spec))
            else:
                self._store = _STORES.build(spec, default=_in_memory)
        assert self._store is not None  # there is a default
        return self._store

    def use_store(self, store: Any) -> None:
        """Keep everything in another store from now on, given as to the constructor."""
        self.close()
        self._store_spec = store

    def close(self) -> None:
        """Close the store that the trainer opened; one that was given stays open."""
        made, self._store = self._store, None
        if made is not None and made is not self._store_spec:
            made.sync.close()

    def fit(
        self,
        agent: Any,
        train_dataset: Dataset | None = None,
        val_dataset: Dataset | None = None,
        *,
        quiet: bool = False,
    ) -> FitReport:
        """Train, print what came of it, and return that.

        Args:
            agent: a `LitAgent`, or a function as for `rollout`.
            train_dataset: tasks to train on; each becomes the input of rollouts.
            val_dataset: tasks to judge by.
            quiet: print nothing.

        Raises:
            AgentFails: the first attempts all failed; the text says why.
            RunnersGone: no runner is left, and the algorithm needs one.
            KeyboardInterrupt: Ctrl+C; runners and algorithm were ended before, and the attempts at work closed.
            Exception: what the algorithm raised.
        """
        return self._fit(agent, self.algorithm, train_dataset, val_dataset, quiet=quiet)

    def dev(
        self,
        agent: Any,
        train_dataset: Dataset | None = None,
        val_dataset: Dataset | None = None,
        *,
        quiet: bool = False,
    ) -> FitReport:
        """As `fit`, with an algorithm that is done soon: to see that agent and parts work.

        Raises:
            TypeError: the algorithm is no `FastAlgorithm`; without one, a `Baseline` is taken.
        """
        algorithm = self.algorithm or Baseline()
        if not isinstance(algorithm, FastAlgorithm):
            raise TypeError(f"dev() takes a FastAlgorithm, and {type(algorithm).__name__} is none; call fit()")
        return self._fit(agent, algorithm, train_dataset, val_dataset, quiet=quiet)

    def _fit(
        self,
        agent: Any,
        algorithm: Algorithm | None,
        train_dataset: Dataset | None,
        val_dataset: Dataset | None,
        *,
        quiet: bool,
    ) -> FitReport:
        acting: LitAgent[Any] = cast("LitAgent[Any]", agent) if isinstance(agent, LitAgent) else rollout(agent)
        acting.set_trainer(self)
        store, began = self.store, time.monotonic()
        begin = run_blocking(lambda: newest_cursor(store))
        learning = AlgorithmBundle(
            algorithm,
            self.adapter,
            self.llm_proxy,
            self.initial_resources,
            train_dataset,
            val_dataset,
            self.seed,
            weakref.ref(self),
            self._adapter_spec,
        )
        running = RunnerBundle(acting, self.runner, self.tracer, self.hooks, self.max_rollouts, self.seed)
        execution = self.strategy.execute(learning, running, store)
        if isinstance(self.strategy, ClientServerExecutionStrategy) and self.strategy.role == "runner":
            # The training, and so its report, is elsewhere.
            return FitReport(seconds=time.monotonic() - began, execution=execution)
        seconds = time.monotonic() - began
        report = run_blocking(lambda: read_report(store, begin, seconds, execution))
        if not quiet:
            sys.stdout.write(f"{report}\n")
        return report


def _as_algorithm(spec: Any) -> Any:
    """Take a plain function for an algorithm."""
    is_function = callable(spec) and not isinstance(spec, (type, Algorithm)) and hasattr(spec, "__code__")
    return algo(spec) if is_function else spec


def _in_memory() -> Store:
    # It brings the database, which processes of runners need not.
    from store.opening import InMemoryLightningStore

    return InMemoryLightningStore()


def _nothing() -> None:
    return None
