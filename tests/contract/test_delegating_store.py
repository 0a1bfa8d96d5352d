"""The contract on `DelegatingStore`, the smallest subclass of `Store` with another implementation."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from store.errors import NotFound, Unsupported
from store.interface.delegating import DelegatingRuns, DelegatingStore
from store.interface.log import StoreLog
from store.interface.runs import StoreRuns
from store.interface.store import Store
from store.models import LightningStoreCapabilities
from store.models.calls import ChangingCall
from store.models.queries import AttemptQuery, RolloutQuery, WorkerQuery
from store.testing.contract import ClosingContract, ResultsContract, StatisticsContract, WaitingForWorkContract

GROUPS = ("log", "runs", "annotations", "threads")


class Wrapper(DelegatingStore):
    """A store on nothing but the interface and another store."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    @property
    def target(self) -> Store:
        return self._inner

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._inner.capabilities

    async def close(self) -> None:
        await self._inner.close()


class Recorder:
    """A target that returns its calls: the name of the method and the arguments."""

    backend = "Recorder"

    def __getattr__(self, name: str) -> Any:
        if name in GROUPS:
            return name
        return self._coroutine(name) if inspect.iscoroutinefunction(_method(name)) else self._function(name)

    def _function(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: (name, args, kwargs)

    def _coroutine(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return name, args, kwargs

        return call


def _method(name: str) -> Any:
    return getattr(Store, name, None) or getattr(StoreRuns, name)


def calls_of(group: str) -> list[Any]:
    kinds = cast("list[Any]", ChangingCall.__subclasses__())
    return [kind for kind in kinds if kind.method.rpartition(".")[0] == group]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def methods(kind: type) -> set[str]:
    return {name for name in public(kind) if inspect.isfunction(inspect.getattr_static(kind, name))}


def test_no_method_of_the_interface_is_missing() -> None:
    assert DelegatingStore.__abstractmethods__ == {"target", "capabilities"}
    assert public(DelegatingStore) == public(Store) | {"target"}
    # These build the value of a query or of a call, and pass it to `find_…` or `call`. Each store has an address of its
    # own.
    inherited = {name for name in methods(Store) if getattr(DelegatingStore, name) is getattr(Store, name)}
    queries = {name for name in methods(Store) if name.startswith("query_")}
    assert inherited == queries | {kind.method for kind in calls_of("")} | {"otlp_traces_endpoint", "close"}
    assert "call" in vars(DelegatingStore)
    assert {name.replace("query_", "find_") for name in queries} <= set(vars(DelegatingStore))


def test_no_method_of_runs_is_missing() -> None:
    inherited = {name for name in methods(StoreRuns) if getattr(DelegatingRuns, name) is getattr(StoreRuns, name)}
    inherited -= {kind.method.removeprefix("runs.") for kind in calls_of("runs")}
    assert "call" in vars(DelegatingRuns)
    assert {name.replace("query_", "find_").replace("list_", "find_") for name in inherited} <= set(
        vars(DelegatingRuns)
    )


@pytest.mark.parametrize("kind", [DelegatingStore, DelegatingRuns])
async def test_each_call_is_passed_on_with_its_arguments(kind: type) -> None:
    recorder: Any = Recorder()
    wrapper: Any = Wrapper(recorder) if kind is DelegatingStore else DelegatingRuns(recorder)
    names = methods(kind) & set(vars(kind)) - {"call"}
    assert len(names) > 10
    for name in names:
        result = getattr(wrapper, name)(1, "two", three=3)
        if inspect.isawaitable(result):
            result = await result
        assert result == (name, (1, "two"), {"three": 3})


@pytest.mark.parametrize("group", ["", "runs"])
async def test_each_changing_call_is_passed_on_with_its_arguments(group: str) -> None:
    recorder: Any = Recorder()
    wrapper: Any = DelegatingRuns(recorder) if group else Wrapper(recorder)
    for kind in calls_of(group):
        arguments = {field.name: f"own {field.name}" for field in fields(kind)}
        assert await wrapper.call(kind(**arguments)) == (kind.method.rpartition(".")[2], (), arguments)


async def test_an_overridden_method_of_the_other_store_gets_the_call() -> None:
    class Own(Wrapper):
        async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> Any:
            return rollout_id, worker_id

    recorder: Any = Recorder()
    assert await Wrapper(Own(recorder)).start_attempt("ro-1", "w-1") == ("ro-1", "w-1")


@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_methods_are_those_of_the_other_store(name: str) -> None:
    recorder: Any = Recorder()
    assert getattr(Wrapper(recorder), name) == name


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'run.db'}"


@pytest.fixture
async def wrapper(store: Store) -> AsyncIterator[Wrapper]:
    async with Wrapper(store) as opened:
        yield opened


class TestDelegatingStore(ClosingContract, ResultsContract, StatisticsContract, WaitingForWorkContract):
    """Parts of the contract with each kind of call: claims, pages, waits, errors and closing."""

    @pytest.fixture
    def store(self, store: Store) -> Wrapper:
        return Wrapper(store)


async def test_errors_reach_the_caller(wrapper: Store) -> None:
    with pytest.raises(NotFound, match="ro-missing not found"):
        await wrapper.start_attempt("ro-missing")


async def test_blocking_calls_reach_the_other_store(wrapper: Store) -> None:
    rollout = wrapper.sync.enqueue_rollout(1)
    assert await wrapper.get_rollout_by_id(rollout.rollout_id) == rollout
    assert isinstance(wrapper.log, StoreLog)
    assert [event.type for event in wrapper.sync.log.history(rollout.rollout_id)] == ["rollout.enqueued"]


class ByArguments(Wrapper):
    """A store whose queries take arguments, as those of Agent-lightning's stores."""

    find_rollouts = Store.find_rollouts
    find_attempts = Store.find_attempts
    find_workers = Store.find_workers

    async def query_rollouts(self, *, status_in: Any = None, limit: int = -1) -> Any:  # type: ignore[override]
        return await self.target.query_rollouts(status_in=status_in, limit=limit)

    async def query_attempts(self, rollout_id: str, *, sort_by: Any = None) -> Any:  # type: ignore[override]
        return await self.target.query_attempts(rollout_id, sort_by=sort_by)


async def test_a_query_is_defined_by_its_arguments_or_as_a_value(store: Store) -> None:
    wrapper = ByArguments(store)
    started = await wrapper.start_rollout("task")
    assert (await wrapper.find_rollouts(RolloutQuery(status_in=["preparing"], limit=1))).total == 1
    assert (await wrapper.find_attempts(started.rollout_id, AttemptQuery())).total == 1
    with pytest.raises(Unsupported, match="query_workers"):
        await wrapper.find_workers(WorkerQuery())
