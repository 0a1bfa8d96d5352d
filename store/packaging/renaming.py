"""Conversion of this source tree, whose package is `store`, to the package `rollbook` that is installed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

SOURCE_NAME: Final = "store"
"""The name of the package in the source tree, and of the alias in an installation."""
PUBLIC_NAME: Final = "rollbook"
"""The name of the package in an installation."""

_TRACER_NAME: Final = ("store.training.tracer", "store.training")
"""A string that looks like the name of a module, but is recorded in the scope of spans."""

_IMPORT_STRING: Final = re.compile(rf"{SOURCE_NAME}\.[\w.]+(:\w+)?")


class _Edit(NamedTuple):
    line: int
    """The number of the line, from 1."""
    start: int
    """Where the old text starts in the line, in bytes of UTF-8."""
    old: str
    new: str


def renamed(text: str, module: str, modules: frozenset[str]) -> str:
    """Return the source of a module with imports of `rollbook` in place of imports of `store`.

    Strings that name modules of the package, or objects in them, are changed as well. Names of loggers stay.

    Args:
        text: the source.
        module: the name of the module in the source tree.
        modules: the names of all modules of the package in the source tree.

    Raises:
        ValueError: the source imports the package in a form that cannot be converted.
    """
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    # From right to left, so that an edit moves no text that is edited later.
    for edit in sorted(_edits(ast.parse(text), module, modules), reverse=True):
        line = lines[edit.line - 1]
        before, after = line[: edit.start], line[edit.start :]
        old = edit.old.encode()
        if not after.startswith(old):
            raise ValueError(f"{module}, line {edit.line}: write {edit.old!r} on one line, with single spaces")
        lines[edit.line - 1] = before + edit.new.encode() + after.removeprefix(old)
    return b"".join(lines).decode()


def _edits(tree: ast.Module, module: str, modules: frozenset[str]) -> Iterator[_Edit]:
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):  # parents before their children
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from _import_edits(node, module)
            case ast.Call(func=ast.Attribute(attr="getLogger"), args=[argument]):
                skipped.add(argument)
                if isinstance(argument, ast.Name) and argument.id == "__name__":
                    yield _Edit(argument.lineno, argument.col_offset, "__name__", f'"{module}"')
            case ast.JoinedStr(values=values):
                skipped.update(values)
                for value in values:
                    if isinstance(value, ast.Constant) and str(value.value).startswith(f"{SOURCE_NAME}."):
                        raise ValueError(f"{module}, line {node.lineno}: use `__package__` for {value.value!r}")
            case ast.Constant(value=str(value)):
                if node not in skipped and (module, value) != _TRACER_NAME and _names_module(value, modules):
                    yield _Edit(node.lineno, node.col_offset, f'"{value}"', f'"{_public(value)}"')
            case _:
                pass


def _import_edits(node: ast.Import | ast.ImportFrom, module: str) -> Iterator[_Edit]:
    if isinstance(node, ast.ImportFrom):
        if node.module is not None and not node.level and _is_ours(node.module):
            yield _Edit(node.lineno, node.col_offset, f"from {node.module} ", f"from {_public(node.module)} ")
        return
    for alias in node.names:
        if _is_ours(alias.name):
            if alias.asname is None:
                advice = f"use `from {alias.name} import ...`"
                raise ValueError(f"{module}, line {node.lineno}: `import {alias.name}` binds `{SOURCE_NAME}`; {advice}")
            yield _Edit(alias.lineno, alias.col_offset, alias.name, _public(alias.name))


def _is_ours(name: str) -> bool:
    return name == SOURCE_NAME or name.startswith(f"{SOURCE_NAME}.")


def _public(name: str) -> str:
    return PUBLIC_NAME + name.removeprefix(SOURCE_NAME)


def _names_module(text: str, modules: frozenset[str]) -> bool:
    """Return whether a string names a module or an object in a module: `package.module`, `….Name`, `…:name`."""
    if not _IMPORT_STRING.fullmatch(text):
        return False
    path = text.replace(":", ".")
    return path in modules or path.rpartition(".")[0] in modules - {SOURCE_NAME}


def modules_of(root: Path) -> dict[str, Path]:
    """Return the files of the modules below a package's parent directory, by the names of the modules."""
    modules: dict[str, Path] = {}
    for path in sorted((root / SOURCE_NAME).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules
