"""Identity of processes: the cached id of the current process, and a check whether another local process still runs."""

import os
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

number = os.getpid()
"""The id of this process."""
_worker_prefix: str | None = None


def _forked() -> None:
    global number  # noqa: PLW0603 (the child is another process)
    number = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def this_process() -> dict[str, Any]:
    """Return the fields that identify this process uniquely, even if its pid is reused."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "pid_started": started_at(os.getpid())}


def owner() -> dict[str, Any]:
    """Return the identity of this process in the log: host, pid and start time in µs.

    The start time differs if a pid is used again.
    """
    return _owner(number)


@cache
def _owner(pid: int) -> dict[str, Any]:
    try:
        started = Path(f"/proc/{pid}").stat().st_ctime
    except OSError:
        started = time.time() - time.process_time()
    return {"host": socket.gethostname(), "pid": pid, "started": int(started * 1_000_000)}


def name_workers(prefix: str) -> None:
    """Set the prefix of the names of this process's workers, which replaces the host and the process id."""
    global _worker_prefix  # noqa: PLW0603 (the process has one name)
    _worker_prefix = prefix


def worker_name(number: int, pid: int | None = None) -> str:
    """Return the name `<host>-<pid>-<number>` of a worker. No worker of another process has this name.

    Args:
        number: the number of the worker in its process.
        pid: the id of the worker's process; None for this process.
    """
    if pid is None and _worker_prefix is not None:
        return f"{_worker_prefix}-{number}"
    # The host's name is cached, because a runner asks for its name several times in each attempt.
    this = owner()
    return f"{this['host']}-{this['pid'] if pid is None else pid}-{number}"


def started_at(pid: int) -> int | None:
    """Return the start time of a process of this machine, in clock ticks since the machine's start.

    The result is None if the process is gone, or if the system does not have `/proc`.

    The start time and the pid together identify a process, because pids are reused.
    """
    try:
        # The program's name, in parentheses, may contain any character. The fields after it are numbered from 3, and
        # field 22 is the start time.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def is_gone(process: Mapping[str, Any]) -> bool:
    """Return whether a process ran on this machine and no longer runs.

    Args:
        process: the fields that `this_process` returned in that process.
    """
    host, pid, started = process.get("host"), process.get("pid"), process.get("pid_started")
    if host != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    if os.name == "posix":  # other systems have no signal 0
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
    now = started_at(pid)
    return now is not None and started is not None and now != started
