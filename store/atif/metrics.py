"""Metrics of steps and of trajectories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from store.atif.form import present
from store.model_calls import ModelCall
from store.model_calls.json_values import Json, as_list, as_object
from store.models import Span

COST: Final = "llm.cost.total"
"""The attribute of a call's span with the cost in USD. OpenInference defines the name."""
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens")


def metrics_of(call: ModelCall, spans: Iterable[Span]) -> Json:
    """Return the metrics of a call. The cost is read from its spans. The result is empty if nothing was recorded."""
    costs = (cost for span in spans if type(cost := span.attributes.get(COST)) in {int, float})
    usage = call.usage
    first = call.choices[0] if call.choices else None
    token_ids = first.token_ids if first is not None else []
    logprobs = _numbers(first.logprobs.get("content")) if first is not None else None
    if logprobs is not None and token_ids and len(logprobs) != len(token_ids):
        logprobs = None  # ATIF requires one value for each token
    return present(
        prompt_tokens=_count(usage.prompt),
        completion_tokens=_count(usage.completion),
        cached_tokens=_count(usage.cached),
        cost_usd=next(costs, None),
        prompt_token_ids=call.prompt_token_ids or None,
        completion_token_ids=token_ids or None,
        logprobs=logprobs,
    )


def final_metrics(steps: Sequence[Json]) -> Json:
    """Return the final metrics of a trajectory: the sums over its steps, and their number."""
    metrics = [as_object(step.get("metrics")) for step in steps]
    sums = {f"total_{name}": _sum(item.get(name) for item in metrics) for name in _COUNTS}
    costs = [cost for item in metrics if (cost := item.get("cost_usd")) is not None]
    return present(**sums, total_cost_usd=math.fsum(costs) if costs else None, total_steps=len(steps))


def _sum(values: Iterable[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _count(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None


def _numbers(entries: Any) -> list[float] | None:
    """Return the log probabilities of all tokens; None without entries, or if a value is not a finite number."""
    values: list[float] = []
    for entry in as_list(entries):
        value: Any = as_object(entry).get("logprob") if isinstance(entry, dict) else entry
        if type(value) not in {int, float} or not math.isfinite(value):
            return None
        values.append(value)
    return values or None
