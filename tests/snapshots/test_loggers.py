"""Names of loggers, by which programs configure logging."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = Path(__file__).parent / "loggers.txt"


def loggers(package: Path) -> Iterator[str]:
    """Yield the name of each logger that the modules of a package take."""
    for path in package.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "getLogger" in text else ():
            match node:
                case ast.Call(func=ast.Attribute(attr="getLogger"), args=[ast.Constant(value=str(name))]):
                    yield name
                case ast.Call(func=ast.Attribute(attr="getLogger"), args=[ast.Name(id="__name__")]):
                    yield ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
                case _:
                    pass


@pytest.mark.slow
def test_the_names_of_loggers_stay() -> None:
    assert sorted(set(loggers(ROOT / "store"))) == NAMES.read_text().splitlines()
