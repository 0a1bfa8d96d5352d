"""Runs behind a server: calls run once, and have the results and errors of a store in process."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.client import HTTPStore
from store.errors import GraphChanged, Invalid, ReadOnly, TooLarge
from store.interface.store import Store
from store.models import AttemptedRollout, PhaseGraph, RunEvent
from store.server.store_server import StoreServer
from store.sql.store import SQLStore
from store.testing.contract.wrong_kinds import NOT_INTEGER, NOT_TEXT
from tests.client.lossy_proxy import LossyProxy
from tests.client.served import Served
from tests.runs.conftest import MEMORY_HTTP
from tests.runs.trading import FUND, TA, node
from tests.runs.trading_runs import auto_run, begin, do_phase, ended, rerun, seen

pytestmark = pytest.mark.parametrize("way", [MEMORY_HTTP], indirect=True)

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()


@pytest.fixture
async def url(behind: SQLStore, runs_server: Served) -> AsyncIterator[str]:
    """Where the store is served."""
    with runs_server.serving(behind) as url:
        yield url


async def test_a_phase_graph_crosses_the_wire_whole(store: Store) -> None:
    added = await store.add_resources({"phases": TA})
    graph = (await store.get_latest_resources() or added).resources["phases"]
    assert isinstance(graph, PhaseGraph)
    assert (graph, graph.digest) == (TA, TA.digest)


async def test_a_phase_graph_that_is_given_is_the_one_that_counts(store: Store, behind: SQLStore) -> None:
    run = await begin(store)
    other = TA.model_copy(update={"version": "2"})
    how: dict[str, Any] = {"scope": "rig", "name": "trader_checkpoint", "state": {"trader_investment_plan": "buy"}}
    saved = await store.runs.save_checkpoint(run.rollout_id, run.attempt.attempt_id, **how, graph=other)
    assert saved is not None
    assert (saved.graph, saved.scope) == (other.digest, "RIG")
    await ended(store, run)
    asked: dict[str, Any] = {"phase": "risk", "scopes": ["rig"], "graph": other}
    plan = await store.runs.plan_fork(run.rollout_id, **asked)
    assert plan == await behind.runs.plan_fork(run.rollout_id, **asked)
    assert await store.runs.get_graph(run.rollout_id, graph=other) == await behind.runs.get_graph(run.rollout_id)
    with pytest.raises(GraphChanged):
        await store.runs.fork(run.rollout_id, phase="risk", scopes=["rig"], cascade=False)
    forked = await store.runs.fork(run.rollout_id, **asked, cascade=False)
    assert forked.fork.graph == other.digest


async def test_the_example_of_the_page_does_the_same_behind_a_server(url: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (output,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert "sqlite:///desk.db" in example
    (tmp_path / "example.py").write_text(example.replace("sqlite:///desk.db", url))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "example.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == (output, "")


# Answers that are lost

Change = Callable[[Store, AttemptedRollout, str], Awaitable[Any]]


async def _in_an_ended_run(store: Store) -> AttemptedRollout:
    run = await begin(store)
    for name in ("analysts", "debate_and_trader"):
        await do_phase(store, run, name, "RIG")
    return await ended(store, run, "failed")


CHANGES: list[tuple[str, str, Change, int]] = [
    (
        "events",
        "/events",
        lambda store, run, _: store.runs.append_events(
            run.rollout_id,
            run.attempt.attempt_id,
            [*node("Trader", "RIG"), RunEvent.model_validate({"kind": "log", "own": None})],
        ),
        3,
    ),
    (
        "checkpoint",
        "/checkpoints",
        lambda store, run, _: store.runs.save_checkpoint(
            run.rollout_id, run.attempt.attempt_id, scope="RIG", name="mine", state={"a": [1]}
        ),
        1,
    ),
    (
        "rejected checkpoint",
        "/checkpoints",
        lambda store, run, _: store.runs.save_checkpoint(
            run.rollout_id, run.attempt.attempt_id, scope="RIG", name="trader_checkpoint", state={}
        ),
        1,
    ),
    (
        "artifact",
        "/artifacts",
        lambda store, run, _: store.runs.save_artifact(
            run.rollout_id, run.attempt.attempt_id, scope="RIG", name="report", content=None
        ),
        1,
    ),
    (
        "retraction",
        "/retract",
        lambda store, run, artifact_id: store.runs.retract_artifact(run.rollout_id, artifact_id, reason="wrong"),
        1,
    ),
    ("fork", "/forks", lambda store, run, _: rerun(store, run, phase="risk", scopes=["RIG"]), 4),
    ("superseding fork", "/forks", lambda store, run, _: _supersede(store, run), 4),
    ("resume", "/resume", lambda store, run, _: store.runs.resume(run.rollout_id), 4),
    ("head", "/head", lambda store, run, _: store.runs.move_head(run.rollout_id, run.attempt.attempt_id), 0),
]


def _supersede(store: Store, run: AttemptedRollout) -> Awaitable[Any]:
    return rerun(store, run, phase="risk", scopes=["RIG"], on_active="supersede")


@pytest.mark.parametrize("what,path,change,facts", CHANGES, ids=[case[0] for case in CHANGES])
async def test_a_change_whose_answer_is_lost_is_made_once(
    url: str, behind: SQLStore, what: str, path: str, change: Change, facts: int
) -> None:
    run = await _in_an_ended_run(behind)
    artifact = await behind.runs.save_artifact(run.rollout_id, run.attempt.attempt_id, scope="RIG", name="a", content=1)
    before = len(await behind.log.history(run.rollout_id))
    with LossyProxy.losing_first(url, path, times=2) as proxy:
        async with HTTPStore(proxy.url) as store:
            result = await change(store, run, artifact.artifact_id)
        assert proxy.lost == 2
    assert len(await behind.log.history(run.rollout_id)) == before + facts, what
    assert (result is None) == (what == "rejected checkpoint")
    assert (await behind.log.verify()).differences == []


async def test_a_head_whose_answer_is_lost_is_moved_once(url: str, behind: SQLStore) -> None:
    run = await auto_run(behind, tickers=["RIG"])
    again = await rerun(behind, run, phase="risk", scopes=["RIG"])
    with LossyProxy.losing_first(url, "/head", times=2) as proxy:
        async with HTTPStore(proxy.url) as store:
            moved = await store.runs.move_head(run.rollout_id, run.attempt.attempt_id, reason="undo")
    assert moved == await behind.runs.move_head(run.rollout_id, run.attempt.attempt_id)
    types = [event.type for event in await behind.log.history(run.rollout_id)]
    assert types.count("rollout.head_moved") == 1
    assert [attempt.sequence_id for attempt in await behind.runs.list_lineage(run.rollout_id) if attempt.is_head] == [1]
    assert again.attempt.sequence_id == 2


async def test_run_recorded_over_a_lossy_connection_is_complete(url: str, behind: SQLStore) -> None:
    with LossyProxy.losing(url, 0.2, seed=7) as proxy:
        async with HTTPStore(proxy.url) as store:
            run = await auto_run(store, tickers=["RIG"])
            await rerun(store, run, phase="risk", scopes=["RIG"])
        assert proxy.lost
    other = await auto_run(behind, tickers=["RIG"])
    await rerun(behind, other, phase="risk", scopes=["RIG"])
    told, expected = [
        [(event.kind, event.node_id, event.scope, event.phase, event.response) for event in page.items]
        for page in [await seen(behind, rollout, "raw") for rollout in (run, other)]
    ]
    assert told == expected
    types = [[event.type for event in await behind.log.history(rollout.rollout_id)] for rollout in (run, other)]
    assert types[0] == types[1]


# The forms of a store


async def test_a_long_view_comes_whole(store: Store, behind: SQLStore) -> None:
    run = await begin(store)
    text = "y" * 2000
    for part in range(3):
        events = [RunEvent(kind="result", node_id="n", response=f"{part}.{number} {text}") for number in range(400)]
        await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, events)
    assert await seen(store, run) == await seen(behind, run)


async def test_blocking_run_calls_return_the_same(store: Store, behind: SQLStore) -> None:
    run = await auto_run(behind, tickers=["RIG"])
    page = await asyncio.to_thread(lambda: store.sync.runs.query_events(run.rollout_id, limit=3))
    assert page == await behind.runs.query_events(run.rollout_id, limit=3)
    plan = await asyncio.to_thread(lambda: store.sync.runs.plan_fork(run.rollout_id, phase="risk", scopes=["RIG"]))
    assert plan == await behind.runs.plan_fork(run.rollout_id, phase="risk", scopes=["RIG"])


async def test_a_server_made_of_a_store_has_its_runs(behind: SQLStore) -> None:
    server = StoreServer(behind, port=0)
    await server.start()
    try:
        run = await auto_run(server, tickers=["RIG"])
        async with HTTPStore(server.endpoint) as distant:
            assert await seen(distant, run) == await seen(server, run) == await seen(behind, run)
            assert await distant.runs.scope_history("RIG") == await server.runs.scope_history("RIG")
    finally:
        await server.stop()


async def test_read_only_store_refuses_changes_of_a_run(url: str, behind: SQLStore) -> None:
    run = await auto_run(behind, tickers=["RIG"])
    async with await open_store(url, read_only=True) as store:
        assert await seen(store, run) == await seen(behind, run)
        await store.runs.plan_fork(run.rollout_id, phase="risk", scopes=["RIG"])
        for _, _, change, _ in CHANGES:
            with pytest.raises(ReadOnly):
                await change(store, run, "made")


async def test_names_that_are_words_of_the_protocol_are_names(store: Store, behind: SQLStore) -> None:
    run = await begin(store)
    for name in ("latest", "a/b", "ü ?&=#%", "..", "forks:plan"):
        reference = await store.runs.save_checkpoint(
            run.rollout_id, run.attempt.attempt_id, scope=name, name=name, state={"name": name}
        )
        checkpoint = await store.runs.get_checkpoint(run.rollout_id, scope=name, name=name)
        assert checkpoint == await behind.runs.get_checkpoint(run.rollout_id, scope=name, name=name)
        assert reference is not None
        assert checkpoint is not None
        assert (checkpoint.scope, checkpoint.state, checkpoint.checkpoint_id) == (
            name,
            {"name": name},
            reference.checkpoint_id,
        )


# Wrong kinds

Ask = Callable[[Any, AttemptedRollout, Any], Awaitable[Any]]
NO_EVENTS: Sequence[Any] = ("log", {"kind": "log"}, 7, [{"kind": "log"}], [None])
ASKED: list[tuple[str, Ask, Sequence[Any]]] = [
    ("rollout_id", lambda store, _, value: store.runs.list_lineage(value), NOT_TEXT),
    ("view", lambda store, run, value: store.runs.query_events(run.rollout_id, view=value), (*NOT_TEXT, "", "own:0")),
    ("after", lambda store, run, value: store.runs.query_events(run.rollout_id, after=value), (*NOT_INTEGER, -1)),
    ("limit", lambda store, run, value: store.runs.query_events(run.rollout_id, limit=value), (*NOT_INTEGER, -2)),
    ("at", lambda store, run, value: store.runs.query_events(run.rollout_id, at=value), NOT_INTEGER),
    ("scope", lambda store, run, value: store.runs.query_events(run.rollout_id, scope=value), NOT_TEXT),
    ("node_id", lambda store, run, value: store.runs.query_events(run.rollout_id, node_id=value), NOT_TEXT),
    ("kind", lambda store, run, value: store.runs.query_events(run.rollout_id, kind=value), NOT_TEXT),
    ("scope", lambda store, run, value: store.runs.list_checkpoints(run.rollout_id, scope=value), NOT_TEXT),
    ("name", lambda store, run, value: store.runs.query_artifacts(run.rollout_id, name=value), NOT_TEXT),
    ("name", lambda store, _, value: store.runs.scope_history("RIG", name=value), NOT_TEXT),
    ("scope", lambda store, _, value: store.runs.scope_history(value), (*NOT_TEXT, None)),
    (
        "search",
        lambda store, run, value: store.runs.get_checkpoint(run.rollout_id, scope="a", name="b", search=value),
        ("x", 1),
    ),
    ("a", lambda store, run, value: store.runs.compare_attempts(run.rollout_id, value, 1), (*NOT_INTEGER, None, 0)),
    (
        "scopes",
        lambda store, run, value: store.runs.plan_fork(run.rollout_id, phase="risk", scopes=value),
        ("RIG", [1], None),
    ),
]


@pytest.mark.parametrize("field,ask,values", ASKED, ids=[f"{number}-{case[0]}" for number, case in enumerate(ASKED)])
async def test_a_wrong_kind_is_refused_alike_beside_the_store_and_over_http(
    store: Store, behind: SQLStore, field: str, ask: Ask, values: Sequence[Any]
) -> None:
    run = await auto_run(behind, tickers=[FUND])
    for value in values:
        with pytest.raises(Invalid) as beside:
            await ask(behind, run, value)
        with pytest.raises(Invalid) as over_http:
            await ask(store, run, value)
        assert beside.value.field == over_http.value.field == field, value
        assert str(beside.value) == str(over_http.value)


async def test_invalid_run_events_are_refused_alike_locally_and_over_http(store: Store, behind: SQLStore) -> None:
    run = await begin(behind)
    for value in NO_EVENTS:
        texts: list[str] = []
        for side in (behind, store):
            with pytest.raises(Invalid) as refused:
                await side.runs.append_events(run.rollout_id, run.attempt.attempt_id, value)
            texts.append(str(refused.value))
        assert texts[0] == texts[1]
    for side in (behind, store):
        with pytest.raises(TooLarge, match="10,001 items"):
            await side.runs.append_events(run.rollout_id, run.attempt.attempt_id, [RunEvent(kind="log")] * 10_001)
