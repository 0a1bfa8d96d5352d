"""Usage of models: calls, tokens and reported costs, summed over rollouts. Decision 109."""

from __future__ import annotations

from typing import Literal

from store.models.enums import Frozen

UsageKey = Literal["all", "step", "group", "version", "model", "mode", "run"]
"""The division of a sum: `all` is one sum, `version` one for each version of resources, `run` one for each run."""
CostSource = Literal["reported", "counted", "unknown"]
"""The basis of the cost of calls: a reported cost, or else numbers of tokens, or neither."""


class UsageSum(Frozen):
    """The usage of the calls with one key, one model and one basis of their cost.

    A call that several spans record counts once. A number is None if no call reported it.
    """

    key: dict[str, str | int | None]
    """The values of the division by name, such as `{"step": 300}`; empty for the sum over all rollouts."""
    model: str | None
    source: CostSource
    calls: int
    tokens_in: int | None = None
    """All tokens of the prompts, including `tokens_cached` and `tokens_written`."""
    tokens_out: int | None = None
    """All tokens of the responses, including `tokens_reasoning`."""
    tokens_cached: int | None = None
    """The tokens of the prompts that the provider read from a cache."""
    tokens_written: int | None = None
    """The tokens of the prompts that the provider wrote to a cache."""
    tokens_reasoning: int | None = None
    cost: float | None = None
    """The sum of the reported costs, in US dollars."""


class UsageReport(Frozen):
    """Usage of the selected rollouts at one position of the log."""

    by: UsageKey
    sums: list[UsageSum]
    total: list[UsageSum]
    """The sums of all selected rollouts by model and basis, also of those that `limit` leaves out."""
    keys: int
    """The number of all keys, also of those that `limit` leaves out."""
    position: int
    """The position of the last event that is included."""
    head: int
    """The position of the last event of the log."""
