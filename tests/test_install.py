"""An installation with `pip install rollbook`: small, complete, and working without a checkout."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from hatchling.metadata.core import ProjectMetadata

import store
from store.db.schema import HEAD
from store.packaging.build_hook import WheelBuilder
from tests.wheel_environment import build_sdist, build_wheel, normal_name, pip_on, run

ROOT = Path(__file__).parents[1]
# One environment serves all of them.
pytestmark = pytest.mark.xdist_group("install")

# Decisions 63 and 65.
MOST_DISTRIBUTIONS = 46
MOST_MEGABYTES = 120
# Uvicorn is told to use them, and imports them itself.
_USED_BY_NAME = {"httptools", "websockets"}
# Imported by the build hook, which is not installed.
_BUILD = {"hatchling", "renaming"}
# A part of the standard library from Python 3.14 on.
_LATER = {"compression"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_core_is_small(installed: Path) -> None:
    listed = run(*pip_on(installed), "list", "--format=json", cwd=installed)
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
    assert run(str(installed / "bin/rollbook"), "--version", cwd=tmp_path) == f"rollbook {store.__version__}\n"


def test_changelog_begins_with_version_of_package() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall("^## (.*)", changelog, re.MULTILINE)[0] == store.__version__


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sdist_builds_same_wheel_and_metadata_of_both_is_valid(wheel: Path, tmp_path: Path) -> None:
    sdist = build_sdist(tmp_path)
    (tmp_path / "again").mkdir()
    rebuilt = build_wheel(tmp_path / "again", sdist)
    assert rebuilt.name == wheel.name
    assert rebuilt.read_bytes() == wheel.read_bytes()
    run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel), cwd=tmp_path)


def test_stub_beside_module_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "alembic.ini").touch()
    (tmp_path / "store").mkdir()
    (tmp_path / "store/__init__.py").touch()
    (tmp_path / "store/__init__.pyi").write_text("from store.errors import Invalid as Invalid\n")
    build_data: dict[str, dict[str, str]] = {"force_include": {}}
    metadata: ProjectMetadata[Any] = ProjectMetadata(str(tmp_path), None)
    hook = WheelBuilder(str(tmp_path), {}, None, metadata, str(tmp_path), "wheel")
    hook.initialize("standard", build_data)
    source = {place: path for path, place in build_data["force_include"].items()}["rollbook/__init__.pyi"]
    assert Path(source).read_text() == "from rollbook.errors import Invalid as Invalid\n"
    hook.finalize("standard", build_data, "")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_has_every_file_of_package_and_migrations(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    files = [path.relative_to(ROOT / "store") for path in (ROOT / "store").rglob("*") if path.is_file()]
    files += [path.relative_to(ROOT) for path in (ROOT / "migrations").rglob("*") if path.is_file()]
    expected = {Path("rollbook", path) for path in files if path.suffix != ".pyc" and path.parts[0] != "packaging"}
    parts = ("py.typed", "dashboard/templates", "dashboard/static", "migrations/versions")
    assert all(any(path.is_relative_to(Path("rollbook", part)) for path in expected) for part in parts)
    assert {str(path) for path in expected} <= packed


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
from rollbook.db.schema import history
from rollbook.db.schema.sqlite import migrating_sqlite
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
    declared = {normal_name(re.split(r"[<>=!~\[; ]", entry)[0]) for entry in project["dependencies"]}
    providers = {
        name: {normal_name(one) for one in distributions} for name, distributions in packages_distributions().items()
    }
    imported = {
        distribution
        for top, module in _imports(ROOT / "store") | _imports(ROOT / "migrations")
        if top not in sys.stdlib_module_names and top not in {"store", *_BUILD, *_LATER}
        for distribution in _distributions(top, module, providers)
    }
    # What extras bring: store.testing.contract, the adapters for Agent-lightning and LangGraph, a faster event loop.
    extras = {"pytest", "pytest-asyncio", "agentlightning", "langgraph-checkpoint", "langchain-core", "uvloop"}
    # It shares its package with backports.zstd.
    extras.add("backports-tarfile")
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
