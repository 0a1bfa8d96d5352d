"""Statements of docs/agents.md about agents and runners."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from store.training.running.outcome import Outcome, Reason

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "agents.md").read_text().partition("## Agents and runners\n")[2].partition("\n## ")[0]


EXAMPLES = list(
    zip(
        re.findall(r"^```python\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL),
        re.findall(r"^```text\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL),
        strict=True,
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("example, output", EXAMPLES, ids=["agent", "LangChain"])
def test_documented_example_prints_the_documented_output(tmp_path: Path, example: str, output: str) -> None:
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_every_reason_is_described_with_the_status_it_gives() -> None:
    described = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", SECTION, re.MULTILINE))
    assert set(described) == set(get_args(Reason))
    for reason in get_args(Reason):
        outcome = Outcome()
        outcome.fail(reason)
        assert outcome.status == described[reason]
        assert f"`{reason}`" in (Path(ROOT / "store/training/running/outcome.py").read_text())
