"""`rollbook ls` lists every kind of row, with the filters, sorting and paging of the store's queries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from store import open_store
from store.interface.store import Store
from store.models import PaginatedResult
from store.testing import ManualClock
from tests.cli.conftest import Filled, Rollbook

Query = Callable[[Store], Awaitable[PaginatedResult[Any]]]


def queried(url: str, query: Query) -> PaginatedResult[Any]:
    async def read() -> PaginatedResult[Any]:
        async with await open_store(url, read_only=True) as store:
            return await query(store)

    return asyncio.run(read())


def test_rollouts_are_listed_newest_first(rollbook: Rollbook, filled: Filled) -> None:
    rows = rollbook("ls", "rollouts").table
    oldest_first = [filled.retried, *filled.waiting, filled.cancelled]
    assert [row["rollout"] for row in rows] == oldest_first[::-1]
    assert [row["rollout"] for row in rollbook("ls", "rollouts", "--asc").table] == oldest_first
    assert rows[-1] | {"created": "", "seconds": ""} == {
        "rollout": filled.retried,
        "status": "succeeded",
        "mode": "train",
        "attempt": "2",
        "worker": "worker-2",
        "created": "",
        "seconds": "",
        "reward": "0.75",
        "resources": filled.prompts,
        "input": '{"question":"why"}',
    }
    assert rows[-1]["created"].startswith("2025-06-15T15:06:40.0")
    # The last attempt took 0.75 s; the rollout was created 5.25 s before its end.
    assert [row["seconds"] for row in rows[:-1]] == ["", "", ""]
    assert float(rows[-1]["seconds"]) == pytest.approx(0.75, abs=0.001)


def test_rollouts_are_filtered_by_training_fields(rollbook: Rollbook, filled: Filled) -> None:
    def listed(*options: str) -> list[str]:
        return [row["rollout"] for row in rollbook("ls", "rollouts", *options).table]

    assert listed("--reward-min", "0.7", "--reward-max", "0.75", "--mode", "train") == [filled.retried]
    assert listed("--reward-min", "0.8") == []
    assert listed("--sort", "reward")[0] == filled.retried
    assert listed("--step", "1", "--step", "2", "--group", "none", "--label", "none", "--resources-version", "9") == []
    assert listed("--scan-match", "none@v1") == []
    refused = rollbook("ls", "rollouts", "--mode", "trial")
    assert refused.code == 2
    assert "train, val, test" in refused.err


def test_json_output_equals_the_query_result(rollbook: Rollbook, filled: Filled) -> None:
    queries: dict[tuple[str, ...], Query] = {
        ("rollouts",): lambda store: store.query_rollouts(),
        ("attempts", filled.retried): lambda store: store.query_attempts(filled.retried),
        ("spans", filled.retried): lambda store: store.query_spans(filled.retried),
        ("resources",): lambda store: store.query_resources(),
        ("workers",): lambda store: store.query_workers(),
    }
    for command, query in queries.items():
        result = queried(filled.url, query)
        printed = rollbook("ls", *command, "--json").json
        items = orjson.loads(orjson.dumps([item.model_dump() for item in result]))
        # A worker without heartbeats has the state that its status is.
        observed = [item | {"state": item["status"]} for item in items] if command == ("workers",) else items
        assert printed["items"] == observed
        assert (printed["limit"], printed["offset"], printed["total"]) == (-1, 0, len(result))
        assert printed["items"]


ROLLOUTS: list[tuple[tuple[str, ...], list[str]]] = [
    (("--status", "cancelled"), ["cancelled"]),
    (("--status", "cancelled", "--status", "succeeded"), ["cancelled", "succeeded"]),
    (("--sort", "status"), ["cancelled", "queuing", "queuing", "succeeded"]),
    (("--sort", "status", "--desc"), ["succeeded", "queuing", "queuing", "cancelled"]),
    (("--desc",), ["cancelled", "queuing", "queuing", "succeeded"]),
    (("--asc",), ["succeeded", "queuing", "queuing", "cancelled"]),
    (("--limit", "1"), ["cancelled"]),
    (("--limit", "2", "--offset", "1"), ["queuing", "queuing"]),
    (("--limit", "0"), []),
    (("--limit", "-1"), ["cancelled", "queuing", "queuing", "succeeded"]),
    (("--id-contains", "ro-"), ["cancelled", "queuing", "queuing", "succeeded"]),
    (("--id-contains", "nothing"), []),
]


def test_rollouts_are_filtered_sorted_and_paged(rollbook: Rollbook) -> None:
    for options, expected in ROLLOUTS:
        assert [row["status"] for row in rollbook("ls", "rollouts", *options).table] == expected, options


def test_any_joins_conditions_with_or(rollbook: Rollbook, filled: Filled) -> None:
    options = ("ls", "rollouts", "--status", "cancelled", "--id", filled.retried)
    assert rollbook(*options).table == []
    assert [row["status"] for row in rollbook(*options, "--any").table] == ["cancelled", "succeeded"]


def test_a_page_says_on_standard_error_that_there_is_more(rollbook: Rollbook) -> None:
    printed = rollbook("ls", "rollouts", "--limit", "3")
    assert "3 of 4" in printed.err
    assert "3 of 4" not in printed.out
    assert not rollbook("ls", "rollouts").err


def test_attempts_are_those_of_the_rollout(rollbook: Rollbook, filled: Filled) -> None:
    rows = rollbook("ls", "attempts", filled.retried).table
    assert [(row["#"], row["attempt"], row["status"]) for row in rows] == [
        ("1", filled.attempts[0], "unresponsive"),
        ("2", filled.attempts[1], "succeeded"),
    ]
    assert [row["#"] for row in rollbook("ls", "attempts", filled.retried, "--desc").table] == ["2", "1"]


SPANS: list[tuple[tuple[str, ...], list[str]]] = [
    ((), ["agent", "llm", "tool", "agentlightning.annotation"]),
    (("--attempt", "latest"), ["agent", "llm", "tool", "agentlightning.annotation"]),
    (("--attempt", "2", "--limit", "1"), ["agent"]),
    (("--attempt", "1"), []),
    (("--name", "llm"), ["llm"]),
    (("--name-contains", "l"), ["llm", "tool", "agentlightning.annotation"]),
    (("--parent-id", "a" * 16), ["llm", "tool"]),
    (("--parent-id-contains", "aaa", "--name-contains", "oo"), ["tool"]),
    (("--span-id", "a" * 16), ["agent"]),
    (("--span-id-contains", "bb"), ["llm"]),
    (("--trace-id", "none"), []),
    (("--trace-id-contains", "0af76"), ["agent", "llm", "tool", "agentlightning.annotation"]),
    (("--span-id", "a" * 16, "--name", "tool", "--any"), ["agent", "tool"]),
    (("--sort", "name", "--desc"), ["tool", "llm", "agentlightning.annotation", "agent"]),
]


def test_spans_are_filtered_and_sorted(rollbook: Rollbook, filled: Filled) -> None:
    for options, expected in SPANS:
        rows = rollbook("ls", "spans", filled.retried, *options).table
        assert [row["name"] for row in rows] == expected, options


def test_a_span_shows_its_rewards(rollbook: Rollbook, filled: Filled) -> None:
    (row,) = rollbook("ls", "spans", filled.retried, "--span-id", "d" * 16).table
    assert (row["rewards"], row["seconds"]) == ("reward 0.75", "1.25")


def test_resources_are_listed_with_their_contents(rollbook: Rollbook, filled: Filled) -> None:
    (row,) = rollbook("ls", "resources").table
    assert (row["resources"], row["version"], row["holds"]) == (filled.prompts, "2", "llm (llm)")
    assert rollbook("ls", "resources", "--id", "rs-").table == []
    assert len(rollbook("ls", "resources", "--id", filled.prompts, "--id-contains", "rs-").table) == 1


def test_workers_are_listed_with_their_status(rollbook: Rollbook) -> None:
    rows = {row["worker"]: row["status"] for row in rollbook("ls", "workers").table}
    assert rows == {"worker-1": "unknown", "worker-2": "idle"}
    assert [row["worker"] for row in rollbook("ls", "workers", "--status", "idle").table] == ["worker-2"]
    assert [row["worker"] for row in rollbook("ls", "workers", "--id-contains", "-1").table] == ["worker-1"]
    assert len(rollbook("ls", "workers", "--status", "idle", "--id-contains", "-1", "--any").table) == 2


def test_a_worker_without_heartbeats_is_lost(rollbook: Rollbook, make_url: Callable[[str], str]) -> None:
    url = make_url("lost.db")

    async def fill() -> None:
        async with await open_store(url, clock=ManualClock()) as store:
            await store.update_worker("silent", {"heartbeat_interval": 10})
            await store.update_worker("over", {"heartbeat_interval": 10, "stopped": True})

    asyncio.run(fill())
    (silent, over) = rollbook("ls", "workers", db=url).table
    assert (silent["status"], over["status"]) == ("lost", "stopped")
    assert [row["state"] for row in rollbook("ls", "workers", "--json", db=url).json["items"]] == ["lost", "stopped"]
    assert "lost" in rollbook("show", "silent", db=url).out


def test_a_list_is_as_the_store_stood_then(rollbook: Rollbook, filled: Filled) -> None:
    events = rollbook("history", filled.retried, "--json").json
    (lost,) = [event for event in events if event["data"].get("to") == "unresponsive"]
    then = ("--as-at", str(lost["position"] - 1))
    rows = rollbook("ls", "rollouts", *then).table
    assert [row["status"] for row in rows] == ["cancelled", "queuing", "queuing", "preparing"]
    assert [row["status"] for row in rollbook("ls", "attempts", filled.retried, *then).table] == ["preparing"]
    assert rollbook("ls", "spans", filled.retried, *then).table == []
    assert [row["status"] for row in rollbook("ls", "workers", *then).table] == ["busy"]
    assert [row["version"] for row in rollbook("ls", "resources", "--as-at", "1").table] == ["1"]


def test_a_time_is_repeated_as_it_was_understood(rollbook: Rollbook) -> None:
    printed = rollbook("ls", "rollouts", "--as-at", "2025-06-15 00:00")
    assert printed.table == []
    assert "as of 2025-06-15 00:00:00" in printed.err


def test_a_field_that_cannot_be_sorted_by_is_named_with_those_that_can(rollbook: Rollbook) -> None:
    printed = rollbook("ls", "rollouts", "--sort", "colour")
    assert (printed.code, printed.out) == (2, "")
    assert "colour" in printed.err
    assert "start_time" in printed.err


def test_a_status_that_does_not_exist_is_refused_with_those_that_do(rollbook: Rollbook) -> None:
    printed = rollbook("ls", "rollouts", "--status", "done")
    assert printed.code == 2
    assert "succeeded" in printed.err


def test_on_a_terminal_columns_are_aligned_and_times_relative(rollbook: Rollbook, filled: Filled) -> None:
    lines = rollbook("ls", "rollouts", "--asc", terminal=True).out.splitlines()
    assert "\t" not in lines[1]
    assert "d ago" in lines[1]
    assert "\x1b[32msucceeded" in lines[1]
    assert filled.retried in lines[1]


def test_on_a_terminal_a_long_list_is_cut_and_says_so(rollbook: Rollbook, filled: Filled) -> None:
    async def enqueue() -> None:
        async with await open_store(filled.url) as store:
            for number in range(60):
                await store.enqueue_rollout(number)

    asyncio.run(enqueue())
    printed = rollbook("ls", "rollouts", terminal=True)
    assert len(printed.out.splitlines()) == 51
    assert "50 of 64" in printed.err
    assert len(rollbook("ls", "rollouts", "--limit", "-1", terminal=True).out.splitlines()) == 65
    assert len(rollbook("ls", "rollouts").out.splitlines()) == 65


def test_in_the_past_nothing_is_ago_and_nothing_goes_on(rollbook: Rollbook, filled: Filled) -> None:
    now = rollbook("ls", "rollouts", "--status", "queuing", terminal=True).out
    assert "d ago" in now
    # The time in the queue is no duration.
    assert "…" not in now
    then = rollbook("ls", "rollouts", "--status", "queuing", "--as-at", "2025-06-16", terminal=True).out
    assert filled.waiting[0] in then
    assert "2025-06-15" in then
    assert " ago" not in then
    assert "…" not in then


def test_an_empty_list_says_so_to_a_person(rollbook: Rollbook) -> None:
    printed = rollbook("ls", "rollouts", "--status", "failed", terminal=True)
    assert (printed.code, printed.out, printed.err) == (0, "", "nothing found\n")


def test_the_rollout_of_a_list_is_an_argument_and_may_be_given_by_the_older_option(
    rollbook: Rollbook, filled: Filled
) -> None:
    for kind in ("attempts", "spans"):
        listed = rollbook("ls", kind, filled.retried)
        assert listed.table
        assert rollbook("ls", kind, "--rollout", filled.retried) == listed
        missing = rollbook("ls", kind)
        assert missing.code == 2
        assert "ROLLOUT" in missing.err
        assert "--rollout" not in rollbook("ls", kind, "--help").out
