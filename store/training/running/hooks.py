"""Hooks that are called at the start and the end of each attempt."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from store.errors import Invalid
from store.models import AttemptedRollout, Span

if TYPE_CHECKING:
    from store.training.running.agent import AgentRunner, LitAgent
    from store.training.tracer import Tracer

logger = logging.getLogger("store.training.hooks")

_PASSED: Final = {
    "on_rollout_start": ("agent", "runner", "rollout"),
    "on_trace_start": ("agent", "runner", "tracer", "rollout"),
    "on_trace_end": ("agent", "runner", "tracer", "rollout"),
    "on_rollout_end": ("agent", "runner", "rollout", "spans", "outcome"),
}
"""For each method: the arguments that a parameter `**kwargs` receives."""

_BY_NAME: Final = ("tracer", "task")
"""Further arguments of each method, passed only to parameters of these names."""

_BY_NAME_AT_END: Final = ("status", "error", *_BY_NAME)


class Hook:
    """Base class of hooks, called when an attempt and its trace start and end. Exceptions are logged and ignored.

    A hook need not derive from this class. A hook may define any of the four methods, async or not. A method may
    declare each argument that the same method has below, and also `tracer` and `task` (the input of the rollout), by
    keyword or by position. `on_rollout_end` may also declare `status` (of the attempt), `outcome` (its result) and
    `error` (the exception that ended the attempt, or None). The runner or trainer inspects the parameters once, when it
    receives the hook. It refuses a parameter that has another name and no default.
    """

    async def on_rollout_start(self, *, agent: LitAgent[Any], runner: AgentRunner, rollout: AttemptedRollout) -> None:
        """Handle the start of an attempt, after its claim. No trace is open yet, so no span can be emitted."""

    async def on_trace_start(
        self, *, agent: LitAgent[Any], runner: AgentRunner, tracer: Tracer, rollout: AttemptedRollout
    ) -> None:
        """Handle the opening of the trace, before the agent runs. Emitted spans belong to the attempt."""

    async def on_trace_end(
        self, *, agent: LitAgent[Any], runner: AgentRunner, tracer: Tracer, rollout: AttemptedRollout
    ) -> None:
        """Handle the return of the agent. The agent's reward was recorded, and the trace is still open.

        The method is not called after an error.
        """

    async def on_rollout_end(
        self, *, agent: LitAgent[Any], runner: AgentRunner, rollout: AttemptedRollout, spans: Sequence[Span]
    ) -> None:
        """Handle the end of the attempt. By default, the runner calls the method after it has reported the status.

        `spans` contains all stored spans of the attempt.
        """


class HookCalls:
    """The methods of the hooks in the order in which they are called, and the arguments that each of them declares.

    Args:
        hooks: the hooks; a hook need not define all methods.

    Raises:
        Invalid: a method requires an argument that hooks do not receive.
    """

    def __init__(self, hooks: Iterable[Any] = ()) -> None:
        hooks = list(hooks)
        self._methods = {name: [_bind(hook, name) for hook in hooks if getattr(hook, name, None)] for name in _PASSED}

    async def call(self, name: str, **arguments: Any) -> None:
        """Call a method of each hook in turn. Exceptions are logged.

        Args:
            name: the name of the method.
            arguments: all arguments that the method may declare.
        """
        for method in self._methods[name]:
            try:
                result = method.function(
                    *(arguments[parameter] for parameter in method.positional),
                    **{parameter: arguments[parameter] for parameter in method.named},
                )
                if inspect.isawaitable(result):
                    await result
            except Exception:
                logger.exception("%s of %s failed; the attempt continues", name, method.hook)


@dataclass(frozen=True)
class _Method:
    """A method of a hook.

    Attributes:
        hook: the name of the hook's class.
        function: the bound method.
        positional: the names of positional-only parameters, in order.
        named: the names of the arguments that are passed by keyword.
    """

    hook: str
    function: Any
    positional: tuple[str, ...]
    named: tuple[str, ...]


def _bind(hook: Any, name: str) -> _Method:
    """Return a method of a hook with the arguments that its parameters declare."""
    method = getattr(hook, name)
    hook_name = type(hook).__name__
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        raise Invalid("hooks", f"{name} of {hook_name} is not a function with readable parameters") from None
    passed = _PASSED[name]
    available = dict.fromkeys((*passed, *(_BY_NAME_AT_END if name == "on_rollout_end" else _BY_NAME)))
    positional: list[str] = []
    named: dict[str, None] = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(dict.fromkeys(passed))
        elif parameter.name in available and parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
        elif parameter.name in available and parameter.kind is not parameter.VAR_POSITIONAL:
            named[parameter.name] = None
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.default is parameter.empty:
            arguments = ", ".join(available)
            raise Invalid(
                "hooks",
                f"{name} of {hook_name} requires the argument {parameter.name!r}, which hooks do not receive; "
                f"it may declare {arguments}",
            )
    return _Method(
        hook_name, method, tuple(positional), tuple(argument for argument in named if argument not in positional)
    )
