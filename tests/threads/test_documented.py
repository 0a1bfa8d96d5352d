"""Statements of docs/langgraph.md."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from store.integrations import langgraph
from store.sql.commands import threads as thread_commands
from store.validation.json_limits import MAX_CALL_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "langgraph.md").read_text()


@pytest.mark.slow
def test_documented_example_prints_the_documented_output(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (output,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_every_function_is_described_with_arguments_that_there_are() -> None:
    told = dict(re.findall(r"^\| `(\w+)\(([^)]*)\)` \|", PAGE, re.MULTILINE))
    assert set(told) == {"pointer", "pointer_to_phase_end", "start_from"}
    for name, arguments in told.items():
        names = [argument.rstrip("=") for argument in arguments.split(", ")]
        assert names == list(inspect.signature(getattr(langgraph, name)).parameters)


def test_the_sizes_are_those_of_the_code() -> None:
    assert (thread_commands.BLOB_FROM, MAX_CALL_BYTES) == (1024, 16 * 1024 * 1024)
    assert "a kilobyte or more" in PAGE
    assert "16 MiB" in PAGE
