"""Early detection of an agent whose first attempts all fail."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from store.errors import Incompatible, StoreError, Unsupported
from store.interface.liveness import WORKER_GONE

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import LoggedEvent

logger = logging.getLogger("store.training.failing")

PATIENCE: Final = 10
"""The number of failed attempts, without a success, after which the training is stopped."""

_BEGUN: Final = "attempt.started"
_ENDED: Final = "attempt.status_changed"
_FAILED: Final = frozenset({"failed", "timeout", "unresponsive"})
# These errors are not caused by the agent.
_INTERRUPTED: Final = frozenset({"interrupted", "drained", "cancelled", "superseded", WORKER_GONE})
_STACK: Final = "exception.stacktrace"


class AgentFails(RuntimeError):
    """The first attempts of a training all failed; the message contains the most common error and its traceback."""


async def first_attempts_fail(store: Store, after: str | None) -> AgentFails:
    """Return an error once `PATIENCE` attempts have failed and none has succeeded.

    If an attempt succeeds first, or the log cannot be read, the call waits until it is cancelled. Only attempts that
    began after the cursor count. An attempt that an earlier, killed training left open does not count. Such an attempt
    may fail after the cursor, because the next training closes it at the beginning.

    Args:
        store: the store of the attempts.
        after: the cursor (a position in the store's log) at which the training begins.
    """
    begun: set[str] = set()
    failures: list[LoggedEvent] = []
    try:
        tail: Any = store.log.tail(after, follow=True, types=[_BEGUN, _ENDED])
        async with aclosing(tail) as events:
            async for event in events:
                if event.type == _BEGUN:
                    begun.add(event.data["attempt_id"])
                    continue
                if event.data["attempt_id"] not in begun:
                    continue
                if event.data["to"] == "succeeded":
                    break
                if event.data["to"] in _FAILED and _error(event).get("type") not in _INTERRUPTED:
                    failures.append(event)
                if len(failures) >= PATIENCE:
                    return await _agent_fails(store, failures)
    except (Unsupported, Incompatible) as error:
        logger.info("failing attempts are not watched: %s", error)
    except StoreError as error:
        logger.warning("failing attempts are no longer watched: %s", error)
    await asyncio.Event().wait()
    raise AssertionError


async def _agent_fails(store: Store, failures: list[LoggedEvent]) -> AgentFails:
    """Return an error that describes the most common failure."""
    messages = [_message(event) for event in failures]
    most_common, times = Counter(messages).most_common(1)[0]
    text = f"the first {len(failures)} attempts all failed, {times} of them with {most_common}"
    event = failures[messages.index(most_common)]
    rollout_id = event.stream.removeprefix("rollout/")
    spans = await store.query_spans(rollout_id, event.data["attempt_id"])
    # The span in which the attempt failed is searched for a traceback first.
    failed_span = _error(event).get("span_id")
    for span in sorted(spans, key=lambda span: span.span_id != failed_span):
        for attributes in (span.attributes, *(event.attributes for event in span.events)):
            if isinstance(stack := attributes.get(_STACK), str) and stack:
                return AgentFails(f"{text}\n\nrollout {rollout_id}:\n{stack.strip()}")
    return AgentFails(f"{text}; see `rollbook show {rollout_id}`")


def _error(event: LoggedEvent) -> dict[str, Any]:
    return event.data.get("error") or {}


def _message(event: LoggedEvent) -> str:
    error = _error(event)
    if not error:
        return str(event.data["to"])
    return f"{error.get('type')}: {error.get('message') or ''}".strip(": ")
