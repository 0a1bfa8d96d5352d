"""Our adapters in strict mode return the results of Agent-lightning 0.3.0's, on its example and hundreds of traces.

With ROLLBOOK_TORTURE=1, the number of traces is in the thousands. Both adapters run in one process, in
Agent-lightning's environment.
"""

from __future__ import annotations

import pytest

from tests.interop.peer import Peer, claims

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.xdist_group("interop-adapters")]


@pytest.mark.parametrize("claim", claims("adapters"))
def test_adapters_equal_those_of_agent_lightning(peer: Peer, claim: str) -> None:
    raised = peer.outcomes("adapters", "memory://")[claim]
    assert raised is None, raised
