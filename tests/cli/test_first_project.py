"""The page "Your first project" is followed step by step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.test_runs_documented import is_part
from tests.cli.test_runs_documented import plain as without_ages
from tests.test_docs import on_a_terminal

PAGE = Path(__file__).parents[2] / "docs" / "first-project.md"


def plain(text: str) -> list[str]:
    """Return the lines of an output without durations, workers, counts and positions of columns."""
    text = re.sub(r"\b[\d.,]+ (s|ms|µs)\b", "DURATION", text)
    text = re.sub(r"\b[\w.-]+-\d+-0\b", "WORKER", text)
    text = re.sub(r"\b[\d,]+ (events|commits|rows|streams)\b", r"N \1", text)
    text = re.sub(r"DURATION ago", "now", text)
    # The rest of a line has as much room as the columns before it leave.
    return [re.sub(r"─+", "─", line) for line in without_ages(text)]


@pytest.mark.slow
def test_commands_of_the_first_project_print_the_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tasks,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "sums.py").write_text(program)
    (tmp_path / "tasks.jsonl").write_text(tasks)
    monkeypatch.setenv("ROLLBOOK_DB", "sqlite:///sums.db")
    steps = page.partition("## More runners")[0]
    calls = re.findall(r"^\$ (rollbook [^\n]+)\n(.*?)(?=^\$ |^```)", steps, re.MULTILINE | re.DOTALL)
    assert [typed.split()[1] for typed, _ in calls] == ["train", "ls", "show", "history", "verify", "train"]
    rollout_id = ""
    for typed, output in calls:
        # A dumb terminal shows no moving progress, and only 80 columns of a table.
        terminal = "dumb" if typed.split()[1] in {"train", "verify"} else "xterm"
        printed = on_a_terminal(re.sub(r"\bro-[0-9a-f]{12}\b", rollout_id, typed), tmp_path, terminal)
        parts = plain(output.strip().removeprefix("…\n").removesuffix("\n…"))
        assert is_part(parts, plain(printed)), f"{typed}\n{printed}"
        if "ls" in typed:
            # The task that the second prompt does not solve.
            (rollout_id,) = re.findall(r"^(ro-[0-9a-f]{12}) .* 0 +sums/1 ", printed, re.MULTILINE)
