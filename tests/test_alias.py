"""The names `rollbook` and `store` of one package: in the checkout, and installed beside a user's own `store.py`."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import pickle
import re
import sys
import zipfile
from pathlib import Path

import pytest
import rollbook
from rollbook.training import Trainer

import store
import store.training
from store.packaging.renaming import modules_of, renamed
from tests.wheel_environment import ROOT, run

pytestmark = pytest.mark.slow

IN_THE_WHEEL = pytest.mark.xdist_group("install")

MODULES = frozenset(modules_of(ROOT))


def test_both_names_are_one_package() -> None:
    assert vars(rollbook) is vars(store)
    assert Trainer is store.training.Trainer


@pytest.mark.parametrize("name", ["errors", "training.execution.parts", "server.app", "sql.store"])
def test_a_module_is_the_same_under_both_names(name: str) -> None:
    module = importlib.import_module(f"rollbook.{name}")
    assert module is importlib.import_module(f"store.{name}")
    assert module.__spec__ is not None
    assert module.__spec__.name == f"store.{name}"


def test_a_missing_module_is_reported_by_the_name_that_was_used() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"rollbook\.nothing"):
        importlib.import_module("rollbook.nothing")


def test_the_version_is_that_of_the_distribution() -> None:
    assert store.__version__ == importlib.metadata.version("rollbook")


@pytest.mark.parametrize("name", ["rollbook", "store"])
def test_the_package_runs_as_a_program(name: str, tmp_path: Path) -> None:
    assert run(sys.executable, "-m", name, "--version", cwd=tmp_path) == f"rollbook {store.__version__}\n"


@pytest.mark.parametrize(
    "source,expected",
    [
        ("from store import errors\n", "from rollbook import errors\n"),
        ("from store.errors import (\n    Invalid,\n)\n", "from rollbook.errors import (\n    Invalid,\n)\n"),
        ("import store.errors as e\n", "import rollbook.errors as e\n"),
        (
            'x = "é", "store.errors", "store.sql.store:SQLStore"',
            'x = "é", "rollbook.errors", "rollbook.sql.store:SQLStore"',
        ),
        ('x = "store.llm_proxy.LLMProxy"', 'x = "rollbook.llm_proxy.LLMProxy"'),
        ('logger = logging.getLogger("store.server")', 'logger = logging.getLogger("store.server")'),
        ("logger = logging.getLogger(__name__)", 'logger = logging.getLogger("store.sample")'),
        ("async def f(store): return store.errors", "async def f(store): return store.errors"),
        ('x = "store.size", "store", "a store.errors"', 'x = "store.size", "store", "a store.errors"'),
        ("from agentlightning.store import base", "from agentlightning.store import base"),
    ],
)
def test_imports_are_renamed_and_nothing_else(source: str, expected: str) -> None:
    assert renamed(source, "store.sample", MODULES) == expected


@pytest.mark.parametrize(
    "source,advice",
    [
        ("import store", "binds `store`; use `from store import"),
        ("import store.errors", "use `from store.errors import"),
        ('x = f"store.cli.{name}"', "use `__package__`"),
        ('x = ("store."\n "errors")', "on one line"),
    ],
)
def test_source_that_cannot_be_renamed_is_refused(source: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        renamed(source, "store.sample", MODULES)


_USERS_STORE = """
import rollbook

opened = rollbook.open_store
"""
_PROGRAM = """
import asyncio
import pickle
import sys

if "first" in sys.argv:
    import rollbook
import store
import rollbook
from rollbook.training import Trainer

assert store.opened is rollbook.open_store
assert store.__file__.endswith("project/store.py")
assert pickle.loads(pickle.dumps(rollbook.RolloutConfig(max_attempts=3))).max_attempts == 3
assert pickle.loads(pickle.dumps(Trainer)) is Trainer


async def main():
    async with await store.opened("sqlite:///run.db") as opened:
        await opened.enqueue_rollout(1)
        print((await opened.log.verify()).ok)


asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("store.")]
"""


@IN_THE_WHEEL
@pytest.mark.timeout(600)
def test_no_module_of_the_wheel_imports_the_old_name(wheel: Path) -> None:
    mentions_it = re.compile(r"^\s*(?:from|import)\b.*\bstore\b", re.MULTILINE).search
    modules = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            # The hook of the build is not converted.
            if not name.endswith((".py", ".pyi")) or name.startswith(("store/", "rollbook/packaging/")):
                continue
            modules += 1
            text = archive.read(name).decode()
            for node in ast.walk(ast.parse(text)) if mentions_it(text) else ():
                if isinstance(node, ast.ImportFrom):
                    assert (node.module or "").partition(".")[0] != "store", name
                if isinstance(node, ast.Import):
                    assert all(alias.name.partition(".")[0] != "store" for alias in node.names), name
    assert modules > 500


@IN_THE_WHEEL
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_users_own_store_module_and_the_installed_package_work_together(installed: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "store.py").write_text(_USERS_STORE)
    (project / "main.py").write_text(_PROGRAM)
    python = str(installed / "bin/python")
    assert run(python, "main.py", cwd=project) == "True\n"
    assert run(python, "main.py", "first", cwd=project) == "True\n"
    environment = {"ROLLBOOK_DB": "sqlite:///run.db", "PYTHONPATH": str(project)}
    assert "intact: 2 events" in run(python, "-m", "rollbook", "verify", cwd=project, **environment)
    assert "intact: 2 events" in run(str(installed / "bin/rollbook"), "verify", cwd=project, **environment)


_BOTH_NAMES = """
import pickle
import store
import rollbook
import store.training.execution.parts as by_alias
import rollbook.training.execution.parts as parts

assert store is rollbook and by_alias is parts
assert parts.__spec__.name == "rollbook.training.execution.parts"
assert parts.logger.name == "store.training.execution.parts"
from store import errors, open_store
assert errors is rollbook.errors and open_store is rollbook.open_store
assert pickle.loads(b"cstore.models.enums\\nSortOrder\\n.") is rollbook.SortOrder
print(store.__version__)
"""


@IN_THE_WHEEL
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_installed_package_has_both_names(installed: Path, tmp_path: Path) -> None:
    python = str(installed / "bin/python")
    assert run(python, "-c", _BOTH_NAMES, cwd=tmp_path) == f"{store.__version__}\n"
    for name in ("store", "rollbook"):
        assert run(python, "-m", name, "--version", cwd=tmp_path) == f"rollbook {store.__version__}\n"


def test_a_pickle_by_one_name_is_read_by_the_other() -> None:
    assert pickle.loads(b"crollbook.models.rollouts\nRollout\n.") is store.Rollout


SAMPLE = ROOT / "tests/typing_sample"

_MYPY = """
[mypy]
[mypy-aiohttp.*,alembic.*,anyio.*,fastapi.*,openai.*,opentelemetry.*,rich.*,sqlalchemy.*,starlette.*,typer.*,uvicorn.*]
follow_imports = skip
"""
"""Without the packages whose types are not in the interface, which would take most of the time."""


@IN_THE_WHEEL
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_accepts_a_project_that_uses_the_installed_package(
    installed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    _copy_sample(tmp_path)
    # The types of the dependencies are kept from one run of the tests to the next.
    pytest_cache: pytest.Cache = request.config.cache  # pyright: ignore[reportAssignmentType]  None only without plugin
    cache = f"--cache-dir={pytest_cache.mkdir('mypy')}"
    (tmp_path / "mypy.ini").write_text(_MYPY)
    options = ("--strict", "--config-file=mypy.ini", cache, f"--python-executable={installed / 'bin/python'}")
    assert "Success" in run(sys.executable, "-m", "mypy", *options, ".", cwd=tmp_path)


@IN_THE_WHEEL
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_accepts_a_project_that_uses_the_installed_package(installed: Path, tmp_path: Path) -> None:
    _copy_sample(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright = str(Path(sys.executable).with_name("pyright"))
    assert "0 errors" in run(pyright, f"--pythonpath={installed / 'bin/python'}", cwd=tmp_path)


def _copy_sample(target: Path) -> None:
    for path in SAMPLE.glob("*.py"):
        (target / path.name).write_text(path.read_text())
