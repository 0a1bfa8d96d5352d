"""Our adapters in strict mode and Agent-lightning's, on the same spans."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from itertools import product
from typing import Any

from agentlightning.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from agentlightning.adapter.triplet import RewardMatchPolicy

from store.adapters import messages, triplets
from store.errors import Invalid
from tests.interop.inside import traces
from tests.interop.inside.claims import arguments, claims_of, hold, stay_on_this_machine

# Thousands under ROLLBOOK_TORTURE=1, as everywhere; a tenth of them otherwise.
TRACES = 2_000 if os.environ.get("ROLLBOOK_TORTURE") else 200
SETTINGS: list[dict[str, Any]] = [
    {"repair_hierarchy": repairs, "agent_match": agent, "reward_match": policy, "_skip_empty_token_spans": skips}
    for repairs, agent, policy, skips in product(
        (True, False), (None, "writer|planner"), RewardMatchPolicy, (False, True)
    )
] + [{"exclude_llm_call_in_reward": False}, {"llm_call_match": r"completion|tool"}]


async def the_documented_example_gives_the_same(_: None) -> None:
    example = traces.example()
    inside = [
        span.model_copy(update={"parent_id": "root", "start_time": 19.5, "end_time": 19.5}) for span in example[-1:]
    ]
    for spans in (example, example[:-1], example[:-1] + inside):
        for setting in SETTINGS:
            assert _compared(spans, setting) is not None


async def thousands_of_traces_give_the_same(_: None) -> None:
    results = [_compared(traces.by_lot(seed), SETTINGS[seed % len(SETTINGS)], seed) for seed in range(TRACES)]
    _tell("traces of a tracer", results)


async def thousands_of_traces_of_a_proxy_give_the_same(_: None) -> None:
    ours = triplets.LlmProxyTraceToTriplet(strict_upstream=True)
    results: list[list[Any] | None] = []
    for seed in range(TRACES):
        spans = traces.by_lot(seed, proxy=True)
        theirs = _result(LlmProxyTraceToTriplet(), spans)
        assert _result(ours, spans) == theirs, seed
        results.append(theirs)
    _tell("traces of a proxy", results)


async def our_defaults_raise_for_none_of_these_traces(_: None) -> None:
    for seed in range(TRACES // 4):
        triplets.TracerTraceToTriplet(**SETTINGS[seed % len(SETTINGS)]).adapt(traces.by_lot(seed))
        triplets.LlmProxyTraceToTriplet().adapt(traces.by_lot(seed, proxy=True))


async def thousands_of_chats_give_the_same_messages(_: None) -> None:
    results: list[list[Any] | None] = []
    for seed in range(TRACES):
        spans = traces.chat_by_lot(seed)
        theirs = _messages(TraceToMessages(), spans)
        ours = _messages(messages.TraceToMessages(), spans)
        assert theirs is None or ours == theirs, (seed, ours, theirs)
        results.append(theirs)
    _tell("chats", results)


def _compared(spans: list[Any], setting: dict[str, Any], seed: int = 0) -> list[Any] | None:
    theirs = _result(TracerTraceToTriplet(**setting), spans)
    ours = _result(triplets.TracerTraceToTriplet(**setting, strict_upstream=True), spans)
    assert ours == theirs, (seed, setting, ours, theirs)
    return theirs


def _result(adapter: Any, spans: list[Any]) -> list[Any] | None:
    """Return the triplets as plain data, None where the adapter raises; ours may only do so in its own way."""
    try:
        return [triplet.model_dump() for triplet in adapter.adapt(spans)]
    except Invalid:
        return None
    except Exception:
        if type(adapter).__module__.startswith("store."):
            raise
        return None


def _messages(adapter: Any, spans: list[Any]) -> list[Any] | None:
    try:
        return list(adapter.adapt(spans))
    except Exception:
        if type(adapter).__module__.startswith("store."):
            raise
        return None


def _tell(what: str, results: Iterable[list[Any] | None]) -> None:
    """Print what was compared, and see that it was not nothing."""
    every = list(results)
    refused = sum(one is None for one in every)
    equal = [triplet for one in every if one for triplet in one]
    print(f"{len(every):,} {what}: {len(equal):,} results the same, {refused:,} refused by both", flush=True)
    assert len(equal) > len(every) / 2
    assert 0 < refused < len(every) / 2


async def _main() -> None:
    options = arguments()
    logging.disable(logging.CRITICAL)
    await hold(claims_of(__name__), None, options)


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(_main())
