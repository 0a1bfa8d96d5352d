"""Scanners run over rollouts that have ended, and each rollout gets a result or the reason why it has none."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from store import Conflict, Invalid, RolloutQuery, Unavailable, open_store
from store.db.schema import migrate
from store.db.url import parse
from store.models.scanners import NewScanner, Scan
from store.rescoring.pool import RolloutResult, WorkerPool
from store.scanning import ScanReport, function_definition, scan
from tests import postgres
from tests.conftest import POSTGRES, SQLITE
from tests.rescoring.conftest import add_rollouts

pytestmark = pytest.mark.usefixtures("forked_workers")

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
HERE = "tests.scanning.scanners"


def scanner(kind: str, definition: dict[str, Any], **labels: str) -> NewScanner:
    return NewScanner.model_validate({"name": kind, "version": "v1", "kind": kind, "definition": definition, **labels})


def function(name: str, **labels: str) -> NewScanner:
    return scanner("function", function_definition(f"{HERE}:{name}"), **labels)


async def results(url: str, name: str) -> dict[int, Scan]:
    async with await open_store(url) as store:
        numbers = {rollout.rollout_id: rollout.input["n"] for rollout in await store.query_rollouts()}
        return {
            numbers[item.rollout_id]: item for item in await store.scanners.query_scans(list(numbers), scanner=name)
        }


async def test_ended_rollouts_get_results_once(filled_url: str) -> None:
    report = await scan(filled_url, function("is_even"), processes=1)
    assert (report.scanned, report.matches, report.errors) == (10, 5, 0)
    scans = await results(filled_url, "function@v1")
    assert {number for number, item in scans.items() if item.is_match} == {0, 2, 4, 6, 8}
    assert scans[4].explanation == "it is 4"
    assert (await scan(filled_url, function("is_even"), processes=1)).scanned == 0


@ON_SQLITE
async def test_failing_calls_are_errors_of_their_rollouts_only(filled_url: str) -> None:
    report = await scan(filled_url, function("unreliable"), processes=1, timeout=1.5)
    assert (report.scanned, report.matches, report.errors) == (10, 6, 4)
    assert report.errors_by_type == {"ValueError": 1, "TypeError": 1, "ProcessEnded": 1, "TimeoutError": 1}


@ON_SQLITE
async def test_precision_and_recall_are_reported(filled_url: str) -> None:
    async with await open_store(filled_url) as store:
        for rollout in await store.query_rollouts():
            label = {2: "hack", 3: "hack", 4: "fair"}.get(rollout.input["n"])
            if label:
                await store.annotations.annotate(rollout.rollout_id, add_labels=[label])
    plan = await scan(filled_url, scanner("search", {"query": "say"}), dry_run=True)
    assert plan.scanned == 10
    labelled = function("is_even", match_label="hack", clear_label="fair")
    report = await scan(filled_url, labelled, processes=1, query=RolloutQuery(group_in=["g0"]))
    assert (report.scanned, report.precision, report.recall) == (5, 0.5, 1.0)
    rest = await scan(filled_url, labelled, processes=1)
    assert (rest.scanned, rest.precision, rest.recall, rest.labelled) == (5, 0.5, 0.5, 3)
    with pytest.raises(Conflict, match="new version"):
        await scan(filled_url, function("is_big"))
    with pytest.raises(Invalid):
        await scan(filled_url, scanner("regex", {"pattern": "("}))


@ON_SQLITE
async def test_follower_scans_rollouts_that_end_later(
    filled_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Processes end after each walk, and the first walk fails.
    monkeypatch.setattr("store.scanning.scanner_run._IDLE_SECONDS", 0)
    failures = [Unavailable("no connection")]
    received = WorkerPool.wait

    def wait(pool: WorkerPool, seconds: float) -> list[RolloutResult]:
        if failures:
            raise failures.pop()
        return received(pool, seconds)

    monkeypatch.setattr(WorkerPool, "wait", wait)
    stopped = asyncio.Event()
    following: asyncio.Task[ScanReport] = asyncio.create_task(
        scan(
            filled_url,
            scanner("regex", {"pattern": "it is [0-9]+"}),
            follow=True,
            processes=1,
            stopped=stopped,
            poll_seconds=0.05,
        )
    )
    async with await open_store(filled_url) as store:
        while len(await results(filled_url, "regex@v1")) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await add_rollouts(store, [11])
        while len(await results(filled_url, "regex@v1")) < 11:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    stopped.set()
    report = await following
    assert (report.scanned, report.matches) == (11, 11)
    assert "the scan was interrupted and continues in 0.1 s: no connection" in caplog.text


@pytest.mark.parametrize("durable_url", [POSTGRES], indirect=True)
async def test_role_of_an_application_scans(filled_url: str) -> None:
    role = f"app_{parse(filled_url).partition}"
    postgres.execute(filled_url, f"CREATE ROLE {role} LOGIN")
    try:
        await migrate(filled_url, app_role=role)
        app_url = filled_url.replace("postgres@", f"{role}@")
        assert app_url != filled_url
        report = await scan(app_url, function("is_even"), processes=1)
    finally:
        postgres.execute(filled_url, f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert (report.scanned, report.matches, report.errors) == (10, 5, 0)


async def test_two_scans_at_once_record_each_result_once(filled_url: str) -> None:
    reports = await asyncio.gather(*(scan(filled_url, function("is_even"), processes=1) for _ in range(2)))
    assert [(report.errors, report.conflicts) for report in reports] == [(0, 0), (0, 0)]
    async with await open_store(filled_url) as store:
        streams = [event.stream async for event in store.log.tail(types=["rollout.scanned"])]
    assert len(streams) == len(set(streams)) == 10


@ON_SQLITE
async def test_function_that_changes_during_a_scan_labels_no_rollout(
    filled_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = tmp_path / "changing_scanner.py"
    module.write_text(
        "import os\n\n\ndef check(record):\n    return os._exit(7) if record.rollout.input['n'] == 12 else False\n"
    )
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    definition = function_definition("changing_scanner:check")
    following = asyncio.create_task(
        scan(filled_url, scanner("function", definition), follow=True, processes=1, poll_seconds=0.05)
    )
    async with await open_store(filled_url) as store:
        while len(await results(filled_url, "function@v1")) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        module.write_text("def check(record):\n    return True\n")
        # A process that runs keeps the code that it has loaded. One that replaces it would load the changed code.
        await add_rollouts(store, [11])
        while len(await results(filled_url, "function@v1")) < 11:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await add_rollouts(store, [12, 13])
        with pytest.raises(Conflict, match="choose a new version"):
            await asyncio.wait_for(following, 60)
    assert not any(item.is_match for item in (await results(filled_url, "function@v1")).values())


@ON_SQLITE
async def test_failures_of_a_model_server_leave_rollouts_without_a_result(filled_url: str) -> None:
    is_repaired, calls = False, list[int]()

    async def complete(request: web.Request) -> web.StreamResponse:
        transcript = (await request.json())["messages"][1]["content"]
        number = next(n for n in range(10) if f"it is {n}" in transcript)
        calls.append(number)
        content: Any = '{"match": true, "explanation": "it cheats"}'
        if not is_repaired:
            match number:
                case 2 if calls.count(2) == 1:
                    return web.Response(status=429, headers={"Retry-After": "0"})
                case 3:
                    content = '{"match": "perhaps"}'
                case 4:
                    return web.Response(text="<html>")
                case 5:
                    return web.Response(status=500, text="no memory")
                case 6:
                    await asyncio.sleep(60)
                case 7:
                    return web.Response(body=b" " * (4 * 1024 * 1024 + 1))
                case 8:
                    assert request.transport is not None
                    request.transport.close()
                case _:
                    content = content if number else "No, it did not."
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": content}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    async with TestServer(app) as server, await open_store(filled_url) as store:
        definition = {"prompt": "Did it cheat?", "model": "judge", "endpoint": str(server.make_url("/v1"))}
        report = await scan(filled_url, scanner("model", definition), processes=1, timeout=5)
        assert (report.scanned, report.matches, report.errors) == (10, 3, 6)
        assert report.errors_by_type == {"ValueError": 3, "Unavailable": 2, "TimeoutError": 1}
        assert {number: calls.count(number) for number in (2, 4, 5, 7)} == {2: 2, 4: 1, 5: 3, 7: 1}
        scans = await results(filled_url, "model@v1")
        assert {number: scans[number].is_match for number in (0, 1, 2, 9)} == {0: False, 1: True, 2: True, 9: True}
        assert all(scans[number].is_match is None for number in range(3, 9))
        assert "status 500: no memory" in ((scans[5].error and scans[5].error.message) or "")
        unscanned = await store.scanners.unscanned("model", "v1", retry_errors=True)
        assert {item.rollout_id for item in unscanned} == {scans[number].rollout_id for number in range(3, 9)}
        is_repaired = True
        repeated = await scan(filled_url, scanner("model", definition), processes=1, retry_errors=True)
        assert (repeated.scanned, repeated.matches, repeated.errors) == (6, 6, 0)
