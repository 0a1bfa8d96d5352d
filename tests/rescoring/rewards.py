"""Reward functions that the processes of rescorings import. The input of a rollout says how a function behaves."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from store import AttemptRecord

HANG_SECONDS = 600


def helpful(record: AttemptRecord) -> Any:
    """Return a value with dimensions that show what the function was given."""
    (conversation,) = record.messages
    return {
        "value": record.rollout.input["n"] - 2.0,
        "dimensions": {"spans": len(record.spans), "recorded": record.reward or 0.0},
        "explanation": str(conversation["messages"][-1]["content"]),
    }


def later(record: AttemptRecord) -> float:
    """Return another value than `helpful`."""
    return float(record.rollout.input["n"])


def behaving(record: AttemptRecord) -> Any:
    """Behave as the input says."""
    match record.rollout.input["n"]:
        case 0:
            raise ValueError("no \x00answer " + "x" * 500)
        case 1:
            return float("nan")
        case 2:
            return "text"
        case 3:
            return {"score": 1}
        case 4:
            raise SystemExit("left")
        case 5:
            os._exit(7)
        case 6:
            os.kill(os.getpid(), signal.SIGKILL)
        case 7:
            time.sleep(HANG_SECONDS)
        case 8:
            return {"value": 1, "dimensions": {"bad\nname": 1.0}}
        case number:
            print(number)
            return number
    return None


class Unreadable(BaseException):
    """An error of a package in another language, whose message cannot be read."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def blocking(record: AttemptRecord) -> float:
    """Call code that hangs in a thread for most inputs, and code that raises an unusual error for one."""
    number = record.rollout.input["n"]
    if number == 9:
        raise Unreadable
    if number < 8:
        await asyncio.to_thread(time.sleep, HANG_SECONDS)
    return float(await asyncio.to_thread(lambda: number))


def talkative(record: AttemptRecord) -> Any:
    """Explain at length."""
    return {"value": record.rollout.input["n"], "explanation": os.urandom(30_000).hex()}


async def judge(record: AttemptRecord) -> float:
    """Wait as for a model, and behave as the input says."""
    number = record.rollout.input["n"]
    await asyncio.sleep(0.01)
    if number == 1:
        await asyncio.sleep(HANG_SECONDS)
    if number == 2:
        time.sleep(HANG_SECONDS)  # noqa: ASYNC251 - it blocks the event loop
    if number == 3:
        os._exit(7)
    return float(number)


def random_reward(record: AttemptRecord) -> float:
    """Return another value each time, except for even inputs."""
    number = record.rollout.input["n"]
    return time.perf_counter() if number % 2 else float(number)


def slow(record: AttemptRecord) -> float:
    """Take as long as a small check of an answer."""
    time.sleep(0.005)
    return float(record.rollout.input["n"])
