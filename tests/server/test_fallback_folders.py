"""Web front ends are shown run folders while the database is away, and the times of imported runs in lists."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.errors import Invalid, NotFound
from store.examples.trading.front_end.settings import TradingSettings
from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.interface.store import Store
from store.models import RunEvent
from store.run_folders import export_run_folder, import_runs
from store.run_folders.listing import listed_runs, run_with_events
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.postgres import PostgresServer, with_partition
from tests.run_folders.folder_samples import DAY, EVENTS, FLOW, OTHER, RUN, Written, event, lines
from tests.server.keyed import keyed_server
from tests.server.stream_clients import serving
from tests.torture import IS_TORTURE, rounds


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_server_shows_exported_run_folders_while_postgres_is_stopped(
    private_postgres: PostgresServer, tmp_path: Path
) -> None:
    async with (
        await open_store(with_partition(private_postgres.url)) as store,
        serving(store) as client,
    ):
        run = await store.start_rollout({"date": DAY}, metadata={"rollbook.group": FLOW})
        events = [RunEvent(kind="result", node_id="Trader", scope=scope, response="hold") for scope in ("RIG", "TSDD")]
        await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, events)
        await store.update_attempt(run.rollout_id, "latest", status="succeeded")
        await export_run_folder(store, run.rollout_id, tmp_path)
        status, listed = await client.get("/api/run/")
        assert (status, len(listed)) == (200, 1)
        status, before = await client.get(f"/api/run/{run.rollout_id}")
        private_postgres.stop()
        assert (await client.get("/api/run/"))[0] == 503
        client.app.state.front_end.settings = TradingSettings(fallback=tmp_path)
        assert await client.get("/api/run/") == (200, listed)
        status, summary = await client.get(f"/api/run/{run.rollout_id}")
        assert status == 200
        assert {name: summary[name] for name in summary if name != "events"} == listed[0]
        fields = ("type", "node_id", "identifier", "message", "rerun_seq")
        assert [[row.get(name) for name in fields] for row in summary["events"]] == [
            [row.get(name) for name in fields] for row in before["events"]
        ]
        ((_, with_events),) = [await client.get("/api/run/", [("include", "events")])]
        assert with_events[0]["events"] == summary["events"]
        assert (await client.get(f"/api/run/{listed[0]['flow_id']}"))[1]["id"] == run.rollout_id
        assert (await client.get("/api/run/nothing"))[0] == 404


@pytest.mark.slow
@pytest.mark.postgres
async def test_keys_read_before_an_outage_can_read_folders_during_it(
    private_postgres: PostgresServer, tmp_path: Path
) -> None:
    Written().write(tmp_path)
    url = private_postgres.url
    async with (
        await open_store(url) as store,
        keyed_server(store, url, ManualClock(), front_end=TradingFrontEnd(TradingSettings(fallback=tmp_path))) as keyed,
    ):
        assert (await keyed.ask(None, path="//api/run/")).ok() == []
        key, revoked = await keyed.key("reader"), await keyed.make("reader")
        assert (await keyed.ask(revoked[1])).status == 200
        private_postgres.stop()
        for _ in range(rounds(60, few=12)):
            keyed.steps.now += 1
            await asyncio.sleep(1 if IS_TORTURE else 0)
            (run,) = (await keyed.ask(key, path="//api/run/")).ok()
            assert run["id"] == RUN
            assert (await keyed.ask(None, path="//api/run/")).status == 401
        private_postgres.restart()
        await keyed.keys.revoke(revoked[0].key_id)
        keyed.grow_old()
        while not keyed.ring.is_fresh:
            await keyed.ask(key)
        assert (await keyed.ask(revoked[1])).status == 401
        assert (await keyed.ask(key)).status == 200


def test_layouts_have_the_precedence_flow_legacy_flat_and_runs_are_listed_newest_first(tmp_path: Path) -> None:
    Written(events=lines([event("log", "n", "RIG", message="flow")])).write(tmp_path)
    Written(
        layout="legacy", status="running", files={}, events=lines([event("log", "n", "RIG", message="legacy")])
    ).write(tmp_path)
    Written(run_id=OTHER, flow_id="", layout="legacy", created_at="2027-01-01T00:00:00Z", files={}).write(tmp_path)
    Written(run_id="flat-one", flow_id="", layout="flat", created_at=1.0, status="failed", files={}).write(tmp_path)
    listed = listed_runs(tmp_path)
    assert [(summary["id"], summary["status"]) for summary in listed] == [
        (OTHER, "completed"),
        (RUN, "completed"),
        ("flat-one", "failed"),
    ]
    assert (listed[0]["created_at"], listed[2]["error"], listed[1]["date"]) == (1798761600.0, "unknown error", DAY)
    assert [row["message"] for row in run_with_events(tmp_path, RUN)["events"]] == ["flow"]
    assert run_with_events(tmp_path, FLOW)["id"] == RUN
    assert len(run_with_events(tmp_path, OTHER)["events"]) == len(EVENTS)
    with pytest.raises(NotFound, match="nothing"):
        run_with_events(tmp_path, "nothing")
    with pytest.raises(Invalid, match="no directory"):
        listed_runs(tmp_path / "missing")


def test_the_runs_command_lists_folders_if_the_store_is_unavailable(tmp_path: Path) -> None:
    Written().write(tmp_path)
    url = "postgresql://postgres@127.0.0.1:1/postgres"
    result = CliRunner().invoke(app, ["runs", "--db", url, "--fallback", str(tmp_path), "--json"])
    assert (result.exit_code, RUN in result.stdout) == (0, True)
    assert "the store is unavailable" in result.stderr
    missing = CliRunner().invoke(app, ["runs", "--db", url])
    assert missing.exit_code != 0


async def test_lists_show_the_original_end_of_an_imported_run_until_its_next_attempt(
    store: Store, tmp_path: Path
) -> None:
    Written(run_id=OTHER, flow_id="0ther", created_at=1775000000.0).write(tmp_path / "a")
    Written(status="running").write(tmp_path / "b")
    for part in ("a", "b"):
        assert [report.outcome async for report in import_runs(store, tmp_path / part)] == ["imported"]
    assert isinstance(store, SQLStore)
    async with serving(store) as client:
        listed = (await client.get("/api/run/"))[1]
        assert [(run["flow_id"], run["created_at"], run["completed_at"]) for run in listed] == [
            ("0ther", 1775000000.0, 1774000100.5),
            (FLOW, 1774000000.25, 1774000100.5),
        ]
        page = await client.get("/ui/runs.json")
        (rollout,) = [
            rollout for rollout in await store.query_rollouts() if (rollout.metadata or {})["run_id"] == OTHER
        ]
        assert rollout.start_time == 1750000000.0, "the log records the time of the import"
        assert page[0] == 200
        assert [run["start_at"] for run in page[1]["runs"]] == [1775000000000000, 1774000000250000]
        attempt = await store.start_attempt(rollout.rollout_id)
        await store.update_attempt(rollout.rollout_id, attempt.attempt.attempt_id, status="succeeded")
        first = (await client.get("/api/run/"))[1][0]
        assert first["created_at"] == 1775000000.0
        assert first["completed_at"] != 1774000100.5
