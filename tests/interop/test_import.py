"""`rollbook import agentlightning` reads Agent-lightning's own server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store import open_store
from store.imports import import_rollouts
from store.imports.agentlightning import read_server
from tests.imports.served_rollouts import check
from tests.interop.peer import Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.xdist_group("interop-sqlite")]


async def test_rollouts_of_its_server_are_imported_once(peer: Peer, tmp_path: Path) -> None:
    with peer.server() as url:
        report = str(tmp_path / "unused")
        ids = json.loads(peer.run("filling", "--url", url, "--report", report, served_at=url).splitlines()[-1])
        async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as store:
            for imported in (3, 0):
                result = await import_rollouts(store, read_server(url), source="agentlightning")
                assert (result.imported, result.unchanged, result.skipped) == (imported, 3 - imported, 3)
                await check(store, ids)
