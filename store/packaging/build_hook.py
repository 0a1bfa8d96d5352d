"""A build hook for hatchling. It adds the files of the package to the wheel. See decision 58.

The wheel contains the package as `rollbook`, and an alias `store`. An editable installation uses the package `store` of
the source tree, and gets an alias `rollbook`. An alias has stub files, because type checkers do not run the code that
provides the alias. The wheel has stubs of public modules only, because each file costs space in every installation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# hatchling loads this file by its path, so the directory of this file is not in `sys.path`.
sys.path.insert(0, str(Path(__file__).parent))
from renaming import PUBLIC_NAME, SOURCE_NAME, modules_of, renamed

sys.path.pop(0)

_ALIAS = '''"""The package `{package}` under another name."""

from {package}.runtime.module_alias import provide_alias

provide_alias(__name__, "{package}")
'''
_NOT_INSTALLED = "packaging"


class WheelBuilder(BuildHookInterface[Any]):
    """Adds the files of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files to a temporary directory and register them for the wheel."""
        self._directory = TemporaryDirectory(prefix="rollbook-build-")
        built = Path(self._directory.name)
        modules = {
            name: path
            for name, path in modules_of(Path(self.root)).items()
            if not name.startswith(f"{SOURCE_NAME}.{_NOT_INSTALLED}")
        }
        if version == "editable":
            _write_alias(built, PUBLIC_NAME, SOURCE_NAME, modules)
            build_data["force_include_editable"].update(_inclusions(built))
        else:
            self._write_package(built, modules)
            public = {name: path for name, path in modules.items() if _is_public(path)}
            _write_alias(built, SOURCE_NAME, PUBLIC_NAME, public)
            build_data["force_include"].update(_inclusions(built))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the temporary directory."""
        del version, build_data, artifact_path
        self._directory.cleanup()

    def _write_package(self, built: Path, modules: dict[str, Path]) -> None:
        root = Path(self.root)
        names = frozenset(modules)
        files = [(path, path.relative_to(root / SOURCE_NAME)) for path in _files(root / SOURCE_NAME)]
        files += [(path, path.relative_to(root)) for path in (*_files(root / "migrations"), root / "alembic.ini")]
        module_of = {path: name for name, path in modules.items()}
        for source, relative in files:
            if relative.parts[0] == _NOT_INSTALLED:
                continue
            target = built / PUBLIC_NAME / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix in {".py", ".pyi"}:
                module = module_of.get(source.with_suffix(".py"), str(relative))
                target.write_text(renamed(source.read_text("utf-8"), module, names), "utf-8")
            else:
                target.write_bytes(source.read_bytes())


def _write_alias(built: Path, alias: str, package: str, modules: dict[str, Path]) -> None:
    """Write the package `alias`. It provides the modules of `package`, and has stubs for type checkers."""
    top = built / alias
    for name, path in modules.items():
        module_path = top.joinpath(*name.split(".")[1:])
        stub = module_path / "__init__.pyi" if path.name == "__init__.py" else module_path.with_suffix(".pyi")
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(f"from {package}{name.removeprefix(SOURCE_NAME)} import *\n")
    (top / "__init__.pyi").write_text(f"from {package} import *\nfrom {package} import __version__ as __version__\n")
    (top / "__init__.py").write_text(_ALIAS.format(package=package))
    (top / "py.typed").touch()


def _is_public(path: Path) -> bool:
    """Return whether a module is a package, or lists its public names."""
    return path.name == "__init__.py" or "\n__all__ = " in path.read_text("utf-8")


def _files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".pyc"]


def _inclusions(built: Path) -> dict[str, str]:
    return {str(path): str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()}
