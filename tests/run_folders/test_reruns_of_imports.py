"""A re-run of an imported run executes exactly the phases of its plan. The folders are those of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.errors import CheckpointMissing
from store.interface.store import Store
from store.models import AttemptedRollout, ForkResult
from store.run_folders import export_run_folder, import_run_folder
from store.training import Pipeline, Step
from tests.run_folders.folder_samples import tree
from tests.run_folders.foreign import COMPLETE, FOLDERS, HALF_WAY, NODES, ORPHAN, STOPPED_RERUN, Foreign, checkpoints
from tests.runs.trading import FUND, MARKET, TA


class Desk:
    """A pipeline of the trading graph that records the phases which it executes, with their first states."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.states: dict[tuple[str, str], dict[str, Any]] = {}
        self.pipeline = Pipeline(TA)
        for name in TA.by_name:
            self.pipeline.phase(name)(self._work)

    async def _work(self, step: Step) -> None:
        self.ran.append((step.phase.name, step.scope))
        self.states[step.phase.name, step.scope] = dict(step.state)
        step.state |= {"market_report": "new"} if step.phase.name == "analysts" else {}
        step.state |= {"trader_investment_plan": "new"} if step.phase.name == "debate_and_trader" else {}

    async def execute(self, store: Store, started: ForkResult) -> list[tuple[str, str]]:
        """Execute an attempt, and return the phases that ran, sorted."""
        await self.pipeline.execute(store, started.rollout)
        await store.update_attempt(started.rollout.rollout_id, started.attempt.attempt_id, status="succeeded")
        return sorted(self.ran)


