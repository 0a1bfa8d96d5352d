"""Threads of agents are reused, never shared, and ended when idle."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from queue import SimpleQueue

import pytest

from store.training.running.agent_threads import AgentThreads

_LONGEST = 30


def _ran(threads: AgentThreads) -> Future[threading.Thread]:
    """Return, once it has begun, which thread something runs in."""
    where: Future[threading.Thread] = Future()
    threads.run(lambda: where.set_result(threading.current_thread()))
    return where


def _again(threads: AgentThreads, first: threading.Thread) -> threading.Thread:
    """Run until the first thread is used again: it is free a moment after what it ran has told so."""
    for _ in range(10_000):
        if _ran(threads).result(_LONGEST) is first:
            return first
    raise AssertionError("a new thread each time")


def test_a_thread_that_is_free_is_used_again() -> None:
    threads = AgentThreads()
    first = _ran(threads).result(_LONGEST)
    assert first.daemon
    assert _again(threads, first) is first


def test_work_never_waits_for_other_work() -> None:
    threads, gate = AgentThreads(), threading.Event()
    begun = SimpleQueue[threading.Thread]()

    def work() -> None:
        begun.put(threading.current_thread())
        gate.wait(_LONGEST)

    for _ in range(20):
        threads.run(work)
    assert len({begun.get(timeout=_LONGEST) for _ in range(20)}) == 20
    gate.set()


def test_a_thread_that_has_nothing_to_do_ends() -> None:
    thread = _ran(threads := AgentThreads(idle_seconds=0.01)).result(_LONGEST)
    thread.join(_LONGEST)
    assert not thread.is_alive()
    assert _ran(threads).result(_LONGEST) is not thread


def test_work_that_meets_a_thread_about_to_end_is_done() -> None:
    threads = AgentThreads(idle_seconds=0.0001)
    for _ in range(300):
        assert _ran(threads).result(_LONGEST)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_threads_of_its_own() -> None:
    threads = AgentThreads()
    _again(threads, _ran(threads).result(_LONGEST))
    child = os.fork()
    if child == 0:
        # Whatever happens, the child must not go on with the tests.
        status = 1
        try:
            status = 0 if _ran(threads).result(_LONGEST) else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
