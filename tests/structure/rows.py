"""Reads of a database row by the position of a column instead of its name."""

from __future__ import annotations

import ast

from tests.structure.source import Source


def positional_reads(source: Source) -> list[str]:
    """Return `module:line expression` of each positional read of a row.

    A row is a variable or parameter `row` or `*_row`, an item of `rows` or `*_rows`, or the first row of an awaited
    call. A positional read is a subscript of a row by a number, a slice or a constant such as `_WIDTH`, the unpacking
    of a row into several variables, the unpacking of a row into arguments or into a new tuple, and a loop over `rows`
    or an awaited `fetch` that unpacks more than two columns: pairs are readable.
    """
    reads = [
        (name, read.lineno, ast.unparse(read))
        for name, module in source.modules.items()
        for read in map(_read, module.nodes)
        if read is not None
    ]
    return [f"{name}:{line} {text}" for name, line, text in sorted(reads)]


def _read(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Subscript(value=row, slice=position, ctx=ast.Load()) if _is_row(row) and _is_position(position):
            return node
        case ast.Starred(value=row, ctx=ast.Load()) if _is_row(row):
            return node
        case ast.Assign(targets=[ast.Tuple() as names], value=row) if _is_row(row) and len(names.elts) > 1:
            return names
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            names = node.target
            return names if isinstance(names, ast.Tuple) and len(names.elts) > 2 and _are_rows(node.iter) else None
        case _:
            return None


def _is_row(expression: ast.expr) -> bool:
    match expression:
        case ast.Name(id=name):
            return name == "row" or name.endswith("_row")
        case ast.Subscript(value=ast.Name(id=name), slice=position):
            return (name == "rows" or name.endswith("_rows")) and _is_position(position)
        case ast.Subscript(value=ast.Await(), slice=ast.Constant(value=int())):
            return True
        case _:
            return False


def _are_rows(expression: ast.expr) -> bool:
    match expression:
        case ast.Name(id=name):
            return name == "rows" or name.endswith("_rows")
        case ast.Await(value=ast.Call(func=ast.Attribute(attr="fetch"))):
            return True
        case _:
            return False


def _is_position(expression: ast.expr) -> bool:
    match expression:
        case ast.Slice() | ast.Constant(value=int()):
            return True
        case ast.UnaryOp(operand=ast.Constant(value=int())):
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.BinOp(left=left):
            return _is_position(left)
        case _:
            return False
