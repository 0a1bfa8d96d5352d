"""Counts in the output of `rollbook stats`."""

from __future__ import annotations

import asyncio

import pytest

from store import open_store
from tests.cli.conftest import ON_BOTH, Filled, Rollbook
from tests.client.served import Served


@ON_BOTH
def test_the_counts_are_those_of_the_store(rollbook: Rollbook, filled: Filled) -> None:
    counted = rollbook("stats", "--json").json
    events = rollbook("tail", "--json").json_lines
    assert {status: count for status, count in counted["rollouts"].items() if count} == {
        "queuing": 2,
        "succeeded": 1,
        "cancelled": 1,
    }
    assert counted["workers"] == {"idle": 1, "busy": 0, "unknown": 1}
    assert (counted["queued"], counted["attempts"], counted["spans"], counted["resources"]) == (2, 2, 4, 1)
    assert counted["events"] == len(events)
    assert counted["commits"] == len({event["commit_id"] for event in events})
    assert counted["last_position"] == events[-1]["position"]
    assert counted["last_commit_time"] == events[-1]["at"]
    assert counted["disk_bytes"] > counted["payload_bytes"] > 0
    assert counted["bytes_per_event"] == round(counted["disk_bytes"] / len(events))
    assert counted["store_id"] == asyncio.run(_store_id(filled.url))


def test_a_person_and_a_program_read_the_same_counts(rollbook: Rollbook) -> None:
    cells = dict(line.split("\t") for line in rollbook("stats").out.splitlines())
    counted = rollbook("stats", "--json").json
    assert cells["events"] == str(counted["events"])
    assert cells["rollouts queuing"] == "2"
    assert cells["on disk"] == str(counted["disk_bytes"])
    output = rollbook("stats", terminal=True).out
    assert "kB" in output or "MB" in output
    assert "queuing" in output


def test_log_ahead_of_the_clock_gives_a_warning(rollbook: Rollbook, filled: Filled) -> None:
    assert rollbook("stats").err == ""
    asyncio.run(_write_in_the_future(filled.url))
    assert "ahead of this machine's clock" in rollbook("stats").err


@pytest.mark.slow
def test_stats_of_a_server_omit_log_and_disk(rollbook: Rollbook, filled_file: Filled) -> None:
    counted = rollbook("stats", "--json", db=filled_file.url).json
    behind = asyncio.run(open_store(filled_file.url))
    with Served() as server, server.serving(behind) as url:
        told = rollbook("stats", "--json", db=url).json
        cells = dict(line.split("\t") for line in rollbook("stats", db=url).out.splitlines())
    asyncio.run(behind.close())
    untold = {name for name, value in told.items() if value is None}
    assert untold == {
        *("events", "commits", "last_position", "last_commit_time"),
        *("payload_bytes", "disk_bytes", "bytes_per_event"),
    }
    assert told == counted | dict.fromkeys(untold)
    assert cells["rollouts queuing"] == "2"
    assert not {"events", "commits", "on disk"} & cells.keys()


async def _store_id(url: str) -> str:
    async with await open_store(url, read_only=True) as store:
        seal_like = getattr(store, "store_id")  # noqa: B009  (a store of another kind need not have one)
        assert isinstance(seal_like, str)
        return seal_like


async def _write_in_the_future(url: str) -> None:
    async with await open_store(url, clock=lambda: 4_000_000_000_000_000) as store:
        await store.enqueue_rollout("early")
