"""Statements of docs/training-data.md about adapters and rows."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from store.adapters import records, rewards, rows, selection
from store.adapters.rewards import RewardMatchPolicy
from store.adapters.rows import Trajectories

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "training-data.md").read_text()


@pytest.mark.slow
def test_documented_examples_print_the_documented_output(tmp_path: Path) -> None:
    first, second = re.findall(r"^```python\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL)
    (output,) = re.findall(r"^```text\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL)
    # The page shows what the first example prints. The second checks its own results.
    for example, printed in ((first, output), (second, "")):
        (tmp_path / "example.py").write_text(example)
        done = subprocess.run(
            [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
        )
        assert (done.stdout, done.stderr) == (printed, "")


def rows_of(table: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", SECTION.partition(f"| {table} |")[2].partition("\n\n")[0], re.MULTILINE)


def test_every_policy_and_every_grid_is_described_and_no_other() -> None:
    assert sorted(rows_of("`reward_match`")) == sorted(RewardMatchPolicy)
    names = [field.name for field in fields(Trajectories)]
    assert rows_of("field") == names[: names.index("rows")]
    assert all(f"`{name}`" in SECTION or f"batch.{name}" in SECTION for name in ("has_log_probs", "left_out"))


def test_every_reason_is_described_where_it_is_returned() -> None:
    def reasons(module: object) -> set[str]:
        return {value for name, value in vars(module).items() if name.startswith("_") and _is_reason(value)}

    dropped = reasons(selection) | {"duplicate_span", "not_a_span"}
    assert len(dropped) == 10
    assert len(reasons(rewards)) == 4
    for told in (SECTION, f"{records.Dropped.__doc__}{records.Lost.__doc__}"):
        assert [reason for reason in dropped | reasons(rewards) if f"`{reason}`" not in told] == []
    source = Path(rows.__file__).read_text()
    for reason in set(
        re.findall(r"\"((?:no|prompt|response)_\w+(?:_tokens|_long|_truncated|_reward|_probs))\"", source)
    ):
        assert f"`{reason}`" in (rows.LeftOut.__doc__ or ""), reason


def _is_reason(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z]+(_[a-z]+)*", value) is not None and value != "agl"
