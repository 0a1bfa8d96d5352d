"""The import contracts hold, and each notices a violation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"],
        check=False,
        capture_output=True,
        text=True,
        cwd=checkout,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package, to plant violations in."""
    shutil.copytree(ROOT / "store", tmp_path / "store", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_layer_imports_only_from_below(checkout: Path) -> None:
    done = lint_imports(checkout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_its_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    named = set(re.findall(r"store\.(\w+)", " ".join(layers)))
    there = {entry.stem for entry in (ROOT / "store").iterdir() if entry.suffix == ".py" or any(entry.glob("*.py"))}
    assert there - {"__init__"} <= named


@pytest.mark.parametrize(
    "module,violation,contract",
    [
        ("domain/retry.py", "import time", "The domain does no I/O, reads no clock and throws no dice"),
        ("domain/retry.py", "import sqlalchemy", "The domain does no I/O, reads no clock and throws no dice"),
        ("domain/retry.py", "import store.db.tables.core", "Layers import only downwards"),
        ("errors.py", "import store.interface.store", "Layers import only downwards"),
        ("db/tables/core.py", "import store.server", "Layers import only downwards"),
        ("training/agent.py", "import store.training.runner", "No package has an import cycle among its modules"),
        (
            "training/algorithm.py",
            "def f():\n    import store.training.trainer",
            "No package has an import cycle among its modules",
        ),
    ],
)
@pytest.mark.slow
def test_a_forbidden_import_breaks_its_contract(checkout: Path, module: str, violation: str, contract: str) -> None:
    with (checkout / "store" / module).open("a") as source:
        source.write(f"\n{violation}\n")
    done = lint_imports(checkout)
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout
