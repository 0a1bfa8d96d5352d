"""Posted runs are executed by runners of a pipeline, which may be killed with the server; no run stays `running`."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from store import open_store
from store.planning.run_state import CUT_OFF
from store.run_folders import export_run_folder, import_runs
from store.run_folders.folder_phases import ANALYSTS, DEBATE, FUND, PORTFOLIO, RISK, SCAN
from tests.cli.conftest import environment
from tests.conftest import POSTGRES, SQLITE
from tests.server.fleet import ForkedCommand

PIPELINE = "from store.examples.trading.desk import Desk\npipeline = Desk(pace=0.03).pipeline\n"
POSTED = {"date": "2026-11-20", "tickers": ["RIG", "TSDD"], "portfolio_id": FUND}
NODES = len(SCAN) + 2 * len((*ANALYSTS, *DEBATE, *RISK)) + len(PORTFOLIO)

EVERY_FILE = {
    "../daily_digest.md",
    "../latest.json",
    "run_meta.json",
    "run_events.jsonl",
    "run_extension.jsonl",
    "run_files.json",
    "market/report/scan_report.json",
    "market/report/complete_report.json",
    *(
        f"{ticker}/report/{name}"
        for ticker in ("RIG", "TSDD")
        for name in (
            "analysts_checkpoint.json",
            "trader_checkpoint.json",
            "complete_report.json",
            "complete_report.md",
            "final_trade_decision.json",
        )
    ),
    f"portfolio/report/{FUND}_risk_metrics.json",
    f"portfolio/report/{FUND}_pm_decision.json",
    f"portfolio/report/{FUND}_execution_result.json",
    "portfolio/report/RIG_holding_review.json",
    "portfolio/report/TSDD_holding_review.json",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a pipeline."""
    (tmp_path / "slow.py").write_text(PIPELINE)
    return tmp_path


@contextmanager
def process(place: Path, *arguments: str) -> Generator[ForkedCommand]:
    """Run the command; it is killed at the end at the latest."""
    started = ForkedCommand(*arguments, environment=environment("sqlite:///unused.db"), directory=place)
    try:
        yield started
    finally:
        started.end()


@asynccontextmanager
async def server(place: Path, db: str, *options: str) -> AsyncGenerator[tuple[Front, ForkedCommand]]:
    with process(place, "serve", "--db", db, "--port", "0", *options) as started:
        line = await asyncio.to_thread(started.stdout.readline)
        url = line.split(" at ")[1].split()[0]
        async with aiohttp.ClientSession(url) as session:
            yield Front(session, url), started


