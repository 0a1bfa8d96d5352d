"""Trainer, which runs an algorithm, an agent, runners and a store together and reports the results."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from store.adapters.triplets import TracerTraceToTriplet
from store.errors import Invalid
from store.interface.store import Store
from store.replaying import ReplayStore
from store.training.algorithms.algorithm import Algorithm, Dataset, FastAlgorithm, algo
from store.training.algorithms.baseline import Baseline
from store.training.algorithms.fit_report import FitReport, read_report
from store.training.algorithms.rollout_ends import newest_cursor
from store.training.bundle import ADAPTERS, AlgorithmBundle, RunnerBundle, start_proxy
from store.training.components import Components
from store.training.execution import ClientServerExecutionStrategy, ExecutionStrategy, ReplayExecutionStrategy
from store.training.execution.blocking import run_blocking
from store.training.running.agent import LitAgent, rollout
from store.training.running.hooks import Hook, HookCalls

if TYPE_CHECKING:
    from store.llm_proxy import LLMProxy
    from store.models import NamedResources, ResourceUnion

logger = logging.getLogger(__name__)

_STRATEGY_PATH: Final = "store.training.execution"
_STORES: Final[Components[Store]] = Components("store", Store)
_ALGORITHMS: Final[Components[Algorithm]] = Components("algorithm", Algorithm)
# The proxy is named by its path and not imported here. Processes of runners import the user's program, and with it this
# module, but do not need the proxy.
_PROXY_PATH: Final = "store.llm_proxy.LLMProxy"
_PROXIES: Final[Components[LLMProxy]] = Components("llm_proxy", _PROXY_PATH, default_type=_PROXY_PATH)
_STRATEGIES: Final[Components[ExecutionStrategy]] = Components(
    "strategy",
    ExecutionStrategy,
    registry={
        "cs": f"{_STRATEGY_PATH}.ClientServerExecutionStrategy",
        "shm": f"{_STRATEGY_PATH}.SharedMemoryExecutionStrategy",
        "ray": f"{_STRATEGY_PATH}.RayExecutionStrategy",
        "replay": f"{_STRATEGY_PATH}.ReplayExecutionStrategy",
    },
    default_type=ClientServerExecutionStrategy,
)

_FOR_RUNNERS: Final = ("runner", "tracer", "initial_resources", "max_rollouts", "seed", "hooks")
_OF_THE_ALGORITHM: Final = frozenset({"algorithm", "adapter", "llm_proxy", "strategy"})


class Trainer:
    """Trainer of an agent: `Trainer(algorithm=..., n_runners=4).fit(agent, tasks)`.

    In the process of a runner, `agent.trainer` is a copy with the same settings and with the store of the runner. The
    copy has no `algorithm`, `adapter`, `llm_proxy` and `strategy`, which exist only in the trainer's own process.

    Each component is given as an instance, a class, a function that creates it, a dotted path, or a dict with its
    `type` and arguments.

    Args:
        algorithm: the algorithm; a function is converted as by `algo`. None: `fit` runs the queued tasks until Ctrl+C,
            or until each runner has reached `max_rollouts`.
        store: the store, as a component or as a URL for `open_store`; None for a store in memory.
        runner: the runner; each worker gets its own runner. None for `Runner`.
        tracer: the tracer, which records agents; None for `Tracer`.
        adapter: the adapter, which converts spans to training data; None for `TracerTraceToTriplet`.
        strategy: "cs" runs each runner in a separate process, also on other machines; "shm" runs everything in this
            process; "ray" runs each runner as an actor of a Ray cluster. "replay" runs only the algorithm, on a
            `ReplayStore`. None for "replay" with a `ReplayStore`, else "cs".
        llm_proxy: the proxy through which agents call models; None for no proxy. `fit` starts the proxy before the
            runners, and stops the proxy after them. Unfinished rollouts of an earlier training get the address of the
            proxy.
        hooks: one or several hooks, called for each attempt.
        initial_resources: the resources that the algorithm starts from and publishes.
        n_runners: the number of runners; None for the strategy's number, or 1.
        max_rollouts: the maximum number of attempts that each runner runs; None for no limit.
        port: the port of the server that the strategies "cs" and "ray" start; None or 0 for any free port.
        seed: the seed of Python's `random`, in the processes of the algorithm and the runners. Threads of one process
            share the generator, so their random numbers depend on their timing; a `Plan` has its own seed.

    Raises:
        Invalid: a specification cannot be resolved, arguments contradict each other, or a hook requires an argument
            that hooks do not receive.
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
        initial_resources: Mapping[str, ResourceUnion] | None = None,
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        port: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.runner = runner
        self.tracer = tracer
        self.initial_resources: NamedResources | None = None if initial_resources is None else dict(initial_resources)
        self.max_rollouts = max_rollouts
        self.seed = seed
        self.hooks: list[Hook] = _as_list(hooks)
        HookCalls(self.hooks)  # refuses hooks that runners cannot call
        self._store_spec = store
        self._store: Store | None = None
        if callable(algorithm) and not isinstance(algorithm, (type, Algorithm)) and hasattr(algorithm, "__code__"):
            algorithm = algo(algorithm)
        self.algorithm = _ALGORITHMS.build(algorithm, default=_nothing)
        self._adapter_spec = adapter
        self.adapter: Any = ADAPTERS.build(adapter, default=TracerTraceToTriplet)
        self.llm_proxy = _PROXIES.build(llm_proxy, default=_nothing)
        self.strategy = self._build_strategy(strategy, n_runners, port)

    def _build_strategy(self, spec: Any, n_runners: int | None, port: int | None) -> ExecutionStrategy:
        fill: dict[str, Any] = {} if n_runners is None else {"n_runners": n_runners}
        if port is not None:
            fill["server_port"] = port
        if spec is None:
            is_replay = isinstance(self._store_spec, ReplayStore)
            spec = ReplayExecutionStrategy if is_replay else ClientServerExecutionStrategy
        strategy = _STRATEGIES.build(spec, fill=fill)
        assert strategy is not None  # there is a specification
        if port is not None:
            strategy.use_port(port)
        if n_runners is not None and strategy is spec and strategy.n_runners != n_runners:
            logger.warning("the given strategy has %d runners; n_runners=%d is ignored", strategy.n_runners, n_runners)
        return strategy

    def copy_for_runner(self) -> Trainer:
        """Return a copy for the process of a runner. The copy has the settings, but neither components nor store."""
        copied = object.__new__(Trainer)
        settings = {name: getattr(self, name) for name in _FOR_RUNNERS}
        vars(copied).update(settings, _n_runners=self.n_runners, _store=None, _store_spec=None)
        return copied

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error. For a component that a copy lacks, the message contains advice."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_THE_ALGORITHM:
                message = (
                    f"the trainer's {name} exists only in the process of the algorithm; "
                    "give the agent what it needs as a resource or as its own attribute"
                )
            raise AttributeError(message)

    @property
    def n_runners(self) -> int:
        """The number of runners."""
        return vars(self).get("_n_runners") or self.strategy.n_runners

    @property
    def store(self) -> Store:
        """The store. It is opened at first use and stays open until `close`.

        Raises:
            RuntimeError: a URL has to be opened, but an event loop runs in this thread.
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

    @property
    def has_own_store(self) -> bool:
        """Whether a store was given; otherwise the trainer uses a new store in memory."""
        return self._store_spec is not None

    def use_store(self, store: Any) -> None:
        """Switch to another store, specified as in the constructor."""
        self.close()
        self._store_spec = store

    def close(self) -> None:
        """Close the store if the trainer opened it; a given store instance stays open."""
        store, self._store = self._store, None
        if store is not None and store is not self._store_spec:
            store.sync.close()

    def fit(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        *,
        quiet: bool = False,
    ) -> FitReport:
        """Train the agent, print the report, and return it.

        The report contains the rollouts that ended during the training. It also contains all ended rollouts of the
        plans that the algorithm used, including rollouts of earlier trainings.

        Args:
            agent: a `LitAgent`, or a function as for `rollout`.
            train_dataset: tasks to train on; each becomes the input of rollouts.
            val_dataset: tasks for validation.
            quiet: whether to print nothing.

        Raises:
            AgentFails: the first attempts all failed; the message contains the reason.
            Invalid: the algorithm is a `Baseline`, and neither the store nor `initial_resources` has what the agent
                needs.
            RunnersGone: no runner is left, but the algorithm needs one.
            PortTaken: the server or the proxy has a fixed port, and another program listens on it.
            KeyboardInterrupt: Ctrl+C was pressed; runners and algorithm have ended, and open attempts are closed.
            Exception: an exception that the algorithm raised.
        """
        return self._fit(agent, self.algorithm, train_dataset, val_dataset, quiet=quiet)

    def dev(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        *,
        quiet: bool = False,
    ) -> FitReport:
        """Run `fit` with a fast algorithm, to check that agent and components work.

        Raises:
            TypeError: the algorithm is not a `FastAlgorithm`; the default is `Baseline`.
        """
        algorithm = self.algorithm or Baseline()
        if not isinstance(algorithm, FastAlgorithm):
            raise TypeError(f"dev() needs a FastAlgorithm, not {type(algorithm).__name__}; call fit()")
        return self._fit(agent, algorithm, train_dataset, val_dataset, quiet=quiet)

    def _fit(
        self,
        agent: Any,
        algorithm: Algorithm | None,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        *,
        quiet: bool,
    ) -> FitReport:
        lit_agent: LitAgent[Any] = cast("LitAgent[Any]", agent) if isinstance(agent, LitAgent) else rollout(agent)
        lit_agent.set_trainer(self)
        store, started_at = self.store, time.monotonic()
        self._check_resources(lit_agent, algorithm, store)
        cursor = run_blocking(lambda: newest_cursor(store))
        algorithm_side = AlgorithmBundle(
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
        runner_side = RunnerBundle(lit_agent, self.runner, self.tracer, self.hooks, self.max_rollouts, self.seed, self)
        with self._proxy_running(store):
            execution = self.strategy.execute(algorithm_side, runner_side, store)
        if isinstance(self.strategy, ClientServerExecutionStrategy) and self.strategy.role == "runner":
            # The algorithm runs in another process, which reads the report.
            return FitReport(seconds=time.monotonic() - started_at, execution=execution)
        seconds = time.monotonic() - started_at
        # If the algorithm runs in another process, this process does not have the names of its plans.
        plans = algorithm_side.plans if self.strategy.has_algorithm_here else None
        report = run_blocking(lambda: read_report(store, cursor, seconds, execution, plans))
        if not quiet:
            sys.stdout.write(f"{report}\n")
        return report

    @contextlib.contextmanager
    def _proxy_running(self, store: Store) -> Generator[None]:
        """Run the proxy during a block, so that it starts before the runners and stops after them.

        A proxy that runs in the event loop or in the process of the algorithm is started by the algorithm's side.
        """
        proxy = self.llm_proxy
        if proxy is None or not self.strategy.has_algorithm_here or not proxy.has_own_thread or proxy.is_running:
            yield
            return
        run_blocking(lambda: start_proxy(proxy, store))
        try:
            yield
        finally:
            if proxy.is_running:
                run_blocking(proxy.stop)

    def _check_resources(self, agent: LitAgent[Any], algorithm: Algorithm | None, store: Store) -> None:
        """Refuse a training in which the runners would wait forever for resources."""
        if not isinstance(algorithm, Baseline):
            return
        resources = self.initial_resources
        if resources is None and (latest := run_blocking(store.get_latest_resources)) is not None:
            resources = latest.resources
        if (missing := agent.missing_resource(resources)) is not None:
            raise Invalid(
                "initial_resources",
                f"the agent needs {missing}, and {type(algorithm).__name__} publishes only initial_resources",
            )


def _as_list(hooks: Any) -> list[Hook]:
    """Return one hook or an iterable of hooks as a list."""
    if hooks is None:
        return []
    return (
        [hooks] if isinstance(hooks, Hook) or not isinstance(hooks, Iterable) else list(cast("Iterable[Hook]", hooks))
    )


def _in_memory() -> Store:
    # This imports the database, which processes of runners do not need.
    from store.opening import InMemoryLightningStore

    return InMemoryLightningStore()


def _nothing() -> None:
    return None
