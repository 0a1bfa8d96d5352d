"""Metrics of the resources that a process uses. Measuring them needs no database."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

from store.runtime.metrics_text import Family


def process() -> list[Family]:
    """Return the resources that this process uses, under the metric names of the official Prometheus clients."""
    times = os.times()
    families = [
        Family("process_cpu_seconds_total", "Processor time, user and system.", "counter").set(
            times.user + times.system
        ),
        Family("process_start_time_seconds", "Start time of the process in seconds since the epoch.").set(_STARTED),
        Family("process_max_fds", "Maximum number of open files and sockets.").set(
            resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        ),
        Family("process_resident_memory_bytes", "Memory in use.").set(_resident_bytes()),
    ]
    descriptors = Path("/dev/fd")
    if descriptors.is_dir():
        # The listing itself opens a descriptor.
        open_now = sum(1 for _ in descriptors.iterdir()) - 1
        families.append(Family("process_open_fds", "Files and sockets that are open.").set(open_now))
    return families


_STARTED: Final = time.time()


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        # Systems without /proc report only the peak: macOS in bytes, others in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
