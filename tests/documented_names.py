"""The names of Agent-lightning that docs/compatibility.md lists, with their modules here."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"


def public_names(package: ModuleType) -> list[str]:
    """Return `__all__` of a package. Type checkers do not see it if the package imports its names at first use."""
    return package.__all__


class Same(NamedTuple):
    """A name that means the same here."""

    name: str
    module: str


class Replaced(NamedTuple):
    """Names for which there is something else."""

    names: list[str]
    paths: list[str]
    """Dotted paths of the replacements."""
    links: list[str]
    """Targets of links to pages that describe the replacement."""


def _rows(header: str) -> list[list[str]]:
    section = PAGE.read_text().partition("\n## Names\n")[2].partition("\n## ")[0]
    table = section.partition(f"\n{header}\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def same() -> list[Same]:
    """Return the names of the first table."""
    rows = _rows("| in Agent-lightning | import from | names |")
    return [Same(name, module) for _, origin, names in rows for module in _code(origin) for name in _code(names)]


def replaced() -> list[Replaced]:
    """Return the rows of the second table."""
    return [
        Replaced(
            _code(theirs),
            [path for path in _code(ours) if re.fullmatch(r"(rollbook|store)(\.\w+)+", path)],
            re.findall(r"\]\(([^)]+)\)", ours),
        )
        for theirs, ours in _rows("| in Agent-lightning | here |")
    ]


def listed() -> set[str]:
    """Return all names of both tables."""
    return {entry.name for entry in same()} | {name for row in replaced() for name in row.names}
