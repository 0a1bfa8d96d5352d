"""Agent-lightning 0.3.0, unmodified: its client, its runner and tracer, and its exporters.

Scripts for a server also run with Agent-lightning's server, so that their claims describe its protocol.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.peer import Peer, claims

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SQLITE = pytest.mark.xdist_group("interop-sqlite")
POSTGRES = [pytest.mark.xdist_group("interop-postgres"), pytest.mark.postgres]

ONLY_HERE = {
    "an_id_that_does_not_exist_is_an_error_of_status_400",
    "a_body_may_come_in_deflate",
    "spans_of_a_missing_rollout_do_no_harm",
}
"""What Agent-lightning's own server does not do."""


def _here(*scripts: str) -> list[Any]:
    return [
        pytest.param(server, claim, marks=marks)
        for claim in claims(*scripts)
        for server, marks in (("sqlite", SQLITE), ("postgres", POSTGRES))
    ]


def _everywhere(*scripts: str) -> list[Any]:
    there = [claim for claim in claims(*scripts) if claim not in ONLY_HERE]
    return [*_here(*scripts), *(pytest.param("upstream", claim, marks=SQLITE) for claim in there)]


@pytest.mark.parametrize("served, claim", _everywhere("methods", "client"), indirect=["served"])
def test_every_method_of_its_client_works(peer: Peer, served: tuple[str, str], claim: str) -> None:
    _holds(peer, "client", served, claim)


@pytest.mark.parametrize("served, claim", _everywhere("runner"), indirect=["served"])
def test_its_runner_and_its_tracer_carry_out_rollouts(peer: Peer, served: tuple[str, str], claim: str) -> None:
    _holds(peer, "runner", served, claim)


@pytest.mark.parametrize("served, claim", _everywhere("exporter"), indirect=["served"])
def test_the_stock_exporter_delivers_spans(peer: Peer, served: tuple[str, str], claim: str) -> None:
    _holds(peer, "exporter", served, claim)


IN_PROCESS = [
    *_here("methods", "adapter"),
    *(pytest.param("served", claim, marks=SQLITE) for claim in claims("methods", "adapter")),
]


@pytest.mark.parametrize("database, claim", IN_PROCESS, indirect=["database"])
def test_every_method_of_our_store_works_in_its_process(peer: Peer, database: str, claim: str) -> None:
    raised = peer.outcomes("adapter", database)[claim]
    assert raised is None, raised


def _holds(peer: Peer, script: str, served: tuple[str, str], claim: str) -> None:
    kind, url = served
    raised = peer.outcomes(script, url, ONLY_HERE if kind == "upstream" else ())[claim]
    assert raised is None, raised
