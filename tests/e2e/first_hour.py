"""The first hour of a new user, step by step, with the wheel in a separate environment.

`python -m tests.e2e.first_hour` builds the wheel, makes the environment and a Postgres, and follows README and docs:
their examples, a project with an agent, proxy and runners on Postgres, a type checker, a notebook, and every command.
The short form leaves out the type checker, the project, and the commands that start other programs.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import postgres
from tests.wheel_environment import ROOT, build_wheel, install_wheel, run

PROJECT = Path(__file__).with_name("first_hour_project")
AT_ONCE = 3
"""How many steps run at once; each waits as long as it works."""


def first_hour(environment: Path, directory: Path, postgres_url: str, *, is_short: bool = False) -> dict[str, float]:
    """Take the steps and return how many seconds each took.

    Args:
        environment: a virtual environment with the wheel.
        directory: an empty directory, for the project and its files.
        postgres_url: an empty store on Postgres.
        is_short: whether to take the short form.

    Raises:
        AssertionError: a step failed; the message contains its output.
    """
    hour = _FirstHour(environment, directory, postgres_url, is_short=is_short)
    # The longest come first.
    steps: list[Callable[[], None]] = [hour.every_command, hour.types, hour.project, hour.notebook, hour.examples]
    if is_short:
        steps = [hour.every_command, hour.notebook, hour.examples]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        taken = {step.__name__: pool.submit(_timed, step) for step in steps}
    return {name: seconds.result() for name, seconds in taken.items()}


def _timed(step: Callable[[], None]) -> float:
    began = time.monotonic()
    step()
    return time.monotonic() - began


class _FirstHour:
    """The steps. Each works in a copy of the project, so that several can be taken at once."""

    def __init__(self, environment: Path, directory: Path, postgres_url: str, *, is_short: bool) -> None:
        self._environment = environment
        self._python = str(environment / "bin/python")
        self._directory = directory
        self._postgres_url = postgres_url
        self._is_short = is_short

    def _copy_project(self, name: str) -> Path:
        return Path(shutil.copytree(PROJECT, self._directory / name, ignore=shutil.ignore_patterns("__pycache__")))

    def types(self) -> None:
        """Check the project with mypy."""
        project = self._copy_project("types")
        cache = f"--cache-dir={self._environment / 'mypy_cache'}"
        command = ("-m", "mypy", "--strict", "--config-file=", cache, f"--python-executable={self._python}", ".")
        assert "Success" in run(sys.executable, *command, cwd=project)

    def project(self) -> None:
        """Run the project: an agent that calls a model through the proxy, in runners, on Postgres."""
        project = self._copy_project("project")
        printed = run(self._python, "main.py", "8", "4", cwd=project, ROLLBOOK_DB=self._postgres_url)
        assert printed.splitlines()[-1] == f"{['succeeded'] * 8} 8 143 True", printed  # stopped by SIGTERM

    def notebook(self) -> None:
        """Execute the cells of a notebook in a running event loop."""
        project = self._copy_project("notebook")
        printed = run(self._python, "notebook.py", "notebook.ipynb", cwd=project)
        assert printed == "['succeeded']\nTrue\nTrue\n", printed

    def examples(self) -> None:
        """Run the examples of the README, and of the docs for scripts and notebooks."""
        directory = self._directory / "examples"
        directory.mkdir()
        section = (ROOT / "docs/agents.md").read_text().partition("## Scripts and notebooks")[2].partition("\n## ")[0]
        for text in ((ROOT / "README.md").read_text(), section):
            examples = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
            for example in examples[:1] if self._is_short else examples:
                (directory / "example.py").write_text(example)
                run(self._python, "-W", "error", "example.py", cwd=directory)
        program = str(self._environment / "bin/rollbook")
        assert "intact" in run(program, "verify", "--db", "sqlite:///run.db", cwd=directory)

    def every_command(self) -> None:
        """Run every command that `rollbook --help` lists; in the short form, some only with `--help`."""
        project = self._copy_project("commands")
        listed = run(self._python, "-m", "rollbook", "--help", cwd=project)
        assert "verify" in listed
        options = ("--short",) if self._is_short else ()
        assert int(run(self._python, "commands.py", *options, cwd=project).splitlines()[-1]) > 30


def main() -> None:
    """Make what the steps need, take them, and print their durations."""
    with tempfile.TemporaryDirectory() as path, postgres.PostgresServer.start() as server:
        directory = Path(path)
        for name in ("wheel", "environment", "hour"):
            (directory / name).mkdir()
        install_wheel(build_wheel(directory / "wheel"), directory / "environment")
        url = os.environ.get("ROLLBOOK_TEST_POSTGRES_URL") or server.url
        taken = first_hour(directory / "environment", directory / "hour", postgres.with_partition(url))
        for name, seconds in taken.items():
            print(f"{name:15} {seconds:5.1f} s")


if __name__ == "__main__":
    main()
