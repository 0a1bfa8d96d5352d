"""Import cycles, including those that only a type checker or a call at run time would meet.

An import counts wherever it stands: at the top, in a function, under `TYPE_CHECKING`, in a stub. A module named by a
string counts where the string is the argument of `import_module` or a value of a dictionary, as in a table of names
that are imported late. `from package import name` counts as an import of the submodule of that name; if there is none,
as an import of the package, which means its `__init__`. Python also runs the `__init__` of every package above a
module; that does not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tests.structure.source import Module, Source

Graph = Mapping[str, frozenset[str]]


def imports(source: Source) -> Graph:
    """Return which modules of a package each of its modules imports."""
    return {name: frozenset(_imported(module, source)) - {name} for name, module in source.modules.items()}


def cycles(source: Source) -> list[list[str]]:
    """Return the groups of modules that reach each other by imports."""
    return sorted(sorted(group) for group in _strongly_connected(imports(source)) if len(group) > 1)


def _imported(module: Module, source: Source) -> Iterator[str]:
    for node in module.nodes:
        match node:
            case ast.Import(names=names):
                candidates = [alias.name for alias in names]
            case ast.ImportFrom(names=names):
                base = _base(node, module)
                inner = [f"{base}.{alias.name}" for alias in names]
                candidates = [name if name in source.modules else base for name in inner]
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"), args=[named, *_]):
                candidates = _strings([named])
            case ast.Dict(values=values):
                candidates = _strings(values)
            case _:
                continue
        yield from (name for name in candidates if name in source.modules)


def _base(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    above = module.package.split(".")
    parts = above[: len(above) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def _strings(values: list[ast.expr]) -> list[str]:
    return [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _strongly_connected(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of a graph, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in order:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in stack:
                lowest[name] = min(lowest[name], order[target])
        if lowest[name] == order[name]:
            start = stack.index(name)
            found.append(stack[start:])
            del stack[start:]

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found
