"""What may be told of each attempt, without any say in it."""

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
    """Is told when an attempt and its trace start and end. What it raises is logged, and changes nothing.

    `on_rollout_end` may also declare `outcome: Outcome | None = None`: how the attempt ended.
    """

    async def on_rollout_start(self, *, agent: LitAgent[Any], runner: AgentRunner, rollout: AttemptedRollout) -> None:
        """An attempt was claimed; nothing was done yet, and nothing can be emitted."""

    async def on_trace_start(
        self, *, agent: LitAgent[Any], runner: AgentRunner, tracer: Tracer, rollout: AttemptedRollout
    ) -> None:
        """The trace is open; the agent runs next. What is emitted is part of the attempt."""

    async def on_trace_end(
        self, *, agent: LitAgent[Any], runner: AgentRunner, tracer: Tracer, rollout: AttemptedRollout
    ) -> None:
        """The agent has returned, and its reward is recorded; the trace is still open. Left out if it raised."""

    async def on_rollout_end(
        self, *, agent: LitAgent[Any], runner: AgentRunner, rollout: AttemptedRollout, spans: Sequence[Span]
    ) -> None:
        """The attempt is over and reported to the store; `spans` are all that it stored."""


async def call_hooks(hooks: Sequence[Hook], name: str, /, optional: dict[str, Any] | None = None, **about: Any) -> None:
    """Call a method of each hook in turn; what one raises is logged.

    Args:
        hooks: in the order in which they are called.
        name: of the method.
        optional: what only methods get that declare it.
        about: what each method gets.
    """
    for hook in hooks:
        method: Callable[..., Awaitable[None]] = getattr(hook, name)
        try:
            await method(**about, **_declared(method, optional or {}))
        except Exception:
            logger.exception("%s of %s failed; the attempt goes on", name, type(hook).__name__)


def _declared(method: Callable[..., Any], optional: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in optional.items() if takes_any or name in parameters}
