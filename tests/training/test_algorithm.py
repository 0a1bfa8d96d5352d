"""Algorithms: their arguments by name, and errors for missing ones."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from store.interface.store import Store
from store.llm_proxy import LLMProxy
from store.models import LLM, NamedResources, Span
from store.training.algorithms.algorithm import Algorithm, algo, with_llm_proxy, with_store
from tests.training.training_helpers import collect

RESOURCES: NamedResources = {"main_llm": LLM(endpoint="http://127.0.0.1:9", model="m")}


class Adapter:
    """Counts spans."""

    def adapt(self, source: Sequence[Span], /) -> int:
        """Return how many there are."""
        return len(source)


@algo
async def at_module_level(store: Store) -> Store:
    """Give the store back."""
    return store


def test_each_getter_names_the_missing_part_and_its_setter() -> None:
    algorithm = Algorithm()
    getters: list[tuple[str, Callable[[], object]]] = [
        ("store", algorithm.get_store),
        ("trainer", algorithm.get_trainer),
        ("adapter", algorithm.get_adapter),
    ]
    for name, getter in getters:
        with pytest.raises(ValueError, match=f"no {name}; a trainer sets it, or call set_{name}"):
            getter()
    assert algorithm.get_llm_proxy() is None
    assert algorithm.get_initial_resources() is None


@pytest.mark.slow
def test_collected_adapter_is_reported_as_garbage_collected() -> None:
    algorithm, adapter = Algorithm(), Adapter()
    algorithm.set_adapter(adapter)
    assert algorithm.get_adapter() is adapter
    gone = weakref.ref(adapter)
    del adapter
    collect(gone)
    with pytest.raises(ValueError, match="the adapter was garbage collected"):
        algorithm.get_adapter()


async def test_algorithm_function_gets_its_parameters_by_name(memory: Store) -> None:
    seen: dict[str, Any] = {}

    @algo
    async def train(
        store: Store, val_dataset: Any, *, adapter: Any, llm_proxy: Any, initial_resources: Any, train_dataset: Any
    ) -> None:
        seen.update(locals())

    adapter, proxy = Adapter(), LLMProxy()
    train.set_store(memory)
    train.set_adapter(adapter)
    train.set_llm_proxy(proxy)
    train.set_initial_resources(RESOURCES)
    assert train.is_async()
    result = train.run([1], [2])
    assert result is not None
    await result
    del seen["seen"]
    assert seen == {
        "store": memory,
        "adapter": adapter,
        "llm_proxy": proxy,
        "initial_resources": RESOURCES,
        "train_dataset": [1],
        "val_dataset": [2],
    }


def test_a_function_without_parameters_needs_nothing_set() -> None:
    calls: list[int] = []

    @algo
    def train() -> None:
        calls.append(1)

    assert not train.is_async()
    train.run()
    assert calls == [1]


def test_a_dataset_the_function_has_no_parameter_for_is_refused_by_name() -> None:
    @algo
    def train(train_dataset: Any, **others: Any) -> None:
        assert not others, "nothing is injected where no name asks for it"

    train.run([1])
    with pytest.raises(TypeError, match="val_dataset was given, but train has no parameter"):
        train.run([1], [2])


def test_called_it_is_the_function_itself() -> None:
    @algo
    def double(number: int) -> int:
        """Return twice the number."""
        return 2 * number

    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Return twice the number.")


def test_it_travels_to_another_process_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level


async def test_calling_an_algorithm_runs_it(memory: Store) -> None:
    class Mine(Algorithm):
        @with_store
        async def run(self, store: Store, train_dataset: Any = None, val_dataset: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator takes the store away
            await store.enqueue_many_rollouts([])
            self.seen = (store, train_dataset, val_dataset)

    mine = Mine()
    mine.set_store(memory)
    await mine([1], val_dataset=[2])
    assert mine.seen == (memory, [1], [2])


async def test_proxy_is_started_for_a_method_and_stopped_by_its_starter() -> None:
    class Mine(Algorithm):
        @with_llm_proxy()
        async def is_running(self, llm_proxy: LLMProxy | None) -> bool:
            return llm_proxy is not None and llm_proxy.is_running

        @with_llm_proxy(auto_start=False)
        async def as_it_is(self, llm_proxy: LLMProxy | None) -> bool:
            return llm_proxy is not None and llm_proxy.is_running

        @with_llm_proxy(required=True)
        async def needs_one(self, llm_proxy: LLMProxy | None) -> None:
            raise AssertionError(llm_proxy)

    mine, proxy = Mine(), LLMProxy()
    assert not await mine.is_running()
    with pytest.raises(ValueError, match="needs_one needs an LLM proxy"):
        await mine.needs_one()
    mine.set_llm_proxy(proxy)
    assert await mine.is_running()
    assert not proxy.is_running
    assert not await mine.as_it_is()
    async with proxy:
        assert await mine.is_running()
        assert proxy.is_running
