"""Print the figures of the code's structure, and exit with 1 if one is over its limit: `python -m tests.structure`.

With `--list` also what was counted. A limit is what holds today; it goes down with the figure, towards the goal.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from store import HTTPStore
from store.sql.store import SQLStore
from tests.structure.calls import measured
from tests.structure.counts import (
    CALLS,
    QUERIES,
    class_tests,
    code_lines,
    loose_modules,
    places,
    places_of_call,
    shared_class_names,
)
from tests.structure.cycles import cycles
from tests.structure.functions import functions, private_functions
from tests.structure.names import avoided_bindings, avoided_test_names
from tests.structure.rows import positional_reads
from tests.structure.source import ROOT, Source

LIMITS: dict[str, tuple[int | None, int | None]] = {
    "modules directly under store/": (5, 5),
    "import cycles": (0, 0),
    "inheritance depth of SQLStore": (3, 3),
    "inheritance depth of HTTPStore": (3, 3),
    "methods of SQLStore": (52, 50),
    "methods of HTTPStore": (52, 50),
    "public methods of SQLStore": (50, 50),
    "public methods of HTTPStore": (50, 50),
    "places that spell out query_spans": (2, 2),
    "places that spell out query_rollouts": (2, 2),
    "places that spell out save_checkpoint": (3, 3),
    "places that spell out enqueue_rollout": (4, 4),
    "functions passed by add_span": (58, 45),
    "files passed by add_span": (18, 12),
    "hops of get_rollout_by_id": (4, 4),
    "hops of query_rollouts": (6, 6),
    "class names defined in several modules": (10, 10),
    "isinstance(…, SQLStore) in server/": (0, 0),
    "private functions with one use, in %": (56, 40),
    "lines of the longest function": (80, 80),
    "most parameters outside of interface/": (14, 14),
    "variables named by a participle": (11, 11),
    "tests named by a pronoun": (0, 0),
    "rows read by position": (0, 0),
    "lines of code": (None, 57_000),
    "files": (None, None),
    "lines of code in testing/": (None, None),
    "files in testing/": (None, None),
    "lines of code in examples/": (None, None),
    "files in examples/": (None, None),
}
"""Limit and goal of each figure; None for a figure that is only printed, or that has no goal."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was counted."""

    value: int
    items: Sequence[str] = ()
    """Each thing that was counted, where a list of them helps."""


def counted(items: Sequence[str]) -> Figure:
    """Return the length of a list."""
    return Figure(len(items), items)


def most(counts: Mapping[str, int]) -> Figure:
    """Return the highest of some counts, and list the ten highest."""
    highest = sorted(counts.items(), key=itemgetter(1), reverse=True)[:10]
    return Figure(max(counts.values(), default=0), [f"{count} {label}" for label, count in highest])


def of_source() -> dict[str, Figure]:
    """Return the figures that reading the source gives."""
    store, tests = Source.of(ROOT / "store"), Source.of(ROOT / "tests")
    product = store.without("store.testing")
    shared = [f"{name}: {', '.join(modules)}" for name, modules in shared_class_names(product).items()]
    figures = {
        "modules directly under store/": counted(loose_modules(store)),
        "import cycles": counted([" ↔ ".join(group) for group in cycles(store)]),
        "class names defined in several modules": counted(shared),
        "isinstance(…, SQLStore) in server/": counted(class_tests(store.within("store.server"), "SQLStore")),
        "variables named by a participle": counted(avoided_bindings(store)),
        "tests named by a pronoun": counted(avoided_test_names(tests) + avoided_test_names(store)),
        # The rows that drivers and the schema read have no names.
        "rows read by position": counted(
            positional_reads(product.without("store.db.drivers", "store.db.schema", "store.examples"))
        ),
    }
    for query in QUERIES:
        figures[f"places that spell out {query}"] = counted(places(product, query))
    for call in CALLS:
        figures[f"places that spell out {call}"] = counted(places_of_call(product, call))
    apart = {name: store.within(f"store.{name}") for name in ("testing", "examples")}
    without_apart = product.without("store.examples")
    for name, source in {"": without_apart, **apart}.items():
        where = f" in {name}/" if name else ""
        figures[f"lines of code{where}"] = Figure(code_lines(source))
        figures[f"files{where}"] = Figure(len(source.modules))
    private = private_functions(without_apart)
    figures["private functions with one use, in %"] = Figure(private.percentage, private.with_one_use)
    figures["lines of the longest function"] = most({one.label: one.lines for one in functions(store)})
    outside = functions(store.without("store.interface"))
    figures["most parameters outside of interface/"] = most({one.label: one.parameters for one in outside})
    return figures


def of_classes() -> dict[str, Figure]:
    """Return the figures of the two stores."""
    found: dict[str, Figure] = {}
    for store in (SQLStore, HTTPStore):
        found[f"inheritance depth of {store.__name__}"] = counted(depth(store))
        of_store = methods(store)
        found[f"methods of {store.__name__}"] = counted(of_store)
        found[f"public methods of {store.__name__}"] = counted([name for name in of_store if name[0] != "_"])
    return found


def of_calls() -> dict[str, Figure]:
    """Return the figures of what calls pass."""
    passed = measured()
    found = {
        "functions passed by add_span": counted(passed["add_span"].functions),
        "files passed by add_span": counted(sorted(passed["add_span"].files)),
    }
    for read in ("get_rollout_by_id", "query_rollouts"):
        found[f"hops of {read}"] = counted(passed[read].hops)
    return found


def depth(kind: type) -> list[str]:
    """Return the longest line of base classes of the package, the class itself first."""
    if not f"{kind.__module__}.".startswith("store."):
        return []
    return [kind.__name__, *max(map(depth, kind.__bases__), key=len)]


def methods(kind: type) -> list[str]:
    """Return the methods and properties that a class has or inherits within the package, private ones included."""
    ours = [base for base in kind.__mro__ if f"{base.__module__}.".startswith("store.")]
    names = {name for base in ours for name, value in vars(base).items() if _is_method(value)}
    return sorted(names)


def _is_method(value: object) -> bool:
    # Not the getters that every class has for its instances' dictionary.
    is_property = isinstance(value, property | cached_property)
    return is_property or inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)


def main() -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="also print what was counted")
    shows_items = parser.parse_args().list
    figures = of_source() | of_classes() | of_calls()
    print(f"{'structure of store/':<42}{'now':>8}{'limit':>8}{'goal':>8}")
    over: list[str] = []
    for name, (limit, goal) in LIMITS.items():
        figure = figures[name]
        is_over = limit is not None and figure.value > limit
        shown = ["" if each is None else f"{each:,}" for each in (figure.value, limit, goal)]
        print(f"{name:<42}{shown[0]:>8}{shown[1]:>8}{shown[2]:>8}{'  over the limit' * is_over}")
        if is_over:
            over.append(name)
        if is_over or shows_items:
            for item in figure.items:
                print(f"    {item}")
    if over:
        print(f"over the limit of {__package__}: {', '.join(over)}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
