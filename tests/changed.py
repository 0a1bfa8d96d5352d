"""Run the tests of the folders that import what has changed: `python -m tests.changed [BASE] [OPTIONS OF PYTEST]`.

Changed are the files that differ from the commit BASE (by default, from the last commit that the branch shares with
`origin/main`), and new files. A folder of tests runs if one of its modules has changed, or imports a changed module of
the product or of the tests, directly or through others. The root `conftest.py` opens stores for all folders, so they
all depend on the code of a store. Documents and settings are tested by the modules directly below `tests`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
_TESTS = ROOT / "tests"


def main(arguments: list[str]) -> int:
    """Print the folders, and run their tests."""
    base = arguments.pop(0) if arguments and not arguments[0].startswith("-") else _base()
    files = changed_files(base)
    paths = Dependencies().affected_tests(files)
    if not paths:
        print(f"No test depends on what has changed since {base[:12]}.")
        return 0
    print(f"{len(files)} files have changed since {base[:12]}; these tests depend on them:")
    print(*paths, sep="\n", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *paths], check=False, cwd=ROOT).returncode


def changed_files(base: str) -> set[str]:
    """Return the paths of the files that differ from a commit, relative to the root."""
    tracked = _git("diff", "--name-only", base)
    return {*tracked, *_git("ls-files", "--others", "--exclude-standard")}


class Dependencies:
    """The imports of the product and of the tests."""

    def __init__(self) -> None:
        self._graph = grimp.build_graph("store", cache_dir=None)
        self._add_stubs()
        paths = [path for path in _TESTS.rglob("*.py") if not {"typing_sample", "inside"} & set(path.parts)]
        self._imports = {path: _imports(path, self._graph.modules) for path in paths}

    def _add_stubs(self) -> None:
        """Add the imports of stubs, which list the names that a package imports at first use."""
        for stub in (ROOT / "store").rglob("*.pyi"):
            package = ".".join(stub.parent.relative_to(ROOT).parts)
            for node in ast.parse(stub.read_text()).body:
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    self._graph.add_import(importer=package, imported=node.module)

    def affected_tests(self, files: set[str]) -> list[str]:
        """Return the folders, and the modules directly below `tests`, that depend on some files."""
        modules = self._affected_modules(files)
        changed = {path for path in self._imports if str(path.relative_to(ROOT)) in files}
        affected = changed | {path for path, imports in self._imports.items() if imports & modules}
        while more := self._dependents(affected):
            affected |= more
        paths = {_folder(path) for path in affected if path.name.startswith("test_")}
        paths |= {_folder(ROOT / file) for file in files if file.startswith("tests/") and len(Path(file).parts) > 2}
        if any(not file.startswith(("store/", "tests/")) for file in files):
            paths |= {_folder(path) for path in _TESTS.glob("test_*.py")}
        if any(file.startswith("migrations/") for file in files):
            paths |= {"tests/db", "tests/migrations"}
        return sorted(path for path in paths if (ROOT / path).exists())

    def _affected_modules(self, files: set[str]) -> set[str]:
        """Return the changed modules of the product and those that import them."""
        modules = {_module_of(file, self._graph) for file in files if file.startswith("store/")}
        return modules.union(*(self._graph.find_downstream_modules(module) for module in modules))

    def _dependents(self, affected: set[Path]) -> set[Path]:
        """Return further modules of the tests: a module depends on those that it imports and on its conftests."""
        names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in affected}
        return {
            path
            for path, imports in self._imports.items()
            if path not in affected
            and (imports & names or affected & {path.parent / "conftest.py", _TESTS / "conftest.py"})
        }


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()


def _base() -> str:
    (base,) = _git(
        "merge-base", "HEAD", "origin/main" if _git("branch", "--remotes", "--list", "origin/main") else "main"
    )
    return base


def _module_of(file: str, graph: grimp.ImportGraph) -> str:
    """Return the module of a file. A template or a style sheet belongs to its package."""
    path = Path(file)
    parts = path.parent.parts if path.stem == "__init__" or path.suffix != ".py" else path.with_suffix("").parts
    while ".".join(parts) not in graph.modules and len(parts) > 1:
        parts = parts[:-1]
    return ".".join(parts)


def _folder(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2])


def _imports(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of the product and of the tests that a file imports, by their names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {_product_name(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = _product_name(node.module)
            # The package imports all that it hands on, but only when it is used.
            names |= {module} - {"store"}
            for alias in node.names:
                names.add(f"{module}.{alias.name}")
                names |= _defining_module(module, alias.name, modules)
    return names


def _product_name(module: str) -> str:
    """Return a module's name with `store` in place of its alias `rollbook`."""
    return module.replace("rollbook", "store", 1) if module.split(".", maxsplit=1)[0] == "rollbook" else module


def _defining_module(module: str, name: str, modules: set[str]) -> set[str]:
    """Return the module that defines a name which a package hands on."""
    if module not in modules or f"{module}.{name}" in modules:
        return set()
    try:
        value = getattr(import_module(module), name, None)
    except ImportError:
        # It belongs to an extra that is not installed.
        return set()
    defined = getattr(value, "__module__", None)
    return {_product_name(defined)} if isinstance(defined, str) else set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
