"""Commands that docs/runs.md shows print the documented output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs import on_a_terminal, without_accidents

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
SECTION = PAGE.partition("## On the command line\n")[2].partition("\n## ")[0]


def plain(text: str) -> list[str]:
    """The lines of an output without styles, and without what differs from run to run: ids, ages, versions, widths."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    text = re.sub(r"\b(\d+ (s|min) ago|now)\b", "AGO", text)
    text = re.sub(r"\(version \d+\)", "(version N)", text)
    # How much of the last column there is room for depends on the ages before it.
    text = re.sub(r"\S+…", "CUT", text)
    return [re.sub(r" +", " ", line) for line in without_accidents(text) if line]


def is_part(documented: list[str], printed: list[str]) -> bool:
    """Whether an output is shown as it is, but for the places that are marked with `…`."""
    start = 0
    for part in "\n".join(documented).split("\n…\n"):
        lines = part.split("\n")
        places = range(start, len(printed) - len(lines) + 1)
        position = next((place for place in places if printed[place : place + len(lines)] == lines), None)
        if position is None:
            return False
        start = position + len(lines)
    return True


@pytest.mark.slow
def test_documented_commands_print_the_documented_output(tmp_path: Path) -> None:
    calls = re.findall(r"^\$ (rollbook [^\n]+)\n(.*?)(?=^\$ |^```)", SECTION, re.MULTILINE | re.DOTALL)
    assert [typed.split()[1] for typed, _ in calls] == ["trading", "runs", "rerun", "undo", "runs"]
    run_id = ""
    for typed, documented in calls:
        printed = on_a_terminal(re.sub(r"\bro-[0-9a-f]{12}\b", run_id, typed), tmp_path, "xterm")
        run_id = run_id or re.findall(r"\bro-[0-9a-f]{12}\b", printed)[0]
        assert is_part(plain(documented), plain(printed)), f"{typed}\n{printed}"
