"""Values of every kind that an agent may pass to the functions that record spans."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from hypothesis import strategies as st


class Textless:
    """An object whose texts cannot be read."""

    def __str__(self) -> str:
        raise LookupError("no text")

    def __repr__(self) -> str:
        raise ValueError("no text either")


class TextlessError(Exception):
    """An exception whose texts cannot be read."""

    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


class Unreadable(Mapping[str, Any]):
    """A mapping that raises an exception when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("not readable")

    def __len__(self) -> int:
        return 1


class Colour(enum.StrEnum):
    """An enumeration of texts."""

    RED = "red"


def endless() -> list[Any]:
    """Return a list that contains itself."""
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def deep(levels: int) -> Any:
    """Return a value that is nested many times."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


TEXTS = st.one_of(
    st.text(st.characters(categories=("L", "N", "P", "Cs", "Cc")), max_size=8),
    st.sampled_from(["\0", "cut \ud83d", "caf\udce9", "\udc00\ud800", "", "😀", "a.b", "x" * 2000]),
)
NUMBERS = st.one_of(
    st.floats(), st.integers(), st.sampled_from([2**63, 2**80, -(2**64), 10**400, float("nan"), float("inf"), 1e308])
)


@dataclass(frozen=True)
class Placeholder:
    """The name of a value in `MAKERS`. Hypothesis prints the name, because some of the values cannot be printed."""

    name: str


MAKERS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"\x00\xff",
    "bytearray": lambda: bytearray(b"x"),
    "complex": lambda: 2j,
    "decimal": lambda: decimal.Decimal("NaN"),
    "date": lambda: dt.date(2026, 1, 1),
    "text enumeration": lambda: Colour.RED,
    "object without text": Textless,
    "class": lambda: Textless,
    "exception": lambda: ValueError("\0"),
    "exception without text": TextlessError,
    "unreadable mapping": Unreadable,
    "integer without text": lambda: 10**5000,
    "list that contains itself": endless,
    "deep": lambda: deep(150),
    "too deep": lambda: deep(5000),
    "key without text": lambda: {Textless(): 1},
    "keys of several types": lambda: {1: 2, "1": 3, (1, 2): "\0"},
    "keys that become equal": lambda: {"a\0": 1, "a\ufffd": 2},
    "list with an object without text": lambda: [Textless(), 1],
    "list of several types": lambda: [2**80, 1.5, "x"],
    "rewards": lambda: {"agentlightning.reward.0.value": float("nan"), "agentlightning.reward": 1},
    "reserved attributes": lambda: {"rollbook.changed": 5, "agentlightning.rollout_id": "\0"},
    "iterator": lambda: iter([1]),
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "function": lambda: print,
}


def build(value: Any) -> Any:
    """Return a value in which the values of `MAKERS` replace their placeholders."""
    match value:
        case Placeholder():
            return MAKERS[value.name]()
        case list():
            return [build(item) for item in cast("list[Any]", value)]
        case tuple():
            return tuple(build(item) for item in cast("tuple[Any, ...]", value))
        case dict():
            return {key: build(item) for key, item in cast("dict[Any, Any]", value).items()}
        case _:
            return value


OTHERS = st.one_of(st.none(), st.sampled_from(list(MAKERS)).map(Placeholder))
KEYS = st.one_of(TEXTS, st.integers(), st.none(), st.floats(), st.just(Colour.RED), st.tuples(st.integers()))
VALUES = st.recursive(
    st.one_of(st.booleans(), NUMBERS, TEXTS, OTHERS),
    lambda values: st.one_of(
        st.lists(values, max_size=3), st.tuples(values, values), st.dictionaries(KEYS, values, max_size=3)
    ),
    max_leaves=6,
)
"""Values of any type, with placeholders that `build` replaces."""
