"""Executions of a pipeline continue in run folders while the store is away, and are imported, each event once."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from store import HTTPStore, open_store
from store.interface.store import Store
from store.models import AttemptedRollout, Checkpoint, Phase, PhaseGraph, ScopeKind, any_of
from store.run_folders import import_runs
from store.training import Pipeline, PipelineRunner, Step
from tests.client.server_process import ServerProcess
from tests.postgres import PostgresServer, with_partition
from tests.training.test_pipeline_runner import ended, lineage, running

GRAPH = PhaseGraph(
    name="outage",
    version="1",
    scope_kinds={"ticker": ScopeKind(normalise="upper"), "book": ScopeKind(fixed="BOOK")},
    phases=[
        Phase(
            name="research",
            scope_kind="ticker",
            nodes=["Analyst"],
            produces=[Checkpoint(name="report", when=any_of("news"))],
            cascade=["decision"],
        ),
        Phase(name="debate", scope_kind="ticker", nodes=["Bull"], after=["research"], requires="report"),
        Phase(name="decision", scope_kind="book", nodes=["Manager"]),
    ],
)
TICKERS = ["RIG", "TSDD"]
Act = Callable[[Step], Awaitable[None]]


def desk(act: Act, ran: list[tuple[str, str]] | None = None) -> Pipeline:
    """Return a pipeline that calls `act` inside each node, and saves a checkpoint and an artifact for each phase."""
    pipeline = Pipeline(GRAPH)

    async def play(step: Step) -> None:
        if ran is not None:
            ran.append((step.phase.name, step.scope))
        where = step.rollout.rollout_id, step.rollout.attempt.attempt_id
        async with step.node(step.phase.nodes[0], prompt=f"What of {step.scope}?") as call:
            await act(step)
            call.response = step.state["news"] = f"{step.phase.name} of {step.scope}"
        content = {"text": step.state["news"]}
        await step.store.runs.save_artifact(*where, scope=step.scope, name=step.phase.name, content=content)
        saved = await step.store.runs.query_artifacts(where[0], scope=step.scope, name=step.phase.name)
        assert [artifact.content for artifact in saved] == [content]
        if step.phase.name == "debate":
            draft = await step.store.runs.get_checkpoint(where[0], scope=step.scope, name="report")
            assert draft is not None
            assert draft.state == {"news": f"research of {step.scope}"} | (draft.state or {})

    for name in GRAPH.by_name:
        pipeline.phase(name)(play)
    return pipeline


async def calm(step: Step) -> None:
    del step


def runner(pipeline: Pipeline, folder: Path, **options: Any) -> PipelineRunner:
    how: dict[str, Any] = {"heartbeat_interval": 1.0, "poll_interval": 0.3, "interval_jitter": 0}
    return PipelineRunner(pipeline, fallback_dir=folder, fallback_patience=0.5, **how | options)


async def posted(store: Store) -> AttemptedRollout:
    await store.add_resources({"phases": GRAPH})
    return await store.enqueue_rollout(  # pyright: ignore[reportReturnType]
        {"date": "2026-11-20", "tickers": TICKERS}, metadata={"rollbook.group": "5f2c9a01"}
    )


def lines_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "daily/2026-11-20/5f2c9a01/run_events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def journals(folder: Path) -> list[Path]:
    return sorted((folder / ".fallback").glob("*/*"))


EXPECTED = sorted(
    [
        (kind, phase, scope, node)
        for phase, scopes in {"research": TICKERS, "debate": TICKERS, "decision": ["BOOK"]}.items()
        for scope in scopes
        for kind, node in [
            ("phase.started", None),
            ("thought", GRAPH.by_name[phase].nodes[0]),
            ("result", GRAPH.by_name[phase].nodes[0]),
            ("phase.completed", None),
        ]
    ],
    key=str,
)


async def assert_complete(store: Store, run: AttemptedRollout, attempt: int = 1) -> None:
    """Assert that the view of an attempt holds each event, checkpoint and artifact of the pipeline once."""
    view = f"attempt:{attempt}"
    page = await store.runs.query_events(run.rollout_id, view=view, limit=-1)
    events = [(event.kind, event.phase, event.scope, event.node_id) for event in page.items if event.source != "span"]
    assert sorted(events, key=str) == EXPECTED
    checkpoints = await store.runs.list_checkpoints(run.rollout_id, view=view)
    assert sorted((checkpoint.scope, checkpoint.name) for checkpoint in checkpoints) == [
        (ticker, "report") for ticker in TICKERS
    ]
    for ticker in TICKERS:
        snapshot = await store.runs.get_checkpoint(run.rollout_id, scope=ticker, name="report", view=view)
        assert snapshot is not None
        assert snapshot.state == {"news": f"research of {ticker}"}
    artifacts = await store.runs.query_artifacts(run.rollout_id, view=view)
    assert sorted((artifact.scope, artifact.name, artifact.content["text"]) for artifact in artifacts) == sorted(
        (scope, phase, f"{phase} of {scope}")
        for phase, scopes in {"research": TICKERS, "debate": TICKERS, "decision": ["BOOK"]}.items()
        for scope in scopes
    )
    report = await store.log.verify()
    assert report.ok, report.differences


async def until_there(path: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not path():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_run_outlives_a_postgres_that_is_stopped_in_its_middle(
    private_postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders: list[list[dict[str, Any]]] = []

    async def act(step: Step) -> None:
        if (step.phase.name, step.scope) == ("research", "RIG"):
            await asyncio.to_thread(private_postgres.stop, "immediate")
        if step.phase.name == "decision":
            await until_there(lambda: len(lines_of(tmp_path)) >= 6)
            folders.append(lines_of(tmp_path))
            await asyncio.to_thread(private_postgres.restart)

    async with await open_store(with_partition(private_postgres.url)) as store:
        run = await posted(store)
        with caplog.at_level(logging.WARNING, "store.training.fallback"):
            async with running(store, runner(desk(act), tmp_path)):
                # Until then the store cannot be read.
                await until_there(lambda: any("available again" in record.getMessage() for record in caplog.records))
                await ended(store, run, 1)
        await assert_complete(store, run)
        raw = await store.runs.query_events(run.rollout_id, view="raw", limit=-1)
    (lines,) = folders
    assert {line["identifier"] for line in lines} >= set(TICKERS)
    said = [record.getMessage() for record in caplog.records if record.name == "store.training.fallback"]
    assert any("the store is unavailable" in message and str(tmp_path) in message for message in said)
    assert any("the store is available again" in message for message in said)
    assert journals(tmp_path) == []
    of_run = [row for row in raw.items if row.kind in {"thought", "result"} and row.source != "span"]
    assert len(lines_of(tmp_path)) == len(of_run), "the folder was exported anew"


@pytest.mark.slow
async def test_a_run_outlives_a_server_that_is_killed_and_ends_before_it_is_back(tmp_path: Path) -> None:
    server = ServerProcess(f"sqlite:///{tmp_path}/rollbook.db")
    await asyncio.to_thread(server.start)
    folder = tmp_path / "reports"

    async def act(step: Step) -> None:
        if step.phase.name == "debate" and step.scope == "RIG":
            await asyncio.to_thread(server.kill)

    try:
        async with HTTPStore(server.url) as store:
            run = await posted(store)
            async with running(store, runner(desk(act), folder)):
                meta = folder / "daily/2026-11-20/5f2c9a01/run_meta.json"
                await until_there(lambda: meta.exists() and json.loads(meta.read_text())["status"] == "completed")
                assert len(journals(folder)) == 1
                await asyncio.to_thread(server.start)
                await ended(store, run, 1)
                await until_there(lambda: journals(folder) == [])
            await assert_complete(store, run)
            of_status = [
                event.data["to"]
                for event in await store.log.history(run.rollout_id)
                if event.type == "attempt.status_changed"
            ]
            assert of_status.count("succeeded") == 1
            # An export of this store is not imported twice.
            outcomes = [report.outcome async for report in import_runs(store, folder)]
            assert outcomes == ["skipped"]
    finally:
        await asyncio.to_thread(server.kill)


RUNNER = """
import asyncio, os, sys
from pathlib import Path
from store import HTTPStore
from tests.training.test_fallback import desk, runner

