"""The import contracts hold, and each detects a violation."""

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
        [str(Path(sys.executable).parent / "lint-imports"), f"--cache-dir={checkout / 'cache'}", "--no-logo"],
        check=False,
        capture_output=True,
        text=True,
        cwd=checkout,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, to plant violations in."""
    copy = tmp_path_factory.mktemp("layers")
    shutil.copytree(ROOT / "store", copy / "store", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def with_lines(checkout: Path, *lines: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """Check the copy with lines added to modules, and remove them again."""
    before = {module: (checkout / "store" / module).read_text() for module, _ in lines}
    for module, line in lines:
        with (checkout / "store" / module).open("a") as source:
            source.write(f"\n{line}\n")
    try:
        return lint_imports(checkout)
    finally:
        for module, text in before.items():
            (checkout / "store" / module).write_text(text)


def test_every_layer_imports_only_from_below(checkout: Path) -> None:
    done = lint_imports(checkout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_its_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    named = set(re.findall(r"store\.(\w+)", " ".join(layers)))
    there = {entry.stem for entry in (ROOT / "store").iterdir() if entry.suffix == ".py" or any(entry.glob("*.py"))}
    assert there - {"__init__"} <= named


@pytest.mark.slow
def test_every_forbidden_import_is_reported(checkout: Path) -> None:
    done = with_lines(
        checkout,
        ("domain/retry.py", "import time"),
        ("domain/retry.py", "import sqlalchemy"),
        ("domain/retry.py", "import store.db.tables.core"),
        ("errors.py", "import store.interface.store"),
        ("db/tables/core.py", "import store.server"),
        ("pipelines/phases.py", "import store.sql"),
        ("training/running/agent.py", "def f():\n    from store.sql.store import SQLStore"),
        ("client/event_stream.py", "import store.db.url"),
        ("llm_proxy/headers.py", "import store.journal.tail"),
    )
    assert done.returncode == 1
    assert "Layers import only downwards BROKEN" in done.stdout
    assert "The domain does no I/O, reads no clock and throws no dice BROKEN" in done.stdout
    assert "Clients of the store import neither its SQL nor its log BROKEN" in done.stdout
    chains = set(re.findall(r"^- +(store\S+ -> \S+) \(l\.\d+\)$", done.stdout, re.MULTILINE))
    assert chains == {
        "store.domain.retry -> time",
        "store.domain.retry -> sqlalchemy",
        "store.domain.retry -> store.db.tables.core",
        "store.errors -> store.interface.store",
        "store.db.tables.core -> store.server",
        "store.pipelines.phases -> store.sql",
        "store.training.running.agent -> store.sql.store",
        "store.client.event_stream -> store.db.url",
        "store.llm_proxy.headers -> store.journal.tail",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "module,line",
    [
        ("training/running/agent.py", "import store.training.running.runner"),
        ("training/algorithms/algorithm.py", "def f():\n    import store.training.trainer"),
    ],
)
def test_an_import_cycle_is_reported(checkout: Path, module: str, line: str) -> None:
    done = with_lines(checkout, (module, line))
    assert done.returncode == 1
    assert "No package has an import cycle among its modules BROKEN" in done.stdout
    assert done.stdout.count(" KEPT") == 3
