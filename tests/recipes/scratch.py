"""A scratch copy of the product, and edits to it that fail when the product no longer looks as they expect."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COPIED = ("store", "migrations", "tests", "docs", "pyproject.toml", "alembic.ini", "README.md")
_PRODUCT = ("store", "migrations")


class Scratch:
    """A copy of the repository in which a recipe is carried out."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__", "images"))
            else:
                shutil.copy2(source, directory / name)

    def create(self, path: str, text: str) -> None:
        """Write a file that does not exist yet.

        Raises:
            FileExistsError: it exists.
        """
        with (self.root / path).open("x") as file:
            file.write(text)

    def insert(self, path: str, after: str, text: str) -> None:
        """Insert a text right after another one, which must occur exactly once.

        Raises:
            LookupError: it does not occur exactly once.
        """
        self.replace(path, after, after + text)

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace a text that must occur exactly once.

        Raises:
            LookupError: it does not occur exactly once.
        """
        file = self.root / path
        before = file.read_text()
        if (times := before.count(old)) != 1:
            raise LookupError(f"{path} contains {old!r} {times} times, and the recipe expects it once")
        file.write_text(before.replace(old, new))

    def changed(self) -> list[str]:
        """Return the product files that differ from the repository's, or exist only here."""
        files = [file for name in _PRODUCT for file in (self.root / name).rglob("*") if file.is_file()]
        names = [str(file.relative_to(self.root)) for file in files if "__pycache__" not in file.parts]
        return sorted(name for name in names if not _same(ROOT / name, self.root / name))

    def test(self, arguments: Sequence[str]) -> int:
        """Run pytest on the copy, and return its exit code."""
        # The copy comes before the installed package, also in the processes that tests start.
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=self.root, env=environment, check=False).returncode


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and filecmp.cmp(one, other, shallow=False)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A typical change."""

    name: str
    most_files: int
    """How many product files it may touch."""
    apply: Callable[[Scratch], None]
    test: str
    """The text of a test module that shows the change at work."""
