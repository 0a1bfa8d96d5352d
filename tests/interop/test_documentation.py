"""The examples of docs/agent-lightning.md run unchanged in Agent-lightning's environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.interop.peer import ENVIRONMENT, Peer
from tests.peer_environment import ROOT
from tests.postgres import free_port

PAGE = ROOT / "docs" / "agent-lightning.md"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("interop-sqlite"),
    # Its own server hangs, and the tracer it takes by default loses its spans.
    pytest.mark.skipif(ENVIRONMENT == "today", reason="Agent-lightning's defaults do not work with today's packages"),
]


def examples() -> list[str]:
    return re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_example_with_a_server_runs(peer: Peer, sqlite_served: str, tmp_path: Path) -> None:
    example, _ = examples()
    _run(peer, example, sqlite_served, tmp_path, served_at=sqlite_served)


def test_the_example_in_process_runs(peer: Peer, tmp_path: Path) -> None:
    _, example = examples()
    _run(peer, example, "", tmp_path, AGL_SERVER_PORT=str(free_port()))
    assert (tmp_path / "run.db").exists()


def _run(
    peer: Peer, example: str, url: str, directory: Path, *, served_at: str | None = None, **variables: str
) -> None:
    file = directory / "example.py"
    file.write_text(example)
    peer.run(
        *("documented", "--example", str(file), "--url", url, "--directory", str(directory)),
        served_at=served_at,
        **variables,
    )
