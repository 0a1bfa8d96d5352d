"""The cost of the LLM proxy per call, compared with a bare reverse proxy of aiohttp in the same run."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.benchmarks.protocol import Side
from tests.benchmarks.report import Report
from tests.benchmarks.rounds import NewURL, Scale

pytestmark = pytest.mark.benchmark

CALLERS = (1, 16)


class Stage:
    """The processes: those who call, and the ways to the model."""

    def __init__(self, stack: ExitStack, store_url: str) -> None:
        self.caller, model, bare, self.ours = (
            stack.enter_context(Side(Path(sys.executable), "proxy_side")) for _ in range(4)
        )
        direct = model.ask("model")
        urls = self.ours.ask("ours", url=direct, store_url=store_url)
        self.ways = {"direct": direct, "bare": bare.ask("bare", url=direct), **urls}
        self._sides = {"direct": model, "bare": bare, "passing": self.ours, "recording": self.ours}

    def round(self, callers: int, calls: int, *, stream: bool) -> dict[str, dict[str, float]]:
        """Call every way, and return the median latency of each, and what a call costs its process, in milliseconds."""
        return {way: self._measured(way, callers, calls, stream=stream) for way in self.ways}

    def _measured(self, way: str, callers: int, calls: int, *, stream: bool) -> dict[str, float]:
        before = self._sides[way].ask("cpu")
        taken = self.caller.ask("call", url=self.ways[way], callers=callers, calls=calls, stream=stream)
        return {"p50": taken["p50"], "cpu": (self._sides[way].ask("cpu") - before) / calls}


@pytest.fixture(scope="module")
def stage(sqlite_url: NewURL) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack, sqlite_url())


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("callers", CALLERS)
def test_latency(stage: Stage, report: Report, scale: Scale, callers: int, is_stream: bool) -> None:
    calls = max(50, round(scale.seconds * 500))
    stage.round(callers, 20, stream=is_stream)
    rounds = [stage.round(callers, calls, stream=is_stream) for _ in range(scale.rounds)]
    told = ", ".join(
        f"{way} {_median(rounds, way, 'p50'):.2f} ms (CPU {_median(rounds, way, 'cpu'):.2f})" for way in stage.ways
    )
    # Round by round, since other work on the machine slows all of a round alike.
    passing, recording = (
        statistics.median(one[way]["p50"] / one["bare"]["p50"] for one in rounds) for way in ("passing", "recording")
    )
    key = f"proxy.{'stream' if is_stream else 'whole'}.{callers}"
    report.figure(key, passing, f"{told}; recording ÷ bare {recording:.2f}")
    report.raw(key, rounds)


def _median(rounds: list[dict[str, dict[str, float]]], way: str, figure: str) -> float:
    return statistics.median(one[way][figure] for one in rounds)
