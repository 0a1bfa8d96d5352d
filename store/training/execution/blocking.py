"""Functions that run a coroutine from code that is not async."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TERMINATED: Final = 128 + signal.SIGTERM


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]], drain: Callable[[], object] | None = None) -> T:
    """Run the coroutine that a function returns in a new event loop, and return the result of the coroutine.

    Args:
        work: the function.
        drain: function that is called at the first SIGTERM; the second cancels the coroutine. With None, the first
            SIGTERM cancels the coroutine.

    Raises:
        RuntimeError: an event loop already runs in this thread.
        KeyboardInterrupt: Ctrl+C was pressed; the coroutine was cancelled and has ended.
        SystemExit: the process received SIGTERM, and the program has no handler for it. The coroutine was drained or
            cancelled, and has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_until_terminated(work, drain))
    raise RuntimeError("an event loop runs in this thread; use `await asyncio.to_thread(trainer.fit, ...)`")


async def _until_terminated(work: Callable[[], Coroutine[Any, Any, T]], drain: Callable[[], object] | None) -> T:
    task = asyncio.current_task()
    assert task is not None  # coroutines run in a task
    terminations = 0

    def terminate() -> None:
        nonlocal terminations
        terminations += 1
        if drain is not None and terminations == 1:
            drain()
        elif terminations == (1 if drain is None else 2):
            # A further cancellation would interrupt the reports of the work that was cancelled.
            task.cancel()

    with on_sigterm(terminate):
        try:
            result = await work()
        except asyncio.CancelledError:
            if terminations > (0 if drain is None else 1):
                raise SystemExit(_TERMINATED) from None
            raise
    if drain is not None and terminations:
        raise SystemExit(_TERMINATED)
    return result


@contextlib.contextmanager
def on_sigterm(act: Callable[[], object]) -> Generator[None]:
    """Call a function if SIGTERM arrives during the `with` block.

    Do nothing if this is not the main thread, or if the signal has another handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if is_main else None
    if handler is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
