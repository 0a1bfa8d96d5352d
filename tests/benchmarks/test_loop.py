"""The training loop: cost of tracing, rollouts per second, and latency that the LLM proxy adds to a call.

They are compared in the same run with the bare OpenTelemetry SDK, Agent-lightning's loop, and a bare reverse proxy.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.conftest import load
from tests.benchmarks.protocol import Side
from tests.benchmarks.report import TIMES, Report, Target, at_most
from tests.benchmarks.rounds import Measured, NewURL, alternate, median, ratio
from tests.interop.peer import environment
from tests.peer_environment import PeerMissing

pytestmark = pytest.mark.benchmark

RUNNERS = (1, 8, 32)
BUSY = 32
CALLERS = (1, 16)

TARGETS = {
    "span": at_most("tracing: a span in the agent's thread, CPU", "µs", 50, 35),
    **{
        f"rollouts.{runners}": Target(f"rollouts/s ÷ peer's trainer, {_runners}, SQLite", TIMES, 5, 10)
        for runners, _runners in ((1, "1 runner"), (8, "8 runners"), (32, "32 runners"))
    },
    "rollouts.postgres": Target("rollouts/s ÷ peer's trainer, 32 runners, Postgres", TIMES, 5, 10),
    **{
        f"proxy.{way}.{form}.{callers}": at_most(
            f"LLM proxy, {way}: added to a {form} ÷ bare httpx proxy, {callers} at once", TIMES, must, 1
        )
        for way, must in (("passing", 1.5), ("recording", 1.5))
        for form in ("call", "stream")
        for callers in CALLERS
    },
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to measure."""

    rounds: int
    spans: int
    rollouts: int
    """Of our side in one round, by one runner; more runners have up to four times as many."""
    calls: int

    def rollouts_of(self, runners: int) -> int:
        return self.rollouts * min(runners, 4)


_QUICK = Scale(2, 1_000, 32, 30)
_FULL = Scale(3, 5_000, 100, 80)
# The peer is given less of what it is slow at, so that the sides take about as long.
_PEER_SHARE = 4


@pytest.fixture(scope="module")
def scale() -> Scale:
    """How much to measure: a full run takes minutes, one with ROLLBOOK_BENCH_QUICK=1 about one."""
    return _QUICK if os.environ.get("ROLLBOOK_BENCH_QUICK") else _FULL


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """The figures; printed at the end, however it ends."""
    print()
    report = Report(TARGETS, "bench-loop")
    report.fact("load average before", load())
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


@pytest.fixture(scope="module")
def loop() -> Iterator[Side]:
    with Side(Path(sys.executable), "loop_side") as side:
        yield side


@pytest.fixture(scope="module")
def peer_loop(report: Report) -> Iterator[Side | None]:
    """The peer's loop; None, and said so, where it cannot be installed."""
    try:
        python = environment().python()
    except PeerMissing as missing:
        report.fact("peer", f"none, only our own figures follow: {missing}")
        yield None
        return
    # litellm would fetch a list of prices from the network.
    with Side(python, "loop_peer_side", {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}) as side:
        report.fact(
            "peer",
            f"Agent-lightning {side.ask('hello')}, its Trainer, its OtelTracer and its store in memory; a process for "
            "each runner and its server between them, since it runs one attempt at a time in a process",
        )
        yield side


def test_cost_of_a_span(loop: Side, report: Report, scale: Scale, sqlite_url: NewURL) -> None:
    rounds = loop.ask("spans", url=sqlite_url(), count=scale.spans, rounds=scale.rounds)
    report.raw("span", rounds)
    detail = (
        f"bare SDK {median(rounds, 'bare'):.0f} µs; time that passes {median(rounds, 'ours_wall'):.0f} µs, bare"
        f" {median(rounds, 'bare_wall'):.0f} µs, of which another thread converts and stores"
    )
    report.figure("span", median(rounds, "ours"), detail)


