"""State of the machine, which a worker sends with its heartbeats."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import time
from importlib import import_module
from typing import Any, Final

from store.runtime.process import this_process

_GB: Final = 1024**3
_MB: Final = 1024**2
_GPU_QUERY: Final = {
    "gpu": "name",
    "util_pct": "utilization.gpu",
    "mem_used_mb": "memory.used",
    "mem_total_mb": "memory.total",
    "temp_c": "temperature.gpu",
}


def snapshot(*, include_gpu: bool = False) -> dict[str, Any]:
    """Return the state of this machine and the identity of this process, with the field names of Agent-lightning 0.3.

    Memory and disk are in GB (2**30 bytes), network traffic since boot is in MB (2**20 bytes). Fields whose names end
    in `_pct` are in percent. Values from psutil are left out if psutil is not installed.

    Args:
        include_gpu: whether to add the values of `nvidia-smi` for each GPU.
    """
    disk = shutil.disk_usage("/")
    state: dict[str, Any] = {
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "os": platform.platform(terse=True),
        "cpu_name": platform.processor() or platform.machine(),
        "cpu_threads": os.cpu_count(),
        "disk_used_gb": round(disk.used / _GB, 2),
        "disk_total_gb": round(disk.total / _GB, 2),
        "disk_pct": round(100 * disk.used / disk.total, 1),
        **this_process(),
    }
    with contextlib.suppress(ImportError):
        psutil: Any = import_module("psutil")
        memory, traffic = psutil.virtual_memory(), psutil.net_io_counters()
        state |= {
            "cpu_cores": psutil.cpu_count(logical=False),
            "cpu_usage_pct": psutil.cpu_percent(),
            "mem_used_gb": round(memory.used / _GB, 2),
            "mem_total_gb": round(memory.total / _GB, 2),
            "mem_pct": memory.percent,
            "bytes_sent_mb": round(traffic.bytes_sent / _MB, 2) if traffic else 0.0,
            "bytes_recv_mb": round(traffic.bytes_recv / _MB, 2) if traffic else 0.0,
        }
    if include_gpu:
        state["gpus"] = _gpus()
    return state


def _gpus() -> list[dict[str, Any]]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_QUERY.values())}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.strip()]
    return [dict(zip(_GPU_QUERY, map(_number, row), strict=False)) for row in rows]


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
