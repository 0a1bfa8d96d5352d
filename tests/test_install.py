"""What `pip install rollbook` gives: little, complete, and working without a checkout."""

from __future__ import annotations

import ast
import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import distribution, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from store.db.schema import HEAD

ROOT = Path(__file__).parents[1]
# One environment serves all of them.
pytestmark = pytest.mark.xdist_group("install")

MOST_DISTRIBUTIONS = 45
MOST_MEGABYTES = 110
# Uvicorn is told to use them, and imports them itself.
_USED_BY_NAME = {"httptools", "websockets"}


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(directory), str(ROOT), cwd=directory)
    (built,) = directory.glob("rollbook-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what it depends on.

    The dependencies are the files that pip installed for this environment, linked: nothing is resolved, downloaded,
    unpacked and compiled a second time.
    """
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in sorted(_closure(wheel)):
        for file in distribution(name).files or ():
            # Programs lie beside the packages.
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                _link(Path(str(file.locate())), packages / file)
    run(*_pip(environment), "install", "--quiet", "--no-index", "--no-deps", str(wheel), cwd=environment)
    # As pip does. There is none to link where pip was told to write no bytecode. Not every file need compile.
    compileall.compile_dir(packages, quiet=2)
    # All of it is there: pip finds no requirement that is missing or of another version.
    run(*_pip(environment), "check", cwd=environment)
    return environment


def _pip(environment: Path) -> tuple[str, ...]:
    """Return the beginning of a command of pip that works on another environment."""
    python = str(environment / "bin/python")
    return (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        # Another file system.
        shutil.copy2(source, target)


def _closure(wheel: Path) -> set[str]:
    """Return the distributions that a wheel requires without extras, and those that they require."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    wanted = [("rollbook", "", Parser().parsestr(text).get_all("Requires-Dist") or [])]
    found: set[tuple[str, str]] = set()
    while wanted:
        _, extra, requirements = wanted.pop()
        for requirement in map(Requirement, requirements):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            for each in ("", *requirement.extras):
                one = (_normal(requirement.name), each)
                if one not in found:
                    found.add(one)
                    wanted.append((*one, requires(requirement.name) or []))
    return {name for name, _ in found}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_core_is_small(installed: Path) -> None:
    listed = run(*_pip(installed), "list", "--format=json", cwd=installed)
    distributions = {entry["name"] for entry in json.loads(listed)}
    (packages,) = installed.glob("lib/python*/site-packages")
    files = [file for file in packages.rglob("*") if file.is_file()]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    print(f"{len(distributions)} distributions, {megabytes:.1f} MB with bytecode")
    assert "rollbook" in distributions
    assert len(distributions) <= MOST_DISTRIBUTIONS
    assert megabytes <= MOST_MEGABYTES


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_installed_command_explains_itself(installed: Path, tmp_path: Path) -> None:
    text = run(str(installed / "bin/rollbook"), "--help", cwd=tmp_path)
    assert {"demo", "migrate", "verify"} <= set(text.split())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_has_all_that_pages_are_made_of(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    parts = [path for name in ("templates", "static") for path in (ROOT / "store/dashboard" / name).iterdir()]
    assert parts
    assert {str(path.relative_to(ROOT)) for path in parts} <= packed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_migrates_a_database_far_from_any_checkout(installed: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    run(str(installed / "bin/rollbook"), "migrate", cwd=tmp_path, ROLLBOOK_DB=url)
    assert (tmp_path / "new.db").exists()
    run(str(installed / "bin/rollbook"), "verify", cwd=tmp_path, ROLLBOOK_DB=url)


_FROM_THE_WHEEL = """
import sys
from pathlib import Path
from store.db.schema import history
from store.db.schema.sqlite import migrating_sqlite
assert history.MIGRATIONS.is_relative_to(sys.argv[1]), history.MIGRATIONS
path = Path("run.db")
path.touch()
with migrating_sqlite(path) as connection:
    history.run_migrations(connection)
    print(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_carries_every_revision(installed: Path, tmp_path: Path) -> None:
    printed = run(str(installed / "bin/python"), "-c", _FROM_THE_WHEEL, str(installed), cwd=tmp_path)
    assert printed == f"{HEAD}\n"


@pytest.mark.slow
def test_every_import_is_declared_and_every_dependency_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {_normal(re.split(r"[<>=!~\[; ]", entry)[0]) for entry in project["dependencies"]}
    providers = {name: {_normal(one) for one in given} for name, given in packages_distributions().items()}
    imported = {
        distribution
        for top, module in _imports(ROOT / "store") | _imports(ROOT / "migrations")
        if top not in sys.stdlib_module_names and top != "store"
        for distribution in _distributions(top, module, providers)
    }
    # What extras bring: store.testing.contract, the adapters for Agent-lightning and LangGraph, a faster event loop.
    extras = {"pytest", "pytest-asyncio", "agentlightning", "langgraph-checkpoint", "langchain-core", "uvloop"}
    assert imported - extras == declared - _USED_BY_NAME


def _imports(directory: Path) -> set[tuple[str, str]]:
    nodes = [node for path in directory.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {(name.partition(".")[0], name) for name in names}


def _distributions(top: str, module: str, providers: dict[str, set[str]]) -> set[str]:
    """Return who provides a module; namespace packages are shared by several."""
    if top == "opentelemetry":
        return {f"opentelemetry-{part}" for part in ("sdk", "proto") if module.startswith(f"opentelemetry.{part}")}
    if top == "langgraph":
        return {"langgraph-checkpoint"} if module.startswith("langgraph.checkpoint.") else {"langgraph"}
    if top == "google":
        return {"protobuf"} if module.startswith("google.protobuf") else providers[top]
    if top == "pydantic_core":  # pydantic's own other half, released in step with it
        return {"pydantic"}
    return providers.get(top, {top})


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
