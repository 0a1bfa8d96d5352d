"""docs/export.md: its tables are those of the code, and its commands and examples run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.exports.documented import PAGE, described, in_page

PACKAGES = ("pandas", "polars", "duckdb", "datasets")


def test_the_page_describes_the_tables_of_the_code() -> None:
    assert in_page() == described(), "run python -m tests.exports.documented"


@pytest.mark.slow
def test_the_commands_and_examples_of_the_page_run(sqlite_url: str, tmp_path: Path) -> None:
    for package in PACKAGES:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    shutil.copy(sqlite_url.removeprefix("sqlite:///"), tmp_path / "run.db")
    blocks = re.findall(r"^```(py|console)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    environment = {
        **os.environ,
        "ROLLBOOK_DB": "sqlite:///run.db",
        "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for line in next(text for kind, text in blocks if kind == "console").splitlines():
        run("-m", "store", *shlex.split(line.removeprefix("$ rollbook ")))
    # The first example exports to the same directory.
    shutil.rmtree(tmp_path / "out")
    examples = [text for kind, text in blocks if kind == "py"]
    assert len(examples) == 6
    # One process, because the imports take longer than the rest.
    printed = run("-c", "print('---')\n".join(examples)).split("---\n")
    assert "'rollouts': 6" in printed[0]
    assert "openai.chat.completion" in printed[2]
    assert "task 3" in printed[3]
    assert "What is" in printed[4]
    assert "assistant" in printed[5]
