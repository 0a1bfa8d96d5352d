"""Hooks that are called at the start and the end of each attempt.

An attempt is one execution of a rollout, a task for an agent.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from store.models import AttemptedRollout, Span

if TYPE_CHECKING:
    from store.training.agent import AgentRunner, LitAgent
    from store.training.tracer import Tracer

logger = logging.getLogger(__name__)


class Hook:
    """Base class of hooks, called when an attempt and its trace start and end. Exceptions are logged and ignored.

    A hook need not derive from this class. It may define any of the four methods, async or not. A method may declare
    any of the arguments below, by keyword or by position. `on_rollout_end` may also declare `outcome`, the result of
    the attempt, and `error`, the exception that ended the attempt or None.
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
        """Handle the end of the attempt. By default, its status was reported before. `spans` are all stored spans."""


async def call_hooks(hooks: Sequence[Any], name: str, /, optional: dict[str, Any] | None = None, **about: Any) -> None:
    """Call a method of each hook in turn; exceptions are logged.

    Args:
        hooks: the hooks in the order of the calls; a hook without the method is skipped.
        name: the name of the method.
        optional: further arguments, passed only to methods that declare them by name; `**kwargs` does not receive them.
        about: arguments of the method; each method gets those that it declares.
    """
    for hook in hooks:
        try:
            method: Callable[..., Any] | None = getattr(hook, name, None)
            if method is None:
                continue
            positional, named = _declared(method, about, optional or {})
            called = method(*positional, **named)
            if inspect.isawaitable(called):
                await called
        except Exception:
            logger.exception("%s of %s failed; the attempt continues", name, type(hook).__name__)


def _declared(
    method: Callable[..., Any], about: dict[str, Any], optional: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that a method declares: a list for its positional-only parameters, a dict for the others."""
    given = {**about, **optional}
    parameters = inspect.signature(method).parameters.values()
    first = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY and each.name in given]
    named = {each.name for each in parameters} & given.keys()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        named |= about.keys()
    return [given[name] for name in first], {name: given[name] for name in given if name in named.difference(first)}
