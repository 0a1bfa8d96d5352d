"""Algorithms: the parts of trainings that choose the tasks, learn from the results and publish resources."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.llm_proxy import LLMProxy
    from store.models import NamedResources, ResourceUnion, Span

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="Algorithm")

T_co = TypeVar("T_co", covariant=True)


class Dataset(Protocol[T_co]):
    """Tasks: any object with a length and items, such as a list or a PyTorch dataset. Each item is a JSON value."""

    def __getitem__(self, index: int, /) -> T_co:
        """Return a task."""
        ...

    def __len__(self) -> int:
        """Return the number of tasks."""
        ...


@runtime_checkable
class SpanAdapter(Protocol):
    """Any object that converts spans to training data with a method `adapt`."""

    def adapt(self, source: Sequence[Span], /) -> Any:
        """Return the training data of the spans."""
        ...


class AlgorithmTrainer(Protocol):
    """The part of a trainer that algorithms use."""

    initial_resources: NamedResources | None
    max_rollouts: int | None
    seed: int | None

    @property
    def n_runners(self) -> int:
        """The number of runners."""
        ...

    @property
    def store(self) -> Store:
        """The store."""
        ...


class Algorithm:
    """Base class of algorithms. An algorithm and the runners communicate only through the store.

    A trainer sets the store and the other components before it calls `run`. The algorithm has only weak references to
    the trainer, the adapter and the proxy, so the code that created them must keep references to them.
    """

    _store: Store | None = None
    _initial_resources: NamedResources | None = None
    _trainer: weakref.ref[AlgorithmTrainer] | None = None
    _adapter: weakref.ref[Any] | None = None
    _llm_proxy: weakref.ref[LLMProxy] | None = None

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> Awaitable[None] | None:
        """Train, and return at the end of the training. Subclasses define a coroutine function or a plain function."""
        raise NotImplementedError(f"{type(self).__name__} has no run(train_dataset, val_dataset)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `run`."""
        return self.run(*args, **kwargs)

    def is_async(self) -> bool:
        """Return whether `run` is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy in another process, without the components that a trainer sets there."""
        components = {"_store", "_initial_resources", "_trainer", "_adapter", "_llm_proxy"}
        return {name: value for name, value in vars(self).items() if name not in components}

    def set_store(self, store: Store) -> None:
        """Set the store to work with."""
        self._store = store

    def get_store(self) -> Store:
        """Return the store.

        Raises:
            ValueError: no store was set.
        """
        if self._store is None:
            raise ValueError("the algorithm has no store; a trainer sets it, or call set_store(store)")
        return self._store

    def set_trainer(self, trainer: AlgorithmTrainer) -> None:
        """Set the trainer that runs the algorithm."""
        self._trainer = weakref.ref(trainer)

    def get_trainer(self) -> AlgorithmTrainer:
        """Return the trainer.

        Raises:
            ValueError: no trainer was set, or the trainer was garbage collected.
        """
        return _alive(self._trainer, "trainer")

    def set_adapter(self, adapter: SpanAdapter) -> None:
        """Set the adapter, which converts spans to training data."""
        self._adapter = weakref.ref(adapter)

    def get_adapter(self) -> Any:
        """Return the adapter.

        Raises:
            ValueError: no adapter was set, or the adapter was garbage collected.
        """
        return _alive(self._adapter, "adapter")

    def set_llm_proxy(self, llm_proxy: LLMProxy | None) -> None:
        """Set the proxy through which agents call models, or None."""
        self._llm_proxy = None if llm_proxy is None else weakref.ref(llm_proxy)

    def get_llm_proxy(self) -> LLMProxy | None:
        """Return the proxy; None if the training has no proxy.

        Raises:
            ValueError: a proxy was set, but the proxy was garbage collected.
        """
        return None if self._llm_proxy is None else _alive(self._llm_proxy, "llm_proxy")

    def set_initial_resources(self, resources: Mapping[str, ResourceUnion] | None) -> None:
        """Set the resources that training starts from. Agents receive them only if the algorithm publishes them."""
        self._initial_resources = None if resources is None else dict(resources)

    def get_initial_resources(self) -> NamedResources | None:
        """Return the resources that training starts from, or None."""
        return self._initial_resources


