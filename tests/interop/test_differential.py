"""Our adapters, told to be strict, give what Agent-lightning 0.3.0's own give, on its example and hundreds of traces.

ROLLBOOK_TORTURE=1 makes them thousands.

The two run in one process, in Agent-lightning's environment.
"""

from __future__ import annotations

import pytest

from tests.interop.peer import Peer, claims

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.xdist_group("interop-adapters")]


@pytest.mark.parametrize("claim", claims("adapters"))
def test_adapters_equal_those_of_agent_lightning(peer: Peer, claim: str) -> None:
    raised = peer.outcomes("adapters", "memory://")[claim]
    assert raised is None, raised
