"""Agent-lightning's trainer accepts our adapters."""

from __future__ import annotations

import pytest

from tests.interop.peer import Peer, claims

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.xdist_group("interop-adapters")]


@pytest.mark.parametrize("claim", claims("shims"))
def test_our_adapters_are_of_its_type(peer: Peer, claim: str) -> None:
    raised = peer.outcomes("shims", "memory://")[claim]
    assert raised is None, raised
