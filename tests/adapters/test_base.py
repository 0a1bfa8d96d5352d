"""The base classes of adapters: a subclass defines `adapt`, and calling an adapter is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from store import Span
from store.training import (
    Adapter,
    LlmProxyTraceToTriplet,
    TraceAdapter,
    TracerTraceToTriplet,
    TraceToMessages,
    Trainer,
)


class Lengths(Adapter[Sequence[str], list[int]]):
    def adapt(self, source: Sequence[str], /) -> list[int]:
        return [len(text) for text in source]


class Names(TraceAdapter[list[str]]):
    def adapt(self, source: Sequence[Span], /) -> list[str]:
        return [span.name for span in source]


def test_calling_an_adapter_adapts() -> None:
    assert Lengths()(["a", "bcd"]) == Lengths().adapt(["a", "bcd"]) == [1, 3]


def test_an_adapter_without_adapt_names_itself() -> None:
    class Empty(TraceAdapter[Any]):
        pass

    with pytest.raises(NotImplementedError, match="Empty does not override adapt"):
        Empty()([])


@pytest.mark.parametrize("kind", [TracerTraceToTriplet, LlmProxyTraceToTriplet, TraceToMessages])
def test_the_adapters_of_the_package_are_trace_adapters(kind: type[TraceAdapter[Any]]) -> None:
    assert issubclass(kind, TraceAdapter)
    assert kind()([]) == kind().adapt([]) == []


def test_a_trainer_takes_one() -> None:
    mine = Names()
    assert Trainer(store="memory://", adapter=mine).adapter is mine