class Front:
    """A web front end."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def post(self, what: str, **body: Any) -> Any:
        async with self._session.post(f"/api/run/{what}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def run(self, run_id: str) -> Any:
        async with self._session.get(f"/api/run/{run_id}") as answer:
            assert answer.status == 200
            return await answer.json()

    async def until(self, run_id: str, status: str, rerun_seq: int = 0) -> Any:
        while True:
            run = await self.run(run_id)
            if run["status"] == status and run["rerun_seq"] >= rerun_seq:
                return run
            await asyncio.sleep(0.1)

    async def rerun_on_page(self, run_id: str, **part: str) -> None:
        """Open the page that plans a re-run, and submit its form with the side effects confirmed."""
        async with self._session.get(f"/ui/runs/{run_id}/rerun", params=part) as answer:
            assert answer.status == 200
            (request_id,) = set(re.findall(r'name="request_id" value="([^"]+)"', await answer.text()))
        await self.submit(f"/ui/runs/{run_id}/rerun", **part, request_id=request_id, confirm_side_effects="1")

    async def submit(self, path: str, **fields: str) -> None:
        """Submit a form of the dashboard."""
        async with self._session.post(path, data=fields, headers={"Origin": self.url}) as answer:
            assert answer.status == 200, await answer.text()

    async def frames(self, run_id: str) -> AsyncIterator[Any]:
        """Yield what a viewer of a run is shown."""
        async with self._session.ws_connect(f"/ws/stream/{run_id}") as socket:
            async for message in socket:
                yield message.json()


def kill(*processes: ForkedCommand) -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)


def files_of(folder: Path) -> set[str]:
    """Return the files of a run folder and of its day, without the times in their names."""
    day = folder.parent
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    run_files = {re.sub(r"\d{8}T\d{9}Z_", "", path) for path in paths}
    return run_files | {f"../{path.name}" for path in day.iterdir() if path.is_file()}


def answered(run: Any) -> list[tuple[str, str]]:
    return [(event["identifier"], event["node_id"]) for event in run["events"] if event["type"] == "result"]


@pytest.mark.parametrize(
    "durable_url", [POSTGRES, pytest.param("sqlite", id="sqlite", marks=pytest.mark.torture_only)], indirect=True
)
async def test_no_run_stays_running_after_a_kill_of_runner_and_server(
    place: Path, durable_url: str, tmp_path: Path
) -> None:
    """The whole life of a run: posted, watched, killed with the server, resumed, run again, undone, exported, imported.

    SIGKILL of both processes at once: the run is failed after the restart, then resumed, then a part of it is run
    again from the dashboard.
    """
    frames: list[Any] = []
    async with server(place, durable_url) as (front, serving):
        run_id = (await front.post("auto", **POSTED))["run_id"]
        runner = ("runner", "--pipeline", "slow:pipeline", "--store", front.url)
        with process(place, *runner) as running:
            async for frame in front.frames(run_id):
                frames.append(frame)
                if frame.get("node_id") == "Trader":
                    break
            kill(running, serving)
    assert all(frame["message"] and frame["agent"] and "service" in frame for frame in frames)
    tools = {
        frame["type"]: frame for frame in frames if frame["node_id"] == "get_news" and frame["identifier"] == "RIG"
    }
    assert {kind: (frame["status"], frame["service"]) for kind, frame in tools.items()} == {
        "tool": ("running", "feeds"),
        "tool_result": ("success", "feeds"),
    }
    async with server(place, durable_url) as (front, serving):
        # A dead process of this machine is noticed at once, and it is an event.
        run = await front.run(run_id)
        assert (run["status"], run["error"]) == ("failed", CUT_OFF)
        before = answered(run)
        assert 0 < len(before) < NODES
        with process(place, "runner", "--pipeline", "slow:pipeline", "--store", front.url):
            run = await front.until(run_id, "completed")
            assert len(answered(run)) == len(set(answered(run))) == NODES
            resumed = run["events"]
            await front.rerun_on_page(run_id, node="Aggressive Analyst", scope="RIG")
            run = await front.until(run_id, "completed", rerun_seq=1)
            assert len(answered(run)) == NODES
            assert {event["rerun_seq"] for event in run["events"]} == {0, 1}
            await front.submit(f"/ui/runs/{run_id}/head", attempt="2")
        run = await front.run(run_id)
        assert run["events"] == resumed
        async with await open_store(front.url) as store:
            folder = await export_run_folder(store, run_id, tmp_path / "reports")
            assert files_of(folder) == EVERY_FILE
            async with await open_store("memory://") as other:
                (report,) = [report async for report in import_runs(other, tmp_path / "reports")]
                assert (report.outcome, report.warnings) == ("imported", [])
                copied = await export_run_folder(other, report.rollout_id or "", tmp_path / "again")
            assert {path.name: path.read_bytes() for path in copied.rglob("*.*")} == {
                path.name: path.read_bytes() for path in folder.rglob("*.*")
            }


@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
async def test_a_server_with_a_pipeline_executes_runs_and_resumes_them_after_a_kill(
    place: Path, durable_url: str, tmp_path: Path
) -> None:
    """One process does it all; runs that were imported have a phase graph, and are run again like the others."""
    pipeline = ("--pipeline", "slow:pipeline")
    async with server(place, durable_url, *pipeline) as (front, serving):
        run_id = (await front.post("auto", **POSTED))["run_id"]
        async for frame in front.frames(run_id):
            if frame.get("node_id") == "Trader":
                break
        kill(serving)
    async with server(place, durable_url, *pipeline) as (front, serving):
        run = await front.until(run_id, "completed")
        assert len(answered(run)) == len(set(answered(run))) == NODES
        async with await open_store(front.url) as store:
            await export_run_folder(store, run_id, tmp_path / "reports")
            assert [node.kind for node in await store.runs.list_lineage(run_id)] == ["first", "resume"]
    other = f"sqlite:///{tmp_path / 'other.db'}"
    async with await open_store(other) as store:
        (report,) = [report async for report in import_runs(store, tmp_path / "reports")]
    async with server(place, other, *pipeline) as (front, serving):
        again = await front.post("rerun-node", run_id=run_id, node_id="Trader", identifier="RIG")
        assert (again["phase"], again["message"]) == ("debate_and_trader", None)
        assert report.rollout_id is not None
        run = await front.until(report.rollout_id, "completed")
        assert len(answered(run)) == NODES
