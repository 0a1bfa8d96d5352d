"""The wheel of this checkout, and an environment in which it is installed."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import distribution, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def build_wheel(directory: Path, source: Path = ROOT) -> Path:
    """Build the wheel of a source tree or an sdist in an empty directory, and return its path."""
    # The build backend is one of the dev extras.
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-w", str(directory))
    run(sys.executable, "-m", "pip", "wheel", *options, str(source), cwd=directory)
    (built,) = directory.glob("rollbook-*.whl")
    return built


def build_sdist(directory: Path) -> Path:
    """Build the sdist and return its path."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(directory), cwd=ROOT)
    (built,) = directory.glob("rollbook-*.tar.gz")
    return built


def install_wheel(wheel: Path, environment: Path) -> None:
    """Make a fresh environment with the wheel and what it depends on.

    The dependencies are the files that pip installed for this environment, linked: nothing is resolved, downloaded,
    unpacked and compiled a second time.
    """
    run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in sorted(_closure(wheel)):
        for file in distribution(name).files or ():
            # Programs lie beside the packages.
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                _link(Path(str(file.locate())), packages / file)
    run(*pip_on(environment), "install", "--quiet", "--no-index", "--no-deps", str(wheel), cwd=environment)
    # As pip does. There is none to link where pip was told to write no bytecode. Not every file need compile.
    compileall.compile_dir(packages, quiet=2)
    # All of it is there: pip finds no requirement that is missing or of another version.
    run(*pip_on(environment), "check", cwd=environment)


def pip_on(environment: Path) -> tuple[str, ...]:
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
    pending = [("rollbook", "", Parser().parsestr(text).get_all("Requires-Dist") or [])]
    visited: set[tuple[str, str]] = set()
    while pending:
        _, extra, requirements = pending.pop()
        for requirement in map(Requirement, requirements):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            for extra_name in ("", *requirement.extras):
                one = (normal_name(requirement.name), extra_name)
                if one not in visited:
                    visited.add(one)
                    pending.append((*one, requires(requirement.name) or []))
    return {name for name, _ in visited}


def normal_name(name: str) -> str:
    """Return the name of a distribution in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()
