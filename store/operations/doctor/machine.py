"""Checks of this machine: the limit of open files, and the port of a server."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from store.operations.doctor.results import Verdict, ok, warning
from store.operations.doctor.target import Target
from store.wire.probe import who_answers

_LEAST_SOFT: Final = 1024
_LEAST_HARD: Final = 4096
_LISTENING: Final = "0A"
_CONNECT_SECONDS: Final = 1.0


async def check_open_files(target: Target) -> Verdict:
    """Check the number of files and connections that a process may open."""
    del target
    return open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def open_files(soft: int, hard: int) -> Verdict:
    """Return the result for the limits of a process. `RLIM_INFINITY` means that there is no limit."""
    soft_text, hard_text = ("unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard))
    text = f"a process may open {soft_text} files, and a server raises its limit to at most {hard_text}"
    if resource.RLIM_INFINITY != hard < _LEAST_HARD:
        remedy = "set LimitNOFILE=65536 in the service, or nofile in /etc/security/limits.conf"
        return warning(f"{text}; every runner needs one or two connections", remedy)
    if resource.RLIM_INFINITY != soft < _LEAST_SOFT:
        return warning(f"{text}; runners and pools may need more", f"ulimit -n {_LEAST_HARD}")
    return ok(text)


def clocks(other_time: float, before: float, after: float, tolerance: float) -> Verdict:
    """Return the result for the clocks of this machine and of another one.

    Args:
        other_time: the time of the other machine, in seconds since the epoch.
        before: the time of this machine before it requested that time.
        after: the time of this machine when it had received that time.
        tolerance: the difference in seconds that is not reported.
    """
    ahead = other_time - min(max(other_time, before), after)
    if abs(ahead) <= tolerance:
        return ok(f"the clocks of the server and of this machine differ by at most {tolerance:g} s")
    relation = "ahead of" if ahead > 0 else "behind"
    text = f"the clock of the server is {abs(ahead):.1f} s {relation} the clock of this machine"
    return warning(text, "set both clocks: timedatectl set-ntp true")


async def check_port(target: Target) -> Verdict:
    """Check whether another program listens on the port of `rollbook serve`."""
    return await asyncio.to_thread(_port, target.port)


def _port(port: int) -> Verdict:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return ok(f"no program listens on port {port}")
    program = who_answers("127.0.0.1", port)
    holder = _holder(port)
    text = f"{program} listens on port {port}" + (f" ({holder})" if holder else "")
    if program.startswith("a Rollbook server"):
        return ok(text)
    return warning(text, f"stop it, or choose another port: rollbook serve --port {port + 1}")


def _holder(port: int) -> str | None:
    """Return the process that listens on a port; None if it belongs to another user, or /proc does not show it."""
    links = {f"socket:[{inode}]" for inode in _inodes(port)}
    for directory in Path("/proc").glob("[0-9]*/fd") if links else ():
        # Processes end while they are listed, and the files of other users cannot be read.
        with suppress(OSError):
            if any(str(file.readlink()) in links for file in directory.iterdir()):
                name = (directory.parent / "comm").read_text().strip()
                return f"process {directory.parent.name}, {name}"
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for row in table.read_text().splitlines()[1:]:
                _, address, _, state, *rest = row.split()
                if state == _LISTENING and int(address.rpartition(":")[2], 16) == port:
                    yield rest[5]
