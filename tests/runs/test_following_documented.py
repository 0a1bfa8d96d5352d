"""What docs/following-runs.md says is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from store.models import RunFrame
from store.server.app import ROUTES
from store.server.routes import viewer
from store.server.routing import StoreRoute
from store.server.streaming.paths import SOCKETS, VIEWER_SOCKET
from store.wire import paths

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "following-runs.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("number", range(2))
@pytest.mark.slow
def test_documented_examples_print_the_documented_output(number: int, tmp_path: Path) -> None:
    example, shown = EXAMPLES[number]
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == (shown, "")


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
    routes = [cast("StoreRoute", route) for router in (viewer.posted, viewer.runs) for route in router.routes]
    served = {(each.method, re.sub(r"\{\w+\}", "{}", each.path)) for each in routes}
    assert {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in described} == served
    assert routes == [each for each in ROUTES if each.tags == viewer.runs.tags]
    assert f"WebSocket `{VIEWER_SOCKET}`" in PAGE


def test_the_streams_are_where_the_page_says() -> None:
    assert f"`GET {paths.RUN_STREAM.replace('rollout_id', 'id')}`" in PAGE
    assert {paths.RUN_SOCKET, VIEWER_SOCKET} < {each.path for each in SOCKETS}
    assert f"WebSocket `{paths.RUN_SOCKET.replace('rollout_id', 'id')}`" in PAGE
