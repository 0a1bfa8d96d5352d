"""`rollbook runs`, `rerun`, `lineage`, `compare` and `undo`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
import pytest

from store import open_store
from store.examples.trading.desk import Desk
from store.examples.trading.runs import begin, drive
from store.interface import rerun_requests
from store.interface.store import Store
from store.models import RunEvent
from store.run_folders.folder_phases import DEBATE, PORTFOLIO, RISK, TA
from tests import postgres
from tests.cli.conftest import Rollbook, runner
from tests.client.served import Served
from tests.conftest import SQLITE

pytestmark = pytest.mark.slow

T = TypeVar("T")
NEWS = {"news_report": "A strike and a lawsuit: the operator warns of a loss."}
PIPELINE = "store.examples.trading.desk:pipeline"
RIG = ("--node", "Bull Researcher", "--scope", "rig")
SETS = ("--set", f"news_report={orjson.dumps(NEWS['news_report']).decode()}")


@dataclass(frozen=True, slots=True)
class Runs:
    """A store with a run that was run again in part, a younger one that is at work, and rollouts that are no runs."""

    url: str
    rerun: str
    attempts: list[str]
    at_work: str


async def fill(url: str) -> Runs:
    async with await open_store(url) as store:
        await store.enqueue_rollout("no run")
        run = await begin(store)
        await drive(store, run, Desk())
        again = await store.runs.fork(
            run.rollout_id,
            node=DEBATE[0],
            scopes=["RIG"],
            state_patch=NEWS,
            confirm_side_effects=True,
            reason="the news was old",
        )
        await drive(store, again.rollout, Desk())
        at_work = await begin(store)
        said = [
            RunEvent(kind="phase.started", phase="scan", scope="MARKET"),
            RunEvent(kind="phase.completed", phase="scan", scope="MARKET"),
            RunEvent(kind="phase.started", phase="analysts", scope="RIG"),
        ]
        await store.runs.append_events(at_work.rollout_id, at_work.attempt.attempt_id, said)
        await store.enqueue_rollout("no run either")
        attempts = [run.attempt.attempt_id, again.attempt.attempt_id]
        return Runs(url, run.rollout_id, attempts, at_work.rollout_id)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return asyncio.run(fill(f"sqlite:///{tmp_path_factory.mktemp('runs') / 'original.db'}"))


@pytest.fixture
def run_copy(durable_url: str, original: Runs) -> Runs:
    """A filled store that a test may change."""
    shutil.copy(urlsplit(original.url).path[1:], urlsplit(durable_url).path[1:])
    return replace(original, url=durable_url)


@pytest.fixture
def rollbook(run_copy: Runs, monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    return runner(run_copy.url, monkeypatch)


ON_POSTGRES = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])
"""The queries are those of `tests/runs`, which runs on both databases."""


@pytest.fixture(scope="module", params=[SQLITE, ON_POSTGRES])
def shared(request: pytest.FixtureRequest) -> Runs:
    """The same, for tests that change nothing."""
    if request.param == "sqlite":
        copied: Runs = request.getfixturevalue("original")
        return copied
    return asyncio.run(fill(postgres.with_partition(request.getfixturevalue("postgres_server"))))


@pytest.fixture
def looking(shared: Runs, monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    return runner(shared.url, monkeypatch)


@pytest.fixture
def served(original: Runs, tmp_path: Path) -> Iterator[Runs]:
    """The same, behind a server."""
    file = tmp_path / "served.db"
    shutil.copy(urlsplit(original.url).path[1:], file)
    behind = asyncio.run(open_store(f"sqlite:///{file}"))
    with Served() as server, server.serving(behind) as url:
        yield replace(original, url=url)
    asyncio.run(behind.close())


def ask(url: str, question: Callable[[Store], Awaitable[T]]) -> T:
    async def answer() -> T:
        async with await open_store(url) as store:
            return await question(store)

    return asyncio.run(answer())


def view(run_copy: Runs, name: str = "head") -> list[str]:
    page = ask(run_copy.url, lambda store: store.runs.query_events(run_copy.rerun, view=name, limit=-1))
    return [event.model_dump_json() for event in page.items]


def test_runs_are_listed_newest_first_without_plain_rollouts(looking: Rollbook, shared: Runs) -> None:
    rows = looking("runs").table
    assert [row["run"] for row in rows] == [shared.at_work, shared.rerun]
    assert [row["status"] for row in rows] == ["running", "succeeded"]
    assert [(row["attempts"], row["head"], row["phases"]) for row in rows] == [("1", "1", "1/2"), ("2", "2", "8/8")]
    assert {row["group"] for row in rows} == {"trading-2026-11-20"}
    assert "8 of 8" in looking("runs", terminal=True).out
    assert [row["run"] for row in looking("runs", "--limit", "1").table] == [shared.at_work]
    (_, told) = looking("runs", "--json").json
    assert (told["rollout"]["rollout_id"], told["attempts"], told["head"]) == (shared.rerun, 2, 2)
    assert (told["phases_done"], told["phases_begun"]) == (8, 8)


def test_decisions_about_a_scope_are_listed_across_runs(looking: Rollbook, shared: Runs) -> None:
    rows = looking("runs", "--scope", "RIG", "--name", "final_trade_decision").table
    assert [(row["run"], row["attempt"], row["name"], row["phase"], row["content"]) for row in rows] == [
        (shared.rerun, "2", "final_trade_decision", "risk", '{"action":"SELL","shares":20}'),
        (shared.rerun, "1", "final_trade_decision", "risk", '{"action":"BUY","shares":50}'),
    ]
    of_fund = looking("runs", "--scope", "main_portfolio", "--name", "pm_decision", "--json").json
    assert [decision["content"]["RIG"]["action"] for decision in of_fund] == ["SELL", "BUY"]
    assert len(looking("runs", "--scope", "main_portfolio", "-n", "1").table) == 1


def test_retracted_artifacts_are_listed_as_retracted(rollbook: Rollbook, run_copy: Runs) -> None:
    query: dict[str, Any] = {"scope": "RIG", "name": "final_trade_decision", "view": "attempt:1"}
    (artifact,) = ask(run_copy.url, lambda store: store.runs.query_artifacts(run_copy.rerun, **query))
    ask(run_copy.url, lambda store: store.runs.retract_artifact(run_copy.rerun, artifact.artifact_id))
    assert [row["retracted"] for row in rollbook("runs", "--scope", "RIG", "--name", "final_trade_decision").table] == [
        "",
        "retracted",
    ]


def test_unknown_scope_gives_a_notice(looking: Rollbook) -> None:
    printed = looking("runs", "--scope", "rig")
    assert (printed.code, printed.table) == (0, [])
    assert "give the exact name of the scope" in printed.err


def test_lineage_shows_the_base_of_each_attempt(looking: Rollbook, shared: Runs) -> None:
    first, again = looking("lineage", shared.rerun.removeprefix("ro-")).table
    assert (first["#"], first["head"], first["kind"], first["base"], first["again"]) == ("1", "", "first", "", "")
    assert (again["#"], again["head"], again["kind"], again["base"]) == ("2", "head", "rerun", "1")
    assert again["again"] == "debate_and_trader of RIG, then portfolio"
    assert (again["status"], again["reason"]) == ("succeeded", "the news was old")
    assert [first["attempt"], again["attempt"]] == shared.attempts
    assert "└─ 2" in looking("lineage", shared.rerun, terminal=True).out
    nodes = ask(shared.url, lambda store: store.runs.list_lineage(shared.rerun))
    assert looking("lineage", shared.rerun, "--json").json == orjson.loads(
        orjson.dumps([node.model_dump() for node in nodes])
    )


def test_two_attempts_are_compared_node_by_node(looking: Rollbook, shared: Runs) -> None:
    printed = looking("compare", shared.rerun, "1", "2")
    replaced = [row for row in printed.table if row["change"] == "replaced"]
    assert [row["node"] for row in replaced] == [*DEBATE, *RISK, *PORTFOLIO]
    assert {row["answer"] for row in replaced if row["scope"] == "RIG"} == {"other"}
    assert {row["answer"] for row in printed.table if row["change"] == "kept"} == {"same"}
    assert "30 kept, 17 replaced, 0 added, 0 removed" in printed.err
    assert "attempt 2 started with changes of the state: news_report" in printed.err
    assert looking("compare", shared.rerun, "1", "2", "--json").json["counts"]["replaced"] == 17


def test_comparison_on_a_terminal_shows_only_changes_by_default(looking: Rollbook, shared: Runs) -> None:
    short = looking("compare", shared.rerun, "1", "2", terminal=True).out
    assert "Trader" in short
    assert "macro_synthesis" not in short
    assert "macro_synthesis" in looking("compare", shared.rerun, "1", "2", "--all", terminal=True).out


def test_plan_describes_the_rerun_and_changes_nothing(looking: Rollbook, shared: Runs) -> None:
    before = view(shared, "raw")
    printed = looking("rerun", shared.rerun, *RIG, "--plan")
    assert printed.code == 0
    facts = dict(line.split("  ", 1) for line in printed.out.splitlines())
    told = {name.strip(): text.strip() for name, text in facts.items()}
    assert told | {"from": ""} == {
        "builds on": "attempt 2",
        "starts at": "Bull Researcher, for RIG",
        "from": "",
        "runs again": "debate_and_trader, risk; then portfolio",
        "keeps": "70 events",
        "hides": "40 events of 17 nodes",
        "unsafe": "portfolio would repeat side effects",
    }
    assert told["from"].startswith("analysts_checkpoint of RIG (version ")
    assert looking("rerun", shared.rerun, *RIG, "--plan", "--base", "1", "--json").json["kind"] == "branch"
    assert view(shared, "raw") == before
    assert len(looking("lineage", shared.rerun).table) == 2


def test_a_rerun_without_a_runner_is_requested_and_the_head_stays(rollbook: Rollbook, run_copy: Runs) -> None:
    options = ("--confirm-side-effects", "--reason", "once more", *SETS)
    again = ("rerun", run_copy.rerun, "--phase", "risk", "--scope", "TSDD", *options)
    printed = rollbook(*again)
    assert printed.code == 0
    assert "sets        news_report" in printed.out
    assert "requested: " in printed.out
    assert "No runner of this pipeline is live, so the run stays as it is" in printed.err
    assert "--with MODULE:PIPELINE executes the re-run here" in printed.err
    assert [row["#"] for row in rollbook("lineage", run_copy.rerun).table] == ["1", "2"]
    assert "waits for a runner" in rollbook(*again).err

    async def take(store: Store) -> None:
        request = await rerun_requests.open_request(store, run_copy.rerun)
        assert request is not None
        assert await rerun_requests.take(store, run_copy.rerun, request, TA, "runner-1") is not None

    ask(run_copy.url, take)
    node = ask(run_copy.url, lambda store: store.runs.list_lineage(run_copy.rerun))[-1]
    assert node.fork is not None
    assert (node.status, node.is_head, node.fork.base, node.fork.phase) == ("preparing", True, 2, "risk")
    assert (node.fork.scopes, node.fork.reason, node.fork.state_patch) == (["TSDD"], "once more", NEWS)


def test_a_rerun_with_a_pipeline_is_run_to_its_end(rollbook: Rollbook, run_copy: Runs) -> None:
    printed = rollbook("rerun", run_copy.rerun, *RIG, "--confirm-side-effects", "--with", PIPELINE, "--base", "1")
    assert printed.code == 0, printed.err
    assert printed.out.splitlines()[-1] == "attempt 3 succeeded"
    rows = rollbook("runs", "--scope", "RIG", "--name", "final_trade_decision").table
    assert rows[0]["content"] == '{"action":"BUY","shares":50}'
    assert rollbook("runs", "--limit", "2").table[1]["head"] == "3"


def test_error_of_a_pipeline_is_printed_and_fails_the_attempt(
    rollbook: Rollbook, run_copy: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_desk.py").write_text(
        "from store.run_folders.folder_phases import TA\n"
        "from store.training import Pipeline\n"
        "pipeline = Pipeline(TA)\n"
        "async def work(step):\n"
        "    raise LookupError('no market today')\n"
        "for name in TA.by_name:\n"
        "    pipeline.phase(name)(work)\n"
    )
    options = ("--confirm-side-effects", "--with", "broken_desk:pipeline", "--json")
    printed = rollbook("rerun", run_copy.rerun, *RIG, *options)
    assert printed.code == 1
    assert printed.err == "rollbook: LookupError: no market today\n"
    told = orjson.loads(printed.out)
    assert (told["status"], told["attempt"]["sequence_id"]) == ("failed", 3)
    assert rollbook("lineage", run_copy.rerun).table[-1]["status"] == "failed"
    # What it did not come to is still known from before.
    again = rollbook("rerun", run_copy.rerun, *RIG, "--confirm-side-effects", "--with", PIPELINE)
    assert again.out.splitlines()[-1] == "attempt 4 succeeded"


REFUSED: list[tuple[tuple[str, ...], int, str]] = [
    (RIG, 1, "give --confirm-side-effects to repeat them, or --no-cascade"),
    (("--node", "Nobody", "--scope", "RIG"), 2, "no phase of graph 'tradingagents' lists 'Nobody'"),
    (("--phase", "risk"), 2, "give the scopes for which phase 'risk' has to run again"),
    (("--phase", "risk", "--scope", "XX"), 2, "the run has no scope XX; its scopes: MARKET, RIG, TSDD"),
    ((), 2, "give either the phase to run again or one of its nodes"),
    ((*RIG, "--set", "news"), 2, "'news' is not of the form KEY=JSON"),
    ((*RIG, "--set", "news=old"), 2, "'old' is not JSON; a text needs its quotes: --set 'news=\"…\"'"),
    ((*RIG, "--base", "7"), 5, "7"),
    ((*RIG, "--base", "tail"), 2, "tail"),
    ((*RIG, "--with", "nothing"), 2, "--with: 'nothing' is not of the form package.module:NAME"),
    ((*RIG, "--with", "store.models:Phase"), 2, "'store.models:Phase' is not a Pipeline"),
]


def test_impossible_rerun_is_refused_with_the_command_to_use(looking: Rollbook, shared: Runs) -> None:
    for options, code, text in REFUSED:
        printed = looking("rerun", shared.rerun, *options)
        assert (printed.code, text in printed.err) == (code, True), (options, printed)
    assert len(looking("lineage", shared.rerun).table) == 2


def test_an_attempt_at_work_is_ended_only_when_that_is_asked_for(rollbook: Rollbook, run_copy: Runs) -> None:
    options = ("--phase", "scan", "--no-cascade")
    printed = rollbook("rerun", run_copy.at_work, *options)
    assert printed.code == 1
    assert "give --supersede to end it" in printed.err
    printed = rollbook("rerun", run_copy.at_work, *options, "--supersede", "--with", PIPELINE)
    assert printed.code == 0, printed.err
    assert [row["status"] for row in rollbook("lineage", run_copy.at_work).table] == ["failed", "succeeded"]


def test_a_missing_checkpoint_is_refused_or_all_is_run(looking: Rollbook, shared: Runs) -> None:
    options = ("--phase", "risk", "--scope", "RIG", "--plan")
    printed = looking("rerun", shared.at_work, *options)
    assert printed.code == 1
    assert "give --on-missing full to run the whole scope" in printed.err
    degraded = looking("rerun", shared.at_work, *options, "--on-missing", "full").out
    assert "risk needs trader_checkpoint, which RIG does not have" in degraded


def test_pipeline_is_not_started_while_a_scope_is_missing(
    looking: Rollbook, shared: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare_desk.py").write_text(
        "from store.run_folders.folder_phases import TA\nfrom store.training import Pipeline\npipeline = Pipeline(TA)\n"
    )
    options = ("--phase", "scan", "--supersede", "--with", "bare_desk:pipeline")
    printed = looking("rerun", shared.at_work, *options)
    assert printed.code == 2
    assert "has no portfolio: neither its input nor its events name one" in printed.err
    assert len(looking("lineage", shared.at_work).table) == 1


def test_behind_a_server_it_is_all_the_same(served: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    rollbook = runner(served.url, monkeypatch)
    assert [row["phases"] for row in rollbook("runs").table] == ["1/2", "8/8"]
    assert len(rollbook("runs", "--scope", "RIG", "--name", "final_trade_decision").table) == 2
    assert "30 kept, 17 replaced" in rollbook("compare", served.rerun, "1", "2").err
    before = view(served)
    for options, code, text in REFUSED:
        printed = rollbook("rerun", served.rerun, *options)
        assert (printed.code, text in printed.err) == (code, True), (options, printed)
    printed = rollbook("rerun", served.rerun, *RIG, *SETS, "--confirm-side-effects", "--with", PIPELINE)
    assert (printed.code, printed.out.splitlines()[-1]) == (0, "attempt 3 succeeded"), printed
    assert rollbook("undo", served.rerun).code == 0
    assert view(served) == before
    assert [row["kind"] for row in rollbook("lineage", served.rerun).table] == ["first", "rerun", "rerun"]


def test_undo_restores_the_view_and_can_be_undone(rollbook: Rollbook, run_copy: Runs) -> None:
    after, before = view(run_copy), view(run_copy, "attempt:1")
    printed = rollbook("undo", run_copy.rerun, "--reason", "the old news was right")
    assert (printed.code, printed.out) == (0, f"{run_copy.rerun}\tattempt 1\n")
    assert printed.err == "attempt 2 is kept; `--to 2` goes back to it\n"
    assert view(run_copy) == before
    assert rollbook("undo", run_copy.rerun, "--to", "2", "--json").json == {
        "rollout_id": run_copy.rerun,
        "from": 1,
        "to": 2,
    }
    assert view(run_copy) == after
    assert rollbook("undo", run_copy.rerun, "--to", run_copy.attempts[0]).code == 0
    assert view(run_copy) == before


def test_there_is_nothing_to_undo_before_a_rerun(looking: Rollbook, shared: Runs) -> None:
    printed = looking("undo", shared.at_work)
    assert printed.code == 2
    assert "attempt 1 is not a re-run" in printed.err
    assert looking("undo", shared.rerun, "--to", "9").code == 5


def test_a_rerun_that_was_resumed_is_undone_whole(rollbook: Rollbook, run_copy: Runs) -> None:
    async def crash(store: Store) -> None:
        again = await store.runs.fork(run_copy.rerun, node="Trader", scopes=["TSDD"], confirm_side_effects=True)
        await store.update_attempt(run_copy.rerun, again.attempt.attempt_id, status="failed")
        await store.runs.resume(run_copy.rerun, confirm_side_effects=True)

    ask(run_copy.url, crash)
    assert [row["kind"] for row in rollbook("lineage", run_copy.rerun).table][2:] == ["rerun", "resume"]
    assert rollbook("undo", run_copy.rerun).out == f"{run_copy.rerun}\tattempt 2\n"


def test_looking_at_runs_never_makes_a_store(durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rollbook = runner(durable_url, monkeypatch)
    for command in (
        ("runs",),
        ("runs", "--scope", "RIG"),
        ("lineage", "ro-1"),
        ("compare", "ro-1", "1", "2"),
        ("rerun", "ro-1", *RIG),
        ("rerun", "ro-1", *RIG, "--plan"),
        ("undo", "ro-1"),
    ):
        printed = rollbook(*command)
        assert (printed.code, printed.out) == (5, ""), command
        assert "rollbook migrate" in printed.err
    assert list(tmp_path.iterdir()) == []
