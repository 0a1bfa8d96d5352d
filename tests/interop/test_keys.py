"""Agent-lightning 0.3.0, unmodified, and a server that requires keys: the key is the password in the URL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from store.sql.api_keys import Keys
from tests.interop.peer import Peer, claims, rollbook

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.xdist_group("interop-keys")]

CLAIMS = [(script, claim) for script in ("exporter", "runner") for claim in claims(script)]


async def _make(database: str) -> str:
    keys = await Keys.open(database, create=True)
    try:
        _, text = await keys.create("algorithm")
        await keys.enforce()
    finally:
        await keys.close()
    return text


@pytest.fixture(scope="module")
def keyed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    database = f"sqlite:///{tmp_path_factory.mktemp('keyed') / 'run.db'}"
    key = asyncio.run(_make(database))
    with rollbook(database) as url:
        yield url.replace("http://", f"http://agent:{key}@")


@pytest.mark.parametrize("script, claim", CLAIMS)
def test_its_client_its_runner_and_the_stock_exporter_work_with_a_key(
    peer: Peer, keyed_url: str, script: str, claim: str
) -> None:
    raised = peer.outcomes(script, keyed_url)[claim]
    assert raised is None, raised
