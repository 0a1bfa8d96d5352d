"""Output of `rollbook history` and `rollbook tail`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time

import pytest

from store import open_store
from store.cli.commands import history
from tests.cli.conftest import COMMAND, ON_BOTH, Filled, Rollbook, environment


def test_history_tells_every_event_with_its_number(rollbook: Rollbook, filled: Filled) -> None:
    rows = rollbook("history", filled.retried).table
    assert [row["#"] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    told = [row["what"] for row in rows]
    assert told[0].startswith(f"enqueued, for train, with {filled.prompts} version 2, group night, step 7")
    for sentence in (
        "attempt 1 claimed by worker-1 → preparing",
        "attempt 1 unresponsive: silent for 3.50 s (limit 3 s)",
        "preparing → requeuing: to be retried",
        "attempt 2 claimed by worker-2 → preparing",
        'attempt 2: span 3 "tool", 1.25 s, ERROR (no such tool)',
        "attempt 2 reported succeeded",
        "running → succeeded: follows its latest attempt",
    ):
        assert sentence in told
    assert {row["actor"] for row in rows} >= {"watchdog", "worker:worker-2"}


def test_a_cause_in_the_same_rollout_is_its_number(rollbook: Rollbook, filled: Filled) -> None:
    rows = rollbook("history", filled.retried).table
    (claimed,) = [row for row in rows if row["what"] == "attempt 1 claimed by worker-1 → preparing"]
    (moved,) = [row for row in rows if row["what"] == "queuing → preparing: a worker claimed it"]
    assert moved["cause"] == f"#{claimed['#']}"


def test_history_as_json_is_the_events_themselves(rollbook: Rollbook, filled: Filled) -> None:
    async def read() -> list[dict[str, object]]:
        async with await open_store(filled.url, read_only=True) as store:
            return [event.model_dump() for event in await store.log.history(filled.retried)]

    assert rollbook("history", filled.retried, "--json").json == asyncio.run(read())


def test_history_ends_at_the_requested_position(rollbook: Rollbook, filled: Filled) -> None:
    events = rollbook("history", filled.retried, "--json").json
    cut = rollbook("history", filled.retried, "--json", "--as-at", str(events[2]["position"])).json
    assert cut == events[: len(cut)]
    assert 0 < len(cut) < len(events)


def test_history_shows_a_person_local_times_with_milliseconds(rollbook: Rollbook, filled: Filled) -> None:
    out = rollbook("history", filled.retried, terminal=True).out
    assert "2025-06-15" in out
    assert "\t" not in out
    assert "attempt 1 unresponsive: silent for 3.50 s (limit 3 s)" in out


@ON_BOTH
def test_tail_prints_the_whole_log_in_the_order_of_its_commits(rollbook: Rollbook, filled: Filled) -> None:
    lines = rollbook("tail", "--json").json_lines
    positions = [event["position"] for event in lines]
    assert positions == sorted(set(positions))
    assert {event["stream"].partition("/")[0] for event in lines} == {"rollout", "resources", "worker"}
    rows = rollbook("tail", "--all").table
    assert [int(row["position"]) for row in rows] == positions


@ON_BOTH
def test_tail_starts_with_the_last_events(rollbook: Rollbook, filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    events = rollbook("tail", "--all").table
    for parts in ((1_000,), (12, 20), (1,)):
        monkeypatch.setattr(history, "_PARTS", parts)
        assert [row["position"] for row in rollbook("tail").table] == [row["position"] for row in events[-10:]]
        of_type = rollbook("tail", "--type", "worker.seen", "-n", "2").table
        assert of_type == [row for row in events if row["type"] == "worker.seen"][-2:]
    assert rollbook("tail", "--all", "--last", "1").code == 2


def test_tail_goes_on_after_a_cursor(rollbook: Rollbook) -> None:
    events = rollbook("tail", "--json").json_lines
    for event in events[::7]:
        rest = rollbook("tail", "--json", "--after", event["cursor"]).json_lines
        assert [later["position"] for later in rest] == [
            e["position"] for e in events if e["position"] > event["position"]
        ]


def test_tail_says_on_standard_error_where_to_go_on(rollbook: Rollbook) -> None:
    printed = rollbook("tail", "--last", "1")
    cursor = rollbook("tail", "--json").json_lines[-1]["cursor"]
    assert f"rollbook tail --after {cursor}" in printed.err
    assert rollbook("tail", "--after", cursor).table == []


def test_tail_keeps_to_a_type_and_a_rollout(rollbook: Rollbook, filled: Filled) -> None:
    options = ("--type", "attempt.started", "--type", "worker.seen")
    assert {event["type"] for event in rollbook("tail", "--json", *options).json_lines} == set(options[1::2])
    of_one = rollbook("tail", "--json", "--rollout", filled.retried[:-1]).json_lines
    assert {event["stream"] for event in of_one} == {f"rollout/{filled.retried}"}
    assert [event["number"] for event in of_one] == list(range(1, len(of_one) + 1))


def test_tail_can_begin_near_the_end(rollbook: Rollbook) -> None:
    events = rollbook("tail", "--json").json_lines
    for last in (0, 1, 5, 10_000):
        assert rollbook("tail", "--json", "--last", str(last)).json_lines == (events[-last:] if last else [])


def test_tail_knows_attempts_that_started_before_the_first_line(rollbook: Rollbook) -> None:
    rows = rollbook("tail", "--all").table
    assert rollbook("tail", "--last", "5").table == rows[-5:]
    assert any(row["what"] == "attempt 2 reported succeeded" for row in rows)


def test_tail_shows_a_person_compact_lines(rollbook: Rollbook, filled: Filled) -> None:
    out = rollbook("tail", "--all", terminal=True).out
    assert filled.retried in out
    assert "\t" not in out
    assert "worker/worker-1" in out


def test_a_text_that_is_no_cursor_is_refused(rollbook: Rollbook) -> None:
    printed = rollbook("tail", "--after", "yesterday")
    assert (printed.code, printed.out) == (2, "")


@pytest.mark.slow
def test_follow_prints_new_events_and_ends_quietly_on_ctrl_c(filled: Filled) -> None:
    with subprocess.Popen(
        [*COMMAND, "tail", "--follow", "--last", "0", "--json"],
        env=environment(filled.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        try:
            assert following.stdout
            assert following.stderr
            lines: list[str] = []
            reading = threading.Thread(target=lines.extend, args=(following.stdout,), daemon=True)
            reading.start()
            deadline = time.monotonic() + 250
            # The first one may come before the process follows; what counts is that later ones arrive by themselves.
            while len(lines) < 2:
                assert time.monotonic() < deadline
                assert following.poll() is None
                asyncio.run(_enqueue(filled.url))
                time.sleep(0.2)
            following.send_signal(signal.SIGINT)
            assert following.wait(250) == 0
            assert following.stderr.read() == ""
            reading.join(90)
            assert all("rollout.enqueued" in line for line in lines)
        finally:
            following.kill()


async def _enqueue(url: str) -> None:
    async with await open_store(url) as store:
        await store.enqueue_rollout("later")