async def main(url, folder, died):
    async def act(step):
        if (step.phase.name, step.scope) == ("research", "RIG"):
            print("kill the server", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        if step.phase.name == "decision":
            print("kill me", flush=True)
            await asyncio.Event().wait()
    async with HTTPStore(url) as store:
        await runner(desk(act), Path(folder)).serve(store)

asyncio.run(main(*sys.argv[1:], None))
"""


@pytest.mark.slow
async def test_the_next_runner_imports_the_folder_of_a_dead_one_and_repeats_nothing_that_was_done(
    tmp_path: Path,
) -> None:
    server = ServerProcess(f"sqlite:///{tmp_path}/rollbook.db")
    await asyncio.to_thread(server.start)
    folder = tmp_path / "reports"
    process: subprocess.Popen[str] | None = None
    ran: list[tuple[str, str]] = []
    try:
        async with HTTPStore(server.url) as store:
            run = await posted(store)
            process = subprocess.Popen(  # noqa: ASYNC220 - it only starts
                [sys.executable, "-c", RUNNER, server.url, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            assert process.stdin is not None
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "kill the server\n"
            await asyncio.to_thread(server.kill)
            process.stdin.write("\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.stdout.readline) == "kill me\n"
            process.kill()
            process.communicate()
            (journal,) = journals(folder)
            with journal.open("ab") as file:
                file.write(b'{"method":"append_ev')  # the line that it was writing
            await asyncio.to_thread(server.start)
            async with running(store, runner(desk(calm, ran), folder)):
                await ended(store, run, 2)
            assert ran == [("decision", "BOOK")]
            await assert_complete(store, run, 2)
            assert [attempt.kind for attempt in await lineage(store, run)] == ["first", "resume"]
            assert journals(folder) == []
    finally:
        if process is not None:
            process.kill()
            process.communicate()
        await asyncio.to_thread(server.kill)
