"""Hooks that are called at the start and the end of each attempt."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from store.models import AttemptedRollout, Span

if TYPE_CHECKING:
    from store.training.agent import AgentRunner, LitAgent
    from store.training.tracer import Tracer

logger = logging.getLogger(__name__)


class Hook:
    """Base class of hooks, called when an attempt and its trace start and end. Exceptions are logged and ignored.

    `on_rollout_end` may also declare `outcome: Outcome | None = None`, the result of the attempt.
    """

    async def on_rollout_start(self, *, agent: LitAgent[Any], runner: AgentRunner, rollout: AttemptedRollout) -> None:
        """Handle the start of an attempt, after its claim. Nothing can be emitted yet."""

    async def on_trace_start(
        self, *, agent: LitAgent[Any], runner: AgentRunner, tracer: Tracer, rollout: AttemptedRollout
    ) -> None:
        """Handle the opening of the trace, before the agent runs. Emitted spans belong to the attempt."""

    async def on_trace_end(
        self, *, agent: LitAgent[Any], runner: AgentRunner, tracer: Tracer, rollout: AttemptedRollout
    ) -> None:
        """Handle the return of the agent, with its reward recorded and the trace still open. Not called after an
        error.
        """

    async def on_rollout_end(
        self, *, agent: LitAgent[Any], runner: AgentRunner, rollout: AttemptedRollout, spans: Sequence[Span]
    ) -> None:
        """Handle the end of the attempt, after its report to the store; `spans` are all its stored spans."""


async def call_hooks(hooks: Sequence[Hook], name: str, /, optional: dict[str, Any] | None = None, **about: Any) -> None:
    """Call a method of each hook in turn; exceptions are logged.

    Args:
        hooks: the hooks in the order of the calls.
        name: the name of the method.
        optional: arguments only for methods that declare them.
        about: arguments for each method.
    """
    for hook in hooks:
        method: Callable[..., Awaitable[None]] = getattr(hook, name)
        try:
            await method(**about, **_declared(method, optional or {}))
        except Exception:
            logger.exception("%s of %s failed; the attempt continues", name, type(hook).__name__)


def _declared(method: Callable[..., Any], optional: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in optional.items() if takes_any or name in parameters}
