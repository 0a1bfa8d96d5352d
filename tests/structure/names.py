"""Counts of names that say nothing about their subject."""

from __future__ import annotations

import ast

from tests.structure.source import Source

_AVOIDED = frozenset({"found", "given", "wanted", "known", "shown", "kept", "made", "each", "whole", "own"})
_AVOIDED_IN_TESTS = frozenset({"what", "who", "told", "said", "nobody", "whoever"})


def avoided_bindings(source: Source) -> list[str]:
    """Return `module:line name` of each parameter and each assignment to a name that is a participle or a pronoun."""
    bindings = [
        (name, node.lineno, node.arg if isinstance(node, ast.arg) else node.id)
        for name, module in sorted(source.modules.items())
        for node in module.nodes
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    return [f"{name}:{line} {bound}" for name, line, bound in bindings if bound in _AVOIDED]


def avoided_test_names(source: Source) -> list[str]:
    """Return `module:line name` of each test function whose name contains a word that a claim does not need."""
    return [
        f"{name}:{node.lineno} {node.name}"
        for name, module in sorted(source.modules.items())
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not _AVOIDED_IN_TESTS.isdisjoint(node.name.split("_"))
    ]
