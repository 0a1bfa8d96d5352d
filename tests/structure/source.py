"""The modules of a package, parsed, by their dotted names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Module:
    """A file of Python with its stub, which imports the names that a package exports."""

    name: str
    """`store.db.tables`; a package's own name stands for its `__init__`."""
    text: str
    nodes: Sequence[ast.AST]
    """Of its syntax tree, all of them."""
    is_package: bool

    @property
    def package(self) -> str:
        """The package at which its relative imports begin."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Source:
    """The modules of a package."""

    package: str
    modules: dict[str, Module]

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Parse every file of Python below the directory of a package."""
        found: dict[str, Module] = {}
        for path in sorted(directory.rglob("*.py")):
            parts = path.relative_to(directory.parent).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            stub = path.with_suffix(".pyi")
            text = path.read_text() + (stub.read_text() if stub.exists() else "")
            found[name] = Module(name, text, list(ast.walk(ast.parse(text))), is_package)
        return cls(directory.name, found)

    def within(self, package: str) -> Source:
        """Return the modules of a package below this one."""
        return Source(package, {name: each for name, each in self.modules.items() if _is_in(name, package)})

    def without(self, *packages: str) -> Source:
        """Return the modules that are in none of some packages."""
        left = {
            name: each for name, each in self.modules.items() if not any(_is_in(name, package) for package in packages)
        }
        return Source(self.package, left)


def _is_in(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")
