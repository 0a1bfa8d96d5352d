"""Base class of agents, and the decorators that turn functions into agents."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, cast, overload

from typing_extensions import TypeVar

from store.errors import Invalid
from store.models import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Resource, Rollout
from store.training.tracing.scope import current_scope

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.tracer import Tracer

T = TypeVar("T", default=Any)
R = TypeVar("R", bound=Resource)
F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("store.training.agent")

_ASYNC_METHODS: Final = ("training_rollout_async", "validation_rollout_async", "rollout_async")
_BY_NAME: Final = ("llm", "prompt_template", "resources", "rollout")
_KINDS: Final[Mapping[str, type[Resource]]] = {"llm": LLM, "prompt_template": PromptTemplate}
_MISSPELT: Final = 0.85
"""The similarity (0 to 1) above which a parameter with a default counts as a misspelt name."""
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class UnsupportedSignature(Invalid, NotImplementedError):
    """The parameters of a decorated function do not fit an agent. The message contains the reason."""


class AgentRunner(Protocol):
    """The part of a runner that agents and hooks use."""

    tracer: Tracer

    @property
    def agent(self) -> LitAgent[Any]:
        """The agent."""
        ...

    @property
    def store(self) -> Store:
        """The store."""
        ...

    @property
    def label(self) -> str:
        """The name of the worker in the store."""
        ...

    def get_agent(self) -> LitAgent[Any]:
        """Return `agent`."""
        ...

    def get_store(self) -> Store:
        """Return `store`."""
        ...

    def get_worker_id(self) -> str:
        """Return `label`."""
        ...


class LitAgent(Generic[T]):
    """Base class of agents. An agent does a task and returns a reward, spans or nothing.

    Subclasses must override `rollout` or `rollout_async`.

    The runner calls `training_rollout` for rollouts with mode "train", and `validation_rollout` for all others. By
    default, both call `rollout`; override them if the agent behaves differently in training. For an async agent, the
    runner calls the methods with the suffix `_async`.

    An agent may return None; a number or a dict of numbers with a key "primary", which is recorded as the reward; or a
    list of spans to record: OpenTelemetry's spans, the store's spans or `SpanCoreFields`.
    """

    def __init__(self, *, trained_agents: str | None = None) -> None:
        self.trained_agents = trained_agents
        """The agents of a trace whose calls are used for training. The adapters of this package ignore this value."""
        self._runner: weakref.ref[Any] | None = None
        self._trainer: weakref.ref[Any] | None = None

    def is_async(self) -> bool:
        """Return whether the runner calls the async methods. It does so if the class overrides an async method."""
        return any(getattr(type(self), name) is not getattr(LitAgent, name) for name in _ASYNC_METHODS)

    def set_runner(self, runner: AgentRunner) -> None:
        """Set the runner that the property `runner` returns outside of an attempt."""
        self._runner = weakref.ref(runner)

    def set_trainer(self, trainer: Any) -> None:
        """Set the trainer that the agent belongs to."""
        self._trainer = weakref.ref(trainer)

    @property
    def runner(self) -> AgentRunner:
        """The runner of the current attempt; outside of an attempt, the runner that was set last.

        Raises:
            ValueError: there is no runner.
        """
        scope = current_scope()
        runner = scope.runner if scope is not None else None
        runner = runner or (self._runner() if self._runner is not None else None)
        if runner is None:
            raise ValueError("the agent has no runner; run it with runner.init(agent) or a Trainer")
        return cast("AgentRunner", runner)

    @property
    def trainer(self) -> Any:
        """The trainer.

        Raises:
            ValueError: there is no trainer.
        """
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is None:
            raise ValueError("the agent has no trainer; it is set by Trainer.fit")
        return trainer

    @property
    def tracer(self) -> Tracer:
        """The tracer of the runner.

        Raises:
            ValueError: there is no runner.
        """
        return self.runner.tracer

    def get_runner(self) -> AgentRunner:
        """Return `runner`."""
        return self.runner

    def get_trainer(self) -> Any:
        """Return `trainer`."""
        return self.trainer

    def get_tracer(self) -> Tracer:
        """Return `tracer`."""
        return self.tracer

    def missing_resource(self, resources: NamedResources | None) -> str | None:
        """Return a required resource that `resources` lacks, such as "an LLM"; None if no resource is missing.

        A runner claims no rollouts until the store has resources that the agent can use. By default, any resources are
        enough. An agent that needs no resources overrides this method and returns None.

        Args:
            resources: the resources; None if the store has no resources.
        """
        return "resources" if resources is None else None

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task.

        Args:
            task: the rollout's input.
            resources: the resources that the algorithm published, by name.
            rollout: the rollout, with its attempt.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    async def rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task, as `rollout` does."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    def training_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout with mode "train"."""
        return self.rollout(task, resources=resources, rollout=rollout)

    def validation_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout with another mode, or without a mode."""
        return self.rollout(task, resources=resources, rollout=rollout)

    async def training_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout with mode "train"."""
        return await self.rollout_async(task, resources=resources, rollout=rollout)

    async def validation_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout with another mode, or without a mode."""
        return await self.rollout_async(task, resources=resources, rollout=rollout)


class FunctionalLitAgent(LitAgent[Any]):
    """Agent that calls a function. Calling the agent calls the function directly.

    The function receives `task`, and may declare further parameters: `llm`, the first language model among the
    resources; `prompt_template`, the first prompt template among the resources; `resources`, all resources; and
    `rollout`. A parameter `llm` or `prompt_template` with a default keeps its default if there is no such resource. A
    function that declares none of `llm`, `prompt_template` and `resources` needs no resources.

    Args:
        function: a sync or async function.
        strip_proxy: whether to pass a `ProxyLLM` as an `LLM` whose endpoint is the proxy's address for the attempt.
    """

    def __init__(self, function: Callable[..., Any], *, strip_proxy: bool = True) -> None:
        super().__init__()
        self._function = function
        self._strip_proxy = strip_proxy
        self._is_async = inspect.iscoroutinefunction(function)
        parameters = inspect.signature(function).parameters
        self._declared = frozenset(parameters)
        self._required = frozenset(
            name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty
        )
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    def is_async(self) -> bool:
        """Return whether the function is async."""
        return self._is_async

    def missing_resource(self, resources: NamedResources | None) -> str | None:
        """Return the first declared resource that has no default and that `resources` lacks; None if all exist."""
        for name, kind in _KINDS.items():
            if name in self._required and not _of_kind(resources or {}, kind):
                return f"{'an' if name == 'llm' else 'a'} {kind.__name__}"
        return "resources" if "resources" in self._required and resources is None else None

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Call the function with the arguments that it declares.

        Raises:
            RuntimeError: the function is async.
            ValueError: the function declares a resource that does not exist, or its model is a `ProxyLLM` to convert
                and the rollout has no attempt.
        """
        if self._is_async:
            raise RuntimeError(f"{self._name} is async; call rollout_async")
        return self._function(task, **self._injected(resources, rollout))

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Call the function with the arguments that it declares.

        Raises:
            RuntimeError: the function is not async.
            ValueError: the function declares a resource that does not exist, or its model is a `ProxyLLM` to convert
                and the rollout has no attempt.
        """
        if not self._is_async:
            raise RuntimeError(f"{self._name} is not async; call rollout")
        called: Awaitable[Any] = self._function(task, **self._injected(resources, rollout))
        return await called

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)

    def _injected(self, resources: NamedResources, rollout: Rollout) -> dict[str, Any]:
        injected: dict[str, Any] = {}
        if "rollout" in self._declared:
            injected["rollout"] = rollout
        if "resources" in self._declared:
            injected["resources"] = resources
        if self._takes("llm", resources):
            llm = _first(resources, LLM)
            if self._strip_proxy and isinstance(llm, ProxyLLM):
                if not isinstance(rollout, AttemptedRollout):
                    raise ValueError(
                        f"rollout {rollout.rollout_id} has no attempt, so the proxy cannot record its calls"
                    )
                llm = LLM(
                    endpoint=llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
                    model=llm.model,
                    api_key=llm.api_key,
                    sampling_parameters=llm.sampling_parameters,
                )
            injected["llm"] = llm
        if self._takes("prompt_template", resources):
            injected["prompt_template"] = _first(resources, PromptTemplate)
        return injected

    def _takes(self, name: str, resources: NamedResources) -> bool:
        return name in self._required or (name in self._declared and bool(_of_kind(resources, _KINDS[name])))


def _of_kind(resources: Mapping[str, Resource], kind: type[R]) -> dict[str, R]:
    return {name: resource for name, resource in resources.items() if isinstance(resource, kind)}


def _first(resources: Mapping[str, Resource], kind: type[R]) -> R:
    matches = _of_kind(resources, kind)
    if not matches:
        raise ValueError(f"the agent needs a {kind.__name__}, but the resources {sorted(resources)} contain none")
    name, first = next(iter(matches.items()))
    if len(matches) > 1:
        logger.warning("there are %d resources of kind %s; %r, the first, is used", len(matches), kind.__name__, name)
    return first


@overload
def llm_rollout(func: Callable[..., Any], *, strip_proxy: bool = True) -> FunctionalLitAgent: ...
@overload
def llm_rollout(
    func: None = None, *, strip_proxy: bool = True
) -> Callable[[Callable[..., Any]], FunctionalLitAgent]: ...
def llm_rollout(func: Callable[..., Any] | None = None, *, strip_proxy: bool = True) -> Any:
    """Return an agent that calls a function `(task, llm)`, which may declare further parameters as for `rollout`.

    Args:
        func: the function.
        strip_proxy: whether to pass a `ProxyLLM` as an `LLM` whose endpoint is the proxy's address for the attempt.

    Raises:
        UnsupportedSignature: the function has no parameter `llm`, or one of the reasons of `rollout` applies.
    """

    def decorate(function: Callable[..., Any]) -> FunctionalLitAgent:
        _check(function, "llm")
        return FunctionalLitAgent(function, strip_proxy=strip_proxy)

    return decorate if func is None else decorate(func)


@overload
def prompt_rollout(func: Callable[..., Any]) -> FunctionalLitAgent: ...
@overload
def prompt_rollout(func: None = None) -> Callable[[Callable[..., Any]], FunctionalLitAgent]: ...
def prompt_rollout(func: Callable[..., Any] | None = None) -> Any:
    """Return an agent that calls a function `(task, prompt_template)`, which may declare further parameters.

    The further parameters are those of `rollout`.

    Raises:
        UnsupportedSignature: the function has no parameter `prompt_template`, or one of the reasons of `rollout`
            applies.
    """

    def decorate(function: Callable[..., Any]) -> FunctionalLitAgent:
        _check(function, "prompt_template")
        return FunctionalLitAgent(function)

    return decorate if func is None else decorate(func)


def rollout(func: Callable[..., Any]) -> FunctionalLitAgent:
    """Return an agent that calls a sync or async function whose first parameter is `task`.

    The function may declare any of `llm`, `prompt_template`, `resources` and `rollout`, in any order, and further
    parameters with a default; see `FunctionalLitAgent`.

    Raises:
        UnsupportedSignature: the first parameter is not `task`; another parameter has neither one of these names nor a
            default; a parameter with a default has nearly one of these names, so it is probably misspelt; or a
            parameter with one of these names cannot be passed by name. The message suggests the name that is meant.
    """
    _check(func)
    return FunctionalLitAgent(func)


def _check(function: Callable[..., Any], needed: str | None = None) -> None:
    signature = inspect.signature(function)
    reason = _mismatch(list(signature.parameters.values()), needed)
    if reason is not None:
        name = getattr(function, "__name__", type(function).__name__)
        shape = ", ".join(("task", *([needed] if needed else []), "…"))
        raise UnsupportedSignature(
            f"{name}{signature}",
            f"the function is not an agent, because {reason}; it needs ({shape}), with any of {', '.join(_BY_NAME)}",
        )


def _mismatch(parameters: list[inspect.Parameter], needed: str | None) -> str | None:
    """Return the reason why a function with these parameters cannot be an agent; None for the function of an agent."""
    names = {parameter.name for parameter in parameters}
    if not parameters or parameters[0].name != "task" or parameters[0].kind not in _POSITIONAL:
        first = parameters[0].name if parameters else ""
        return "its first parameter is not task" + _suggestion(first, {"task"} - names)
    for parameter in parameters[1:]:
        if parameter.name in _BY_NAME:
            if parameter.kind not in _NAMED:
                return f"{parameter} cannot be passed by name"
        elif parameter.kind not in _VARIADIC:
            unused = set(_BY_NAME) - names
            if parameter.default is inspect.Parameter.empty:
                return f"there is no value for {parameter.name}, which has no default" + _suggestion(
                    parameter.name, unused
                )
            if suggestion := _suggestion(parameter.name, unused, _MISSPELT):
                return f"the runner passes no {parameter.name}" + suggestion
    if needed is not None and needed not in names:
        return f"no parameter is {needed}"
    return None


def _suggestion(name: str, candidates: Collection[str], similarity: float = 0.6) -> str:
    """Return a question that contains the candidate most similar to a name; an empty string if none is similar."""
    close = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=similarity)
    return f" (did you mean {close[0]}?)" if close else ""