def _alive(reference: weakref.ref[R] | None, name: str) -> R:
    if reference is None:
        raise ValueError(f"the algorithm has no {name}; a trainer sets it, or call set_{name}(...)")
    if (target := reference()) is None:
        raise ValueError(f"the {name} was garbage collected; keep a reference to it, because algorithms hold it weakly")
    return target


class FastAlgorithm(Algorithm):
    """An algorithm that ends in seconds or minutes and needs no accelerator, as `Trainer.dev` requires."""


class FunctionAlgorithm(Algorithm, Generic[P, R]):
    """Algorithm that calls a function; see `algo`. Calling the algorithm calls the function directly."""

    __name__: str

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._names = frozenset(
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        )
        functools.update_wrapper(self, function)

    def __reduce__(self) -> str:
        # Pickle looks up this name in the module, where `algo` has replaced the function with this object.
        return self._function.__qualname__

    def is_async(self) -> bool:
        """Return whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self._function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function without injected arguments."""
        return self._function(*args, **kwargs)

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> Awaitable[None] | None:
        """Call the function. Its arguments are the components and datasets for which it has parameters.

        Raises:
            TypeError: a dataset was passed, but the function has no parameter for this dataset.
            ValueError: the function has a parameter for a store or an adapter that was not set.
        """
        values: dict[str, Callable[[], Any]] = {
            "store": self.get_store,
            "adapter": self.get_adapter,
            "llm_proxy": self.get_llm_proxy,
            "initial_resources": self.get_initial_resources,
            "train_dataset": lambda: train_dataset,
            "val_dataset": lambda: val_dataset,
        }
        for name, dataset in (("train_dataset", train_dataset), ("val_dataset", val_dataset)):
            if dataset is not None and name not in self._names:
                raise TypeError(f"a {name} was given, but {self._function.__name__} has no parameter of that name")
        call = cast("Callable[..., Any]", self._function)
        return call(**{name: give() for name, give in values.items() if name in self._names})


def algo(function: Callable[P, R]) -> FunctionAlgorithm[P, R]:
    """Return an algorithm that calls a function. The function may be plain or async.

    The function may declare any of the parameters `store`, `adapter`, `llm_proxy`, `initial_resources`, `train_dataset`
    and `val_dataset`. It receives only the arguments that it declares.
    """
    return FunctionAlgorithm(function)


def with_store(
    method: Callable[Concatenate[A, Store, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[A, P], Coroutine[Any, Any, R]]:
    """Decorate an async method of an algorithm, so that the method receives the store as its first argument."""

    @functools.wraps(method)
    async def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await method(self, self.get_store(), *args, **kwargs)

    return call


def with_llm_proxy(
    required: bool = False,  # noqa: FBT001, FBT002 - Agent-lightning's signature
    auto_start: bool = True,  # noqa: FBT001, FBT002 - as above
) -> Callable[
    [Callable[Concatenate[A, LLMProxy | None, P], Coroutine[Any, Any, R]]],
    Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
]:
    """Decorate an async method of an algorithm. The method receives the LLM proxy, or None, as its first argument.

    Args:
        required: whether a call without a proxy raises ValueError. If false, the method receives None.
        auto_start: whether to start a proxy that does not run before the call, and to stop the proxy afterwards.
    """

    def decorate(
        method: Callable[Concatenate[A, LLMProxy | None, P], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[A, P], Coroutine[Any, Any, R]]:
        @functools.wraps(method)
        async def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
            proxy = self.get_llm_proxy()
            if proxy is None and required:
                raise ValueError(f"{method.__name__} needs an LLM proxy; give one as Trainer(llm_proxy=...)")
            if not auto_start or proxy is None or proxy.is_running:
                return await method(self, proxy, *args, **kwargs)
            async with proxy:
                return await method(self, proxy, *args, **kwargs)

        return call

    return decorate
