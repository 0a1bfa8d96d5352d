"""The trading example: a run, interruptions and resumption, a repeated debate, and undo."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, cast

import pytest

from store import open_store
from store.errors import Invalid
from store.examples.trading import model
from store.examples.trading.desk import SCOPES, Desk
from store.examples.trading.feeds import TICKERS
from store.examples.trading.job import run as show
from store.examples.trading.runs import begin, drive, dying_at, go_on, left_behind
from store.interface.store import Store
from store.models import AttemptedRollout, LoggedEvent, RunEventRow
from store.run_folders.folder_phases import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, RISK, SCAN
from tests.cli.conftest import COMMAND, environment
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE
from tests.torture import rounds
from tests.training.stores import POSTGRES_IN_TORTURE, SQLITE_IN_TORTURE

WORKER = [sys.executable, "-m", "store.examples.trading.worker"]
NEWS = {"news_report": "A strike and a lawsuit: the operator warns of a loss."}
AGAIN: dict[str, Any] = {"node": "Bull Researcher", "scopes": ["rig"], "confirm_side_effects": True}


async def finished(store: Store) -> AttemptedRollout:
    """Return a run that went through without a fault."""
    run = await begin(store)
    await drive(store, run, Desk())
    return run


async def view(store: Store, run: AttemptedRollout, name: str = "head") -> list[RunEventRow]:
    return (await store.runs.query_events(run.rollout_id, view=name, limit=-1)).items


def texts(events: Iterable[RunEventRow]) -> list[str]:
    return [event.model_dump_json() for event in events]


def answers(events: Iterable[RunEventRow]) -> dict[tuple[str | None, str | None], str | None]:
    """Return what each node answered; a node that answered twice is an error."""
    responses: dict[tuple[str | None, str | None], str | None] = {}
    for event in events:
        if event.kind == "result":
            assert (event.scope, event.node_id) not in responses
            responses[event.scope, event.node_id] = event.response
    return responses


async def decided(store: Store, run: AttemptedRollout, name: str = "head") -> Any:
    (decision,) = await store.runs.query_artifacts(run.rollout_id, scope=FUND, name="pm_decision", view=name)
    return decision.content


async def test_a_run_goes_through_every_node_of_every_scope_once(store: Store) -> None:
    events = await view(store, await finished(store))
    told = answers(events)
    per_ticker = (*ANALYSTS, *DEBATE, *RISK)
    assert set(told) == {
        *((MARKET, node) for node in SCAN),
        *((ticker, node) for ticker in TICKERS for node in per_ticker),
        *((FUND, node) for node in PORTFOLIO),
    }
    tools = {event.node_id: event.parent_node_id for event in events if event.kind == "tool_result"}
    assert tools == dict(zip(("get_prices", "get_posts", "get_news", "get_filings"), ANALYSTS, strict=True))


async def test_each_run_says_the_same(store: Store) -> None:
    one, other = await finished(store), await finished(store)
    assert answers(await view(store, one)) == answers(await view(store, other))
    expected = {"RIG": {"action": "BUY", "shares": 50}, "TSDD": {"action": "SELL", "shares": 30}}
    assert await decided(store, one) == await decided(store, other) == expected
    assert one.resources_id == other.resources_id


async def test_the_model_follows_the_first_line_of_its_prompt() -> None:
    material = "A record contract. The plant is cold. A strike and a loss."
    assert (await model.ask(f"Argue for X\n{material}")).text == "A record contract."
    assert (await model.ask(f"Argue against X\n{material}")).text == "A strike and a loss."
    assert (await model.ask(f"Judge X\n{material}")).text == "HOLD (+0)"
    assert (await model.ask("Judge X\nA record profit.")).text == "BUY (+2)"
    assert (await model.ask("Judge X\nA loss, a strike.")).text == "SELL (-2)"
    assert (await model.ask("Argue for X\nIt rains.")).text == "Little speaks for it."
    said = await model.ask(f"Report\n{material}")
    assert (said.text, said.tokens_in, said.tokens_out) == (material, 13, 12)


async def killed_after(store: Store, url: str, events: int) -> AttemptedRollout:
    """Return a run whose process was killed (SIGKILL) when it had told so many events."""
    run = await begin(store)
    process = await asyncio.create_subprocess_exec(*WORKER, url, run.rollout_id, "0.01")
    try:
        log = cast(
            "AsyncGenerator[LoggedEvent]",
            store.log.tail(follow=True, types=["run.event"], rollout_id=run.rollout_id),
        )
        async with aclosing(log):
            async for _ in log:
                events -= 1
                if events == 0:
                    break
    finally:
        process.kill()
        await process.wait()
    return run


def done_of(events: Iterable[RunEventRow]) -> set[tuple[str | None, str | None]]:
    return {(event.scope, event.phase) for event in events if event.kind == "phase.completed"}


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_killed_run_resumes_with_the_same_decisions(durable_url: str) -> None:
    chosen = random.Random(3)
    async with await open_store(durable_url) as store:
        uninterrupted = await finished(store)
        told = [event for event in await view(store, uninterrupted) if not event.kind.startswith("phase.")]
        for _ in range(rounds(30, few=1)):
            run = await killed_after(store, durable_url, chosen.randrange(1, len(told) - 5))
            before = await view(store, run, "attempt:1")
            resumed = await go_on(store, run)
            await drive(store, resumed, Desk())
            after = await view(store, run)
            assert answers(after) == answers(await view(store, uninterrupted))
            assert await decided(store, run) == await decided(store, uninterrupted)
            if resumed.attempt.sequence_id == 1:
                continue  # all was done before the signal came
            events = await view(store, run, "own:2")
            assert not done_of(before) & {(event.scope, event.phase) for event in events}, "done, and run once more"
            lost = (await store.query_attempts(run.rollout_id)).items[0]
            assert lost.status == "failed"
        assert (await store.log.verify()).ok


@pytest.mark.slow
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_the_command_that_died_at_a_node_goes_on_when_it_is_given_again(durable_url: str) -> None:
    command = [*COMMAND, "trading"]
    env = environment(durable_url)
    died = await asyncio.to_thread(subprocess.run, [*command, "--stop-at", "Trader/tsdd"], env=env, capture_output=True)
    assert (died.returncode, died.stderr) == (-signal.SIGKILL, b"")
    async with await open_store(durable_url) as store:
        lost = await left_behind(store)
    assert lost is not None
    done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"2. The run continues: {lost.rollout_id}" in done.stdout
    assert "1. A run" not in done.stdout
    async with await open_store(durable_url) as store:
        assert await left_behind(store) is None
        assert [node.kind for node in await store.runs.list_lineage(lost.rollout_id)] == ["first", "resume", "rerun"]
        first = await view(store, lost, "own:1")
    last = [event for event in first if event.scope == "TSDD"][-1]
    assert (last.node_id, last.kind) == ("Trader", "thought")


async def test_an_attempt_that_only_did_not_say_that_it_was_done_has_succeeded(store: Store) -> None:
    run = await begin(store)
    await Desk().pipeline.run(store, run, SCOPES)
    resumed = await go_on(store, run)
    await drive(store, resumed, Desk())
    (only,) = await store.query_attempts(run.rollout_id)
    assert only.status == "succeeded"


async def test_a_run_that_somebody_works_on_is_not_taken_away(store: Store) -> None:
    await begin(store)
    assert await left_behind(store) is None


@pytest.mark.parametrize(
    "place,problem",
    [("Bully", "'Bully' is none of geopolitical_scanner"), ("Trader/XX", "Trader is never about 'XX', only about RIG")],
)
def test_a_place_that_no_run_reaches_is_refused(place: str, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        dying_at(place)


def test_a_store_that_no_other_process_can_open_is_refused() -> None:
    with pytest.raises(Invalid, match="pass a store that both can open"):
        show("memory://")


def is_replaced(event: RunEventRow) -> bool:
    """Whether the debate of RIG, with what follows from it, hides an event."""
    nodes = {*DEBATE, *RISK} if event.scope == "RIG" else {*PORTFOLIO}
    phases = {"debate_and_trader", "risk"} if event.scope == "RIG" else {"portfolio"}
    of_node = event.node_id in nodes or event.parent_node_id in nodes
    return of_node or (event.node_id is None and event.phase in phases)


async def test_a_debate_once_more_hides_itself_the_risk_and_the_portfolio_and_nothing_else(store: Store) -> None:
    run = await finished(store)
    before = await view(store, run)
    plan = await store.runs.plan_fork(run.rollout_id, node="Bull Researcher", scopes=["rig"])
    again = await store.runs.fork(run.rollout_id, **AGAIN)
    unchanged = [event for event in before if not is_replaced(event)]
    assert texts(await view(store, run)) == texts(unchanged)
    assert (plan.kept, plan.hidden) == (len(unchanged), len(before) - len(unchanged))
    assert plan.nodes == len(DEBATE) + len(RISK) + len(PORTFOLIO)
    await drive(store, again.rollout, Desk())
    after = await view(store, run)
    assert texts(after[: len(unchanged)]) == texts(unchanged)
    assert {event.attempt for event in after[len(unchanged) :]} == {2}
    assert {event.rerun_seq for event in after[len(unchanged) :]} == {1}
    assert answers(after) == answers(before), "the same question has the same answer"
    assert texts(await view(store, run, "attempt:1")) == texts(before)


async def test_other_news_make_another_decision_and_a_comparison_that_counts_it(store: Store) -> None:
    run = await finished(store)
    again = await store.runs.fork(run.rollout_id, **AGAIN, state_patch=NEWS)
    await drive(store, again.rollout, Desk())
    assert (await decided(store, run))["RIG"] == {"action": "SELL", "shares": 20}
    assert (await decided(store, run, "attempt:1"))["RIG"] == {"action": "BUY", "shares": 50}
    diff = await store.runs.compare_attempts(run.rollout_id, 1, 2)
    replaced = len(DEBATE) + len(RISK) + len(PORTFOLIO)
    # Each analyst has a tool.
    per_ticker = 2 * len(ANALYSTS) + len(DEBATE) + len(RISK)
    unchanged = len(SCAN) + 2 * len(ANALYSTS) + per_ticker
    assert diff.counts == {"kept": unchanged, "replaced": replaced, "added": 0, "removed": 0}
    assert diff.state_patch == NEWS
    other = {node.node_id for node in diff.nodes if node.same_response is False and node.scope == "RIG"}
    assert other == {*DEBATE, *RISK}


async def test_undo_brings_the_view_back_byte_for_byte(store: Store) -> None:
    run = await finished(store)
    before = texts(await view(store, run))
    again = await store.runs.fork(run.rollout_id, **AGAIN, state_patch=NEWS)
    await drive(store, again.rollout, Desk())
    replaced = texts(await view(store, run))
    assert replaced != before
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id)
    assert texts(await view(store, run)) == before
    await store.runs.move_head(run.rollout_id, again.attempt.attempt_id)
    assert texts(await view(store, run)) == replaced


# The one story on Postgres; the other tests show on SQLite what it is made of.
@pytest.mark.slow
@pytest.mark.parametrize("durable_url", [SQLITE_IN_TORTURE, POSTGRES], indirect=True)
def test_the_example_tells_its_story(durable_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(durable_url) == 0
    told = capsys.readouterr().out
    headings = re.findall(r"^(\d)\. ", told, re.MULTILINE)
    assert headings == ["1", "2", "3", "4", "5"]
    for sentence in (
        "Its process was killed (SIGKILL) at Research Manager of RIG",
        "RIG     6 of 7      Research Manager, running",
        "hides       40 events of 17 nodes",
        "RIG     BUY 50     SELL 20",
        "Of the nodes: 30 kept, 17 replaced, 0 added, 0 removed.",
        "its view is what it was, 110 events; attempt 3 stays",
        "every row is the fold of its events",
    ):
        assert sentence in told
    run_id = re.findall(r"^1\. A run: (ro-\w+)$", told, re.MULTILINE)[0]
    assert f"rollbook compare {run_id} 2 3 --db '" in told


@pytest.mark.slow
@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
def test_behind_a_server_it_tells_the_same_story(durable_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    behind = asyncio.run(open_store(durable_url))
    with Served() as server, server.serving(behind) as url:
        assert show(url) == 0
    asyncio.run(behind.close())
    told = capsys.readouterr().out
    assert "RIG     BUY 50     SELL 20" in told
    assert "its view is what it was, 110 events; attempt 3 stays" in told