def test_rollouts(
    loop: Side, peer_loop: Side | None, report: Report, scale: Scale, sqlite_url: NewURL, postgres_url: NewURL
) -> None:
    for runners in RUNNERS:
        count = scale.rollouts_of(runners)
        sides = {"sqlite": _rollouts(loop, sqlite_url, runners, count)}
        if runners == BUSY:
            sides["postgres"] = _rollouts(loop, postgres_url, runners, count)
        if peer_loop is not None:
            sides["peer"] = _trained(peer_loop, runners, max(count // _PEER_SHARE, runners))
        measured = alternate(scale.rounds, sides)
        report.raw(f"rollouts.{runners}", measured)
        _note_rollouts(report, runners, measured)
    if peer_loop is not None:
        alone = [peer_loop.ask("alone", count=scale.rollouts) for _ in range(scale.rounds)]
        told = f"{median(alone):,.0f}/s: one runner on a store in the same process, nothing kept and no server between"
        report.fact("peer without its trainer", told)


def _rollouts(loop: Side, new_url: NewURL, runners: int, count: int) -> Callable[[], dict[str, Any]]:
    return lambda: loop.ask("rollouts", url=new_url(), runners=runners, count=count)


def _trained(peer: Side, runners: int, count: int) -> Callable[[], dict[str, Any]]:
    return lambda: peer.ask("trained", runners=runners, count=count)


def _note_rollouts(report: Report, runners: int, measured: Measured) -> None:
    peer = measured.get("peer")
    for name, key in (("sqlite", f"rollouts.{runners}"), ("postgres", "rollouts.postgres")):
        ours = measured.get(name)
        if ours is None:
            continue
        told = (
            f"{median(ours):,.0f}/s, {median(ours, 'cpu_ms'):.1f} ms CPU and {median(ours, 'commits'):.1f} commits each"
        )
        if peer is None:
            report.fact(TARGETS[key].title, told)
        else:
            report.figure(key, ratio(ours, peer), f"{told}; peer {median(peer):,.0f}/s")


class Stage:
    """The processes: those who call, and the ways to the model."""

    def __init__(self, stack: ExitStack, store_url: str) -> None:
        self._caller, model, bare, ours = (
            stack.enter_context(Side(Path(sys.executable), "loop_proxy_side")) for _ in range(4)
        )
        direct = model.ask("model")
        self._ways = {"direct": direct, "bare": bare.ask("httpx", url=direct)}
        self._ways |= ours.ask("ours", url=direct, store_url=store_url)

    def latencies(self, callers: int, calls: int, *, stream: bool) -> dict[str, float]:
        """Call every way, and return the median latency of each in milliseconds."""
        return {
            way: self._caller.ask("call", url=url, callers=callers, calls=calls, stream=stream)["p50"]
            for way, url in self._ways.items()
        }


@pytest.fixture(scope="module")
def stage(sqlite_url: NewURL) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack, sqlite_url())


@pytest.mark.parametrize("form", ["call", "stream"])
@pytest.mark.parametrize("callers", CALLERS)
def test_latency_added_by_the_proxy(stage: Stage, report: Report, scale: Scale, callers: int, form: str) -> None:
    is_stream = form == "stream"
    stage.latencies(callers, 20, stream=is_stream)
    # Many short rounds, each way in each: what else the machine does falls on all of them.
    rounds = [stage.latencies(callers, scale.calls, stream=is_stream) for _ in range(scale.rounds * 3)]
    report.raw(f"proxy.{form}.{callers}", rounds)
    p50 = {way: statistics.median(one[way] for one in rounds) for way in rounds[0]}
    added = {way: statistics.median(one[way] - one["direct"] for one in rounds) for way in p50}
    for way in ("passing", "recording"):
        key = f"proxy.{way}.{form}.{callers}"
        told = f"p50 {p50[way]:.2f} ms, bare {p50['bare']:.2f} ms, the model itself {p50['direct']:.2f} ms"
        if added["bare"] > 0:
            report.figure(key, added[way] / added["bare"], told)
        else:
            report.fact(TARGETS[key].title, f"nothing to be told on a machine that is busy with other things: {told}")
