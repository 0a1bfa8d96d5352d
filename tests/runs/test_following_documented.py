"""Statements of docs/following-runs.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.models import RunFrame
from store.server.streaming.paths import SOCKETS
from store.wire import paths

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "following-runs.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("number", range(2))
@pytest.mark.slow
def test_documented_examples_print_the_documented_output(number: int, tmp_path: Path) -> None:
    example, output = EXAMPLES[number]
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_every_kind_of_frame_is_described_with_fields_that_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|", section("Follow a run"), re.MULTILINE)
    kinds = re.findall(r'"(\w+)"', str(RunFrame.model_fields["kind"].annotation).replace("'", '"'))
    assert sorted(kind for kind, _ in rows[1:]) == sorted(kinds)
    for _, fields in rows:
        assert set(re.findall(r"`(\w+)`", fields)) <= set(RunFrame.model_fields)


def test_every_route_of_front_ends_is_described_and_no_other() -> None:
    described = set(
        re.findall(r"^\| `(\w+) (/api[^`]+)` \|", section("Point an existing web front end at it"), re.MULTILINE)
    )
    served = {(route.method, re.sub(r"\{\w+\}", "{}", route.path)) for route in TradingFrontEnd.routes}
    assert {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in described} == served
    assert [f"WebSocket `{path}`" in PAGE for path in TradingFrontEnd.sockets] == [True]


def test_the_streams_are_where_the_page_says() -> None:
    assert f"`GET {paths.RUN_STREAM.replace('rollout_id', 'id')}`" in PAGE
    assert paths.RUN_SOCKET in {socket.path for socket in SOCKETS}
    assert f"WebSocket `{paths.RUN_SOCKET.replace('rollout_id', 'id')}`" in PAGE
