"""No name of Agent-lightning is missing from the tables of docs/compatibility.md."""

from __future__ import annotations

import pytest

from tests.interop.peer import Peer, claims

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.xdist_group("interop-adapters")]


@pytest.mark.parametrize("claim", claims("names"))
def test_every_name_it_exports_is_listed(peer: Peer, claim: str) -> None:
    raised = peer.outcomes("names", "memory://")[claim]
    assert raised is None, raised
