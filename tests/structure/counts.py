"""Counts of a package's source: modules, lines, class names, tests of a class, places that spell out a query."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.structure.source import Module, Source

QUERIES = {
    "query_spans": (
        frozenset({"trace_id", "trace_id_contains", "span_id", "span_id_contains"})
        | frozenset({"parent_id", "parent_id_contains", "name", "name_contains"}),
        5,
    ),
    "query_rollouts": (
        frozenset({"status_in", "rollout_id_in", "rollout_id_contains", "status", "rollout_ids"}),
        3,
    ),
}
"""By query the arguments that it shares with few others, and how many of them make a place. A model of a span has four
of the first."""

CALLS = {
    "save_checkpoint": (
        frozenset({"scope", "name", "state", "after_phase", "external", "key", "graph"}),
        6,
        frozenset[str](),
    ),
    "enqueue_rollout": (
        frozenset({"input", "mode", "resources_id", "config", "metadata"}),
        5,
        frozenset({"rollout_id", "worker_id"}),
    ),
}
"""By call some of its arguments, how many of them make a place, and arguments that only other calls have."""


def loose_modules(source: Source) -> list[str]:
    """Return the modules directly under a package that are not packages, its own `__init__` left out."""
    return [
        name
        for name, each in source.modules.items()
        if name.count(".") == source.package.count(".") + 1 and not each.is_package
    ]


def code_lines(source: Source) -> int:
    """Return how many lines hold code: all but those that are blank or hold nothing but a comment or a docstring."""
    return sum(map(_code_lines, source.modules.values()))


def _code_lines(module: Module) -> int:
    documented: set[int] = set()
    for node in module.nodes:
        # A docstring, also one that follows a field.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, module.text.splitlines()), start=1)
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in documented)


def shared_class_names(source: Source) -> dict[str, list[str]]:
    """Return the public names of classes that are defined in several modules, with these modules."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, module in source.modules.items():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(name)
    return {name: sorted(modules) for name, modules in sorted(found.items()) if len(modules) > 1}


def class_tests(source: Source, kind: str) -> list[str]:
    """Return `module:line` of each `isinstance` and each `case` that asks whether an object is of a class."""
    return [
        f"{name}:{classes.lineno}"
        for name, module in sorted(source.modules.items())
        for node in module.nodes
        if (classes := _tested_classes(node)) is not None and kind in _names(classes)
    ]


def _tested_classes(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]) | ast.MatchClass(cls=classes):
            return classes
        case _:
            return None


def _names(expression: ast.expr) -> set[str]:
    parts = [part for part in ast.walk(expression) if isinstance(part, ast.Name | ast.Attribute)]
    return {part.id if isinstance(part, ast.Name) else part.attr for part in parts}


def places(source: Source, query: str) -> list[str]:
    """Return the places that spell out the arguments of a query: each has to change when the query gets one more.

    A place is the signature of a function, the annotated fields of a class, the keywords of a call or the keys of a
    dictionary that name at least as many of the query's own arguments as `QUERIES` says. One call is no place of its
    own: that with which a function whose signature is a place makes an object of a class that is one, by `Class(…)` or
    `Class.of(…)`.
    """
    names, least = QUERIES[query]
    found = [
        (name, node)
        for name, module in sorted(source.modules.items())
        for node in module.nodes
        if len(names & _named(node)) >= least
    ]
    classes = {node.name for _, node in found if isinstance(node, ast.ClassDef)}
    conversions = {
        inner
        for _, node in found
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and classes & {*ast.unparse(inner.func).split(".")}
    }
    shown = [(name, getattr(node, "lineno", 0), _label(node)) for name, node in found if node not in conversions]
    return [f"{name}:{line} {label}" for name, line, label in sorted(shown)]


def places_of_call(source: Source, call: str) -> list[str]:
    """Return the places that spell out the arguments of a changing call: each may have to change with the call.

    A place is what `places` says. No places are uses: a call of the method, and an object of a class that is a place.
    """
    names, least, others = CALLS[call]
    nodes = [
        (name, node)
        for name, module in sorted(source.modules.items())
        for node in module.nodes
        if len(names & _named(node)) >= least and not others & _named(node)
    ]
    used = {node.name for _, node in nodes if isinstance(node, ast.ClassDef)} | {call}
    uses = {
        part
        for module in source.modules.values()
        for node in module.nodes
        if isinstance(node, ast.Call) and used & {*ast.unparse(node.func).split(".")}
        for part in (node, *node.args)
    }
    found = [(name, getattr(node, "lineno", 0), _label(node)) for name, node in nodes if node not in uses]
    return [f"{name}:{line} {label}" for name, line, label in sorted(found)]


def _named(node: ast.AST) -> set[str]:
    match node:
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
            return {each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        case ast.ClassDef(body=body):
            fields = [each.target for each in body if isinstance(each, ast.AnnAssign)]
            return {each.id for each in fields if isinstance(each, ast.Name)}
        case ast.Call(keywords=keywords):
            return {each.arg for each in keywords if each.arg is not None}
        case ast.Dict(keys=keys):
            return {each.value for each in keys if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        case _:
            return set()


def _label(node: ast.AST) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return f"def {name}"
        case ast.ClassDef(name=name):
            return f"class {name}"
        case ast.Call(func=func):
            return f"{ast.unparse(func)}(…)"
        case _:
            return "{…}"
