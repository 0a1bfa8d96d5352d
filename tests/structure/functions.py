"""Counts of functions: private ones with one use, lines, parameters."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from tests.structure.source import Source


@dataclass(frozen=True, slots=True)
class PrivateFunctions:
    """The private functions and methods of a package."""

    total: int
    with_one_use: list[str]
    """`module:line name` of those whose name is mentioned once."""

    @property
    def percentage(self) -> int:
        """The share of those with one use, rounded up."""
        return -(-100 * len(self.with_one_use) // max(self.total, 1))


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, nested ones included."""

    label: str
    """`module:line name`."""
    name: str
    lines: int
    """From `def` to the last line, the docstring included."""
    parameters: int
    """Of every kind, `self` included."""


def functions(source: Source) -> list[Function]:
    """Return the functions of a package."""
    return [
        Function(
            f"{name}:{node.lineno} {node.name}",
            node.name,
            (node.end_lineno or node.lineno) - node.lineno + 1,
            _parameters(node.args),
        )
        for name, module in sorted(source.modules.items())
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _parameters(arguments: ast.arguments) -> int:
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None)


def private_functions(source: Source) -> PrivateFunctions:
    """Return the functions whose names begin with exactly one underscore.

    A use is a mention of the name in the same module, as a name or as an attribute, also inside the function itself.
    The definition is no use, and neither is an import elsewhere. Functions of one module with the same name share their
    uses.
    """
    total, with_one_use = 0, list[str]()
    for name, module in source.modules.items():
        uses = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in module.nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        private = [
            function
            for function in functions(Source(source.package, {name: module}))
            if function.name.startswith("_") and not function.name.startswith("__")
        ]
        total += len(private)
        with_one_use += [function.label for function in private if uses[function.name] == 1]
    return PrivateFunctions(total, with_one_use)
