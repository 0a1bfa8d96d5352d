"""Prices of models, and the costs that follow from usage. Decision 109."""

from __future__ import annotations

import math
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, ValidationError

from store.errors import Invalid
from store.models.enums import Frozen
from store.models.usage import UsageKey, UsageReport, UsageSum

_MILLION: Final = 1_000_000
_DOLLAR: Final = "USD"
_ANY: Final = "*"

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelPrice(Frozen):
    """Prices of a model for a million tokens."""

    model_config = ConfigDict(extra="forbid")

    input: Price
    output: Price
    cached_input: Price | None = None
    """The price of prompt tokens that were read from a cache; None if it equals `input`."""
    cache_write: Price | None = None
    """The price of prompt tokens that were written to a cache; None if it equals `input`."""

    def cost(self, usage: UsageSum) -> float:
        """Return the cost of the tokens of calls."""
        cached, written = usage.tokens_cached or 0, usage.tokens_written or 0
        fresh = max((usage.tokens_in or 0) - cached - written, 0)
        cost = fresh * self.input + (usage.tokens_out or 0) * self.output
        cost += cached * (self.input if self.cached_input is None else self.cached_input)
        cost += written * (self.input if self.cache_write is None else self.cache_write)
        return cost / _MILLION


class CostLine(Frozen):
    """The usage and the cost of the calls with one key. A number is None if it is unknown for every call."""

    key: dict[str, str | int | None]
    models: list[str]
    """The names of the models, sorted."""
    calls: int
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    tokens_written: int | None
    tokens_reasoning: int | None
    cost: float | None
    """The cost of `priced_calls`."""
    priced_calls: int
    """The number of calls whose cost is known."""

    @property
    def name(self) -> str:
        """The key as text, such as `300` or `prompts v2`; `total` for the sum over all keys."""
        if not self.key:
            return "total"
        values = [str(value) for value in self.key.values() if value is not None]
        return " v".join(values) or "–"  # noqa: RUF001 - the placeholder for a missing value


class CostReport(Frozen):
    """Costs of the selected rollouts."""

    by: UsageKey
    currency: str
    total: CostLine
    lines: list[CostLine]
    keys: int
    """The number of all keys, including those that `limit` leaves out."""
    unpriced_models: list[str]
    """The models without a price that have calls with known tokens and no reported cost."""
    position: int
    """The position of the last event that is included."""
    head: int
    """The position of the last event of the log."""


class PriceTable(Frozen):
    """Prices by name of the model. A name such as `qwen*` applies to all models whose names begin with `qwen`.

    The exact name has precedence. Of several names with `*`, the longest applies.
    """

    model_config = ConfigDict(extra="forbid")

    currency: str = Field(default=_DOLLAR, min_length=1, max_length=8)
    dollar: Price | None = None
    """The value of a US dollar in the currency. Reported costs are multiplied by it.

    If it is None, reported costs count only if the currency is USD.
    """
    models: dict[str, ModelPrice] = Field(default_factory=dict[str, ModelPrice])

    @classmethod
    def read(cls, path: Path | None) -> PriceTable:
        """Return the prices in a TOML file, or an empty table if the path is None.

        Raises:
            Invalid: the file cannot be read, is not TOML, or has an invalid price.
        """
        if path is None:
            return cls()
        try:
            content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise Invalid(
                "prices", f"{path} cannot be read: {error.strerror}; correct the path or its permissions"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid("prices", f"{path} is not TOML: {error}; correct the file") from None
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(str(part) for part in fault["loc"])
            raise Invalid("prices", f"{path}: {place}: {fault['msg']}; docs/cost.md describes the file") from None

    def price_of(self, model: str | None) -> ModelPrice | None:
        """Return the price of a model; None if the model has no price."""
        if model is None:
            return None
        price = self.models.get(model)
        if price is not None and not model.endswith(_ANY):
            return price
        starts = [name for name in self.models if name.endswith(_ANY) and model.startswith(name[:-1])]
        return self.models[max(starts, key=len)] if starts else None

    def cost_of(self, usage: UsageSum) -> float | None:
        """Return the cost of calls: the reported cost, or else the price of their tokens; None if it is unknown."""
        dollar = 1.0 if self.currency == _DOLLAR and self.dollar is None else self.dollar
        if usage.cost is not None and dollar is not None:
            return usage.cost * dollar
        price = self.price_of(usage.model)
        has_tokens = usage.tokens_in is not None or usage.tokens_out is not None
        return price.cost(usage) if price is not None and has_tokens else None

    def costs(self, report: UsageReport) -> CostReport:
        """Return the costs of usage. There is a line for each key, in the order of the report."""
        by_key: defaultdict[tuple[Any, ...], list[UsageSum]] = defaultdict(list)
        for usage in report.sums:
            by_key[tuple(usage.key.values())].append(usage)
        unpriced = {
            usage.model or "–"  # noqa: RUF001 - the placeholder for a missing value
            for usage in report.total
            if usage.source == "counted" and self.cost_of(usage) is None
        }
        return CostReport(
            by=report.by,
            currency=self.currency,
            total=self._line({}, report.total),
            lines=[self._line(sums[0].key, sums) for sums in by_key.values()],
            keys=report.keys,
            unpriced_models=sorted(unpriced),
            position=report.position,
            head=report.head,
        )

    def _line(self, key: dict[str, str | int | None], sums: Sequence[UsageSum]) -> CostLine:
        costs = [(usage, cost) for usage in sums if (cost := self.cost_of(usage)) is not None]
        return CostLine(
            key=key,
            models=sorted({usage.model for usage in sums if usage.model is not None}),
            calls=sum(usage.calls for usage in sums),
            **{name: _total([getattr(usage, name) for usage in sums]) for name in _TOKENS},
            cost=math.fsum(cost for _, cost in costs) if costs else None,
            priced_calls=sum(usage.calls for usage, _ in costs),
        )


_TOKENS: Final = ("tokens_in", "tokens_out", "tokens_cached", "tokens_written", "tokens_reasoning")


def _total(numbers: Sequence[int | None]) -> int | None:
    """Return the sum of the numbers that are not None; None if all are None."""
    reported = [number for number in numbers if number is not None]
    return sum(reported) if reported else None


def cost_text(cost: float | None, currency: str) -> str:
    """Return a cost with its currency: two decimals, or three significant digits below one."""
    if cost is None:
        return "–"  # noqa: RUF001 - the placeholder for a missing value
    decimals = 2 if cost >= 1 or cost == 0 else min(2 - math.floor(math.log10(cost)), 12)
    return f"{cost:,.{decimals}f} {currency}"
