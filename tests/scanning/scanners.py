"""Functions of scanners that processes import. Their results depend on the input of the rollout."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from store import AttemptRecord


def is_even(record: AttemptRecord) -> tuple[bool, str]:
    """Return whether the number is even, with an explanation."""
    number = record.rollout.input["n"]
    return number % 2 == 0, f"it is {number}"


async def is_big(record: AttemptRecord) -> bool:
    """Return whether the number is at least 5."""
    await asyncio.sleep(0)
    return record.rollout.input["n"] >= 5


def unreliable(record: AttemptRecord) -> Any:
    """Fail in different ways for small numbers; match for others."""
    match record.rollout.input["n"]:
        case 0:
            raise ValueError("no answer")
        case 1:
            return None
        case 2:
            os._exit(7)
        case 3:
            time.sleep(600)
        case _:
            pass
    return True


def verbose(record: AttemptRecord) -> tuple[bool, str]:
    """Match with an explanation that is long, and has a character that the log cannot store."""
    return True, "a\x00" + "é" * 50_000


def slow(record: AttemptRecord) -> bool:
    """Take a moment."""
    time.sleep(0.02)
    return True
