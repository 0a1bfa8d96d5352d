"""The example of docs/replay.md prints the output that the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()


@pytest.mark.slow
def test_documented_example_prints_the_documented_output(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (output,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == (output, "")