async def imported(store: Store, folder: Foreign, root: Path) -> AttemptedRollout:
    (report,) = await import_run_folder(store, folder.write(root))
    assert (report.outcome, report.reason) == ("imported", None)
    assert report.rollout_id is not None
    rollout = await store.get_rollout_by_id(report.rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    return rollout


def phases(*names: str, scope: str = "RIG") -> list[tuple[str, str]]:
    return [(name, scope) for name in names]


@pytest.mark.parametrize("name", FOLDERS)
async def test_rerun_of_every_node_executes_the_phases_of_its_plan(store: Store, tmp_path: Path, name: str) -> None:
    run = await imported(store, FOLDERS[name], tmp_path)
    fund = "PORTFOLIO" if name == "unnamed" else FUND
    for index, node in enumerate(NODES):
        again = ("analysts", "debate_and_trader", "risk")[index // 4 :]
        options: dict[str, Any] = {"node": node, "scopes": ["RIG"], "base": f"attempt:{run.attempt.sequence_id}"}
        plan = await store.runs.plan_fork(run.rollout_id, **options)
        assert (plan.phases, plan.cascade, plan.degraded) == ([*again], ["portfolio"], None)
        desk = Desk()
        ran = await desk.execute(store, await store.runs.fork(run.rollout_id, **options, confirm_side_effects=True))
        assert ran == sorted([*phases(*again), ("portfolio", fund)]), node
        mark = " again" if name == "repeated" else ""
        expected: dict[str, Any] = checkpoints("RIG", "", mark)["RIG/report/trader_checkpoint.json"]
        if again[0] == "risk":
            assert desk.states["risk", "RIG"] == {key: value for key, value in expected.items() if key != "messages"}
        view = await store.runs.query_events(run.rollout_id, limit=-1)
        others = [event for event in view.items if event.scope in {"TSDD", MARKET}]
        assert len(others) == sum(event["identifier"] in {"TSDD", MARKET} for event in FOLDERS[name].events)


async def test_rerun_without_cascade_leaves_the_portfolio_alone(store: Store, tmp_path: Path) -> None:
    run = await imported(store, COMPLETE, tmp_path)
    started = await store.runs.fork(run.rollout_id, phase="debate_and_trader", scopes=["TSDD", "RIG"], cascade=False)
    every = [*phases("debate_and_trader", "risk"), *phases("debate_and_trader", "risk", scope="TSDD")]
    assert await Desk().execute(store, started) == sorted(every)


@pytest.mark.parametrize("phase,scope", [("scan", MARKET), ("portfolio", FUND)])
async def test_rerun_of_the_market_or_the_portfolio_repeats_only_its_phases(
    store: Store, tmp_path: Path, phase: str, scope: str
) -> None:
    run = await imported(store, COMPLETE, tmp_path)
    started = await store.runs.fork(run.rollout_id, phase=phase, scopes=[scope], confirm_side_effects=True)
    assert await Desk().execute(store, started) == [(phase, scope)]


async def test_ticker_without_a_checkpoint_is_repeated_in_full(store: Store, tmp_path: Path) -> None:
    run = await imported(store, HALF_WAY, tmp_path)
    options: dict[str, Any] = {"node": "Trader", "scopes": ["TSDD"], "confirm_side_effects": True}
    started = await store.runs.fork(run.rollout_id, **options)
    assert await Desk().execute(store, started) == sorted(
        [*phases("debate_and_trader", "risk", scope="TSDD"), ("portfolio", FUND)]
    )
    options |= {"node": "Portfolio Manager", "base": f"attempt:{run.attempt.sequence_id}"}
    with pytest.raises(CheckpointMissing):
        await store.runs.fork(run.rollout_id, **options)
    started = await store.runs.fork(run.rollout_id, **options, on_missing="full")
    assert started.fork.degraded is not None
    assert await Desk().execute(store, started) == sorted(
        [*phases("analysts", "debate_and_trader", "risk", scope="TSDD"), ("portfolio", FUND)]
    )


async def test_resumed_import_continues_only_the_ticker_that_stopped(store: Store, tmp_path: Path) -> None:
    run = await imported(store, HALF_WAY, tmp_path)
    started = await store.runs.resume(run.rollout_id)
    assert (started.fork.phase, started.fork.scopes) == ("debate_and_trader", ["TSDD"])
    desk = Desk()
    assert await desk.execute(store, started) == sorted(
        [*phases("debate_and_trader", "risk", scope="TSDD"), ("portfolio", FUND)]
    )
    assert desk.states["debate_and_trader", "TSDD"] == {"market_report": "down"}


async def test_orphan_of_an_import_is_repeated_for_its_ticker(store: Store, tmp_path: Path) -> None:
    run = await imported(store, ORPHAN, tmp_path)
    assert run.status == "failed"
    options: dict[str, Any] = {"node": "Trader", "scopes": ["rig"], "on_missing": "full", "confirm_side_effects": True}
    every = sorted([*phases("analysts", "debate_and_trader", "risk"), ("portfolio", FUND)])
    assert await Desk().execute(store, await store.runs.fork(run.rollout_id, **options)) == every
    started = await store.runs.resume(run.rollout_id, from_attempt="attempt:1")
    assert await Desk().execute(store, started) == every


async def test_checkpoints_that_a_stopped_rerun_replaced_are_not_used(store: Store, tmp_path: Path) -> None:
    folder = STOPPED_RERUN.write(tmp_path)
    (report,) = await import_run_folder(store, folder)
    assert report.rollout_id is not None
    assert (report.checkpoints, report.artifacts, len(report.warnings)) == (2, 2, 2)
    with pytest.raises(CheckpointMissing):
        await store.runs.plan_fork(report.rollout_id, phase="risk", scopes=["RIG"])
    plan = await store.runs.plan_fork(report.rollout_id, phase="risk", scopes=["TSDD"])
    assert [checkpoint.scope for checkpoint in plan.checkpoints] == ["TSDD"]
    exported = await export_run_folder(store, report.rollout_id, tmp_path / "out")
    assert tree(exported) == tree(folder)


@pytest.mark.parametrize("name", FOLDERS)
async def test_foreign_folders_are_imported_once_and_exported_unchanged(
    store: Store, tmp_path: Path, name: str
) -> None:
    folder = FOLDERS[name].write(tmp_path)
    (report,) = await import_run_folder(store, folder)
    assert report.rollout_id is not None
    before = (await store.log.verify()).events
    assert [result.outcome for result in await import_run_folder(store, folder)] == ["unchanged"]
    assert (await store.log.verify()).events == before
    assert tree(await export_run_folder(store, report.rollout_id, tmp_path / "out")) == tree(folder)


async def test_rerun_that_crashed_at_once_is_resumed_for_its_ticker(store: Store, tmp_path: Path) -> None:
    # Neither the input nor the events that are left name the ticker.
    run = await imported(store, FOLDERS["unnamed"], tmp_path)
    crashed = await store.runs.fork(run.rollout_id, phase="analysts", scopes=["RIG"], confirm_side_effects=True)
    await store.update_attempt(run.rollout_id, crashed.attempt.attempt_id, status="failed")
    assert await Desk().execute(store, await store.runs.resume(run.rollout_id)) == sorted(
        [*phases("analysts", "debate_and_trader", "risk"), ("portfolio", "PORTFOLIO")]
    )
