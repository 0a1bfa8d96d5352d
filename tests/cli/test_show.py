"""`rollbook show` prints one object in full, in its current or a past state."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from store import open_store
from store.cli.output.printing import tree
from store.models.threads import ThreadCheckpoint
from store.sql.store import SQLStore
from store.testing.samples import make_span
from tests.cli.conftest import Filled, Rollbook


def test_a_rollout_comes_with_its_attempts_spans_and_rewards(rollbook: Rollbook, filled: Filled) -> None:
    values = rollbook("show", filled.retried, "--json").json
    assert values["rollout"]["status"] == "succeeded"
    assert [attempt["attempt_id"] for attempt in values["attempts"]] == filled.attempts
    assert [span["name"] for span in values["spans"]] == ["agent", "llm", "tool", "agentlightning.annotation"]
    assert values["rewards"] == [
        {"attempt_id": filled.attempts[1], "span_id": "d" * 16, "name": "primary", "value": 0.75}
    ]


def test_show_lists_invalid_rewards(rollbook: Rollbook, filled: Filled) -> None:
    async def fill() -> str:
        async with await open_store(filled.url) as store:
            rollout = await store.start_rollout("q")
            attributes = {"agentlightning.reward.0.value": "NaN"}
            await store.add_span(make_span(rollout.attempt, name="agentlightning.annotation", attributes=attributes))
            return rollout.rollout_id

    rollout_id = asyncio.run(fill())
    assert rollbook("show", rollout_id).out.count("no valid reward (primary NaN)") == 2
    (invalid,) = rollbook("show", rollout_id, "--json").json["invalid_rewards"]
    assert (invalid["name"], invalid["value"]) == ("primary", "NaN")


@pytest.mark.parametrize("terminal", [True, False])
def test_show_prints_the_same_facts_to_terminal_and_pipe(rollbook: Rollbook, filled: Filled, terminal: bool) -> None:
    out = rollbook("show", filled.retried, terminal=terminal).out
    for expected in (
        *(filled.retried, "succeeded", "train", filled.prompts, *filled.attempts, "unresponsive", "worker-2"),
        *('"question": "why"', "unresponsive after 3 s, up to 2 attempts, retry if unresponsive"),
        *('{"rollbook.group":"night","rollbook.step":7}', "primary 0.75"),
        *("1 agent  1.25 s", "├─ 2 llm  1.25 s", "└─ 3 tool  1.25 s  ERROR no such tool", "  reward 0.75"),
    ):
        assert expected in out
    assert ("\x1b[" in out) is terminal


def test_at_shows_a_rollout_after_one_of_its_own_events(rollbook: Rollbook, filled: Filled) -> None:
    events = rollbook("history", filled.retried, "--json").json
    status, spans, after = "queuing", 0, [("", 0)]
    for event in events:
        spans += event["type"] == "span.recorded"
        status = event["data"]["to"] if event["type"] == "rollout.status_changed" else status
        after.append((status, spans))
    for number in range(1, len(events) + 1):
        printed = rollbook("show", filled.retried, "--at", str(number), "--json")
        told = re.match(rf"as it was after event (\d+) of {len(events)}", printed.err)
        assert told
        # What one call recorded is shown whole, so it may be a few events more.
        assert number <= int(told[1]) < number + 6
        assert (printed.json["rollout"]["status"], len(printed.json["spans"])) == after[int(told[1])]
    first = rollbook("show", filled.retried, "--at", "1")
    assert "attempt 1" not in first.out
    assert first.err == f"as it was after event 1 of {len(events)}\n"


def test_at_counts_from_one_to_the_last_event(rollbook: Rollbook, filled: Filled) -> None:
    beyond = rollbook("show", filled.retried, "--at", "999")
    assert (beyond.code, beyond.out) == (2, "")
    assert "rollbook history" in beyond.err
    assert rollbook("show", filled.retried, "--at", "0").code == 2
    assert rollbook("show", filled.retried, "--at", "1", "--as-at", "1").code == 2
    assert rollbook("show", "worker-2", "--at", "1").code == 2


def test_as_at_shows_a_rollout_as_the_store_stood(rollbook: Rollbook, filled: Filled) -> None:
    events = rollbook("history", filled.retried, "--json").json
    created = str(events[0]["position"])
    assert rollbook("show", filled.retried, "--as-at", created, "--json").json["rollout"]["status"] == "queuing"
    by_time = rollbook("show", filled.retried, "--as-at", "2025-06-15T15:06:42.5Z", "--json")
    assert by_time.json["rollout"]["status"] == "preparing"
    assert "as of " in by_time.err


def test_before_it_existed_there_is_nothing_to_show(rollbook: Rollbook, filled: Filled) -> None:
    before = rollbook("show", filled.retried, "--as-at", "1")
    assert (before.code, before.out) == (5, "")
    assert "did not exist yet" in before.err


def test_resources_and_workers_are_shown_too(rollbook: Rollbook, filled: Filled) -> None:
    resources = rollbook("show", filled.prompts)
    assert "version 2" in resources.out
    assert '"model": "small"' in resources.out
    assert rollbook("show", filled.prompts, "--as-at", "1", "--json").json["resources"]["version"] == 1
    assert rollbook("show", "worker-2", "--json").json["worker"]["status"] == "idle"
    assert rollbook("show", "worker-1").table[0]["status"] == "unknown"


def test_the_beginning_of_an_id_is_enough(rollbook: Rollbook, filled: Filled) -> None:
    for short in (filled.retried[:-2], filled.retried.removeprefix("ro-")):
        assert rollbook("show", short, "--json").json["rollout"]["rollout_id"] == filled.retried
    assert rollbook("show", filled.prompts[:-2], "--json").json["resources"]["resources_id"] == filled.prompts
    spans = rollbook("ls", "spans", filled.retried[:-2], "--attempt", filled.attempts[1][:-1])
    assert len(spans.table) == 4


def test_a_beginning_that_several_share_lists_them(rollbook: Rollbook, filled: Filled) -> None:
    several = rollbook("show", "ro-")
    assert (several.code, several.out) == (2, "")
    for candidate in (filled.retried, filled.cancelled, *filled.waiting):
        assert candidate in several.err
    workers = rollbook("show", "worker")
    assert workers.code == 2
    assert "worker worker-1" in workers.err


def test_an_empty_id_is_not_a_beginning_of_everything(rollbook: Rollbook) -> None:
    for command in (("show", ""), ("history", ""), ("tail", "--rollout", ""), ("ls", "attempts", "")):
        printed = rollbook(*command)
        assert (printed.code, printed.out) == (2, "")


def test_an_id_that_begins_another_is_found_itself(rollbook: Rollbook, filled: Filled) -> None:
    async def enter() -> None:
        async with await open_store(filled.url) as store:
            await store.update_worker("worker-11")

    asyncio.run(enter())
    assert rollbook("show", "worker-1", "--json").json["worker"]["worker_id"] == "worker-1"


def test_an_id_that_nothing_has_is_not_found(rollbook: Rollbook, filled: Filled) -> None:
    for command in (
        ("show", "ro-none"),
        ("history", "ro-none"),
        ("tail", "--rollout", "ro-none"),
        ("ls", "attempts", "ro-none"),
        ("ls", "spans", filled.retried, "--attempt", "at-none"),
    ):
        printed = rollbook(*command)
        assert (printed.code, printed.out) == (5, ""), command
        assert "rollbook ls" in printed.err


def test_a_number_is_an_attempts_and_not_the_beginning_of_an_id(rollbook: Rollbook, filled: Filled) -> None:
    async def begun_by_a_number() -> str:
        """Start attempts until the id of one begins with a number that is none of theirs."""
        async with await open_store(filled.url) as store:
            while True:
                begun = (await store.start_attempt(filled.retried)).attempt
                digits = begun.attempt_id.removeprefix("at-")[:2]
                if digits.isdecimal() and digits[0] != "0" and int(digits) > begun.sequence_id:
                    return begun.attempt_id

    attempt_id = asyncio.run(begun_by_a_number())
    spans = ("ls", "spans", filled.retried, "--attempt")
    number = attempt_id.removeprefix("at-")[:2]
    refused = rollbook(*spans, number)
    assert (refused.code, refused.out) == (5, "")
    assert f"{filled.retried} has no attempt {number}; `rollbook ls attempts {filled.retried}`" in refused.err
    for name in ("2", filled.attempts[1], filled.attempts[1].removeprefix("at-")):
        assert len(rollbook(*spans, name).table) == 4
    for name in (attempt_id[:-1], attempt_id.removeprefix("at-")):
        assert rollbook(*spans, name).code == 0


def test_a_candidate_is_found_among_thousands_that_only_contain_the_text(rollbook: Rollbook, filled: Filled) -> None:
    async def enter() -> None:
        async with await open_store(filled.url) as store:
            await asyncio.gather(*(store.update_worker(f"host{number}-x7") for number in range(450)))
            await store.update_worker("x7-needle")

    asyncio.run(enter())
    assert rollbook("show", "x7-n", "--json").json["worker"]["worker_id"] == "x7-needle"


def test_a_long_input_is_cut_on_a_terminal_unless_all_of_it_is_wanted(rollbook: Rollbook, filled: Filled) -> None:
    rollout_id = asyncio.run(_enqueue(filled.url, [f"line {number}" for number in range(200)]))
    cut = rollbook("show", rollout_id, terminal=True)
    assert '"line 150"' not in cut.out
    assert "--full" in cut.err
    assert '"line 150"' in rollbook("show", rollout_id, "--full", terminal=True).out
    assert '"line 150"' in rollbook("show", rollout_id).out


def test_text_that_would_move_the_cursor_is_spelled_out(rollbook: Rollbook, filled: Filled) -> None:
    evil = "\x1b[2Jgone\u202e"

    async def record() -> None:
        async with await open_store(filled.url) as store:
            attempt = await store.get_latest_attempt(filled.retried)
            assert attempt
            await store.add_span(make_span(attempt, 5, name=evil))
            await store.update_worker(evil)

    asyncio.run(record())
    for command in (("show", filled.retried), ("ls", "workers"), ("tail",), ("history", filled.retried)):
        for terminal in (True, False):
            out = rollbook(*command, terminal=terminal).out
            assert "\x1b[2J" not in out
            assert "\u202e" not in out
            assert "gone" in out


def test_every_span_is_shown_once_whatever_its_parents(rollbook: Rollbook, filled: Filled) -> None:
    async def record() -> None:
        async with await open_store(filled.url) as store:
            attempt = await store.get_latest_attempt(filled.retried)
            assert attempt
            pairs = [("1", "2"), ("2", "1"), ("3", "3"), ("4", "none"), ("5", "1")]
            for number, (span_id, parent) in enumerate(pairs, start=10):
                await store.add_span(
                    make_span(attempt, number, name=f"odd-{span_id}", span_id=span_id, parent_id=parent)
                )

    asyncio.run(record())
    lines = rollbook("show", filled.retried).out.splitlines()
    for name in "12345":
        assert sum(f"odd-{name}" in line for line in lines) == 1


def test_a_chain_of_spans_as_long_as_a_night_is_walked() -> None:
    last = 20_000
    nodes = [node for _, node in tree([0], lambda node: [node + 1] if node < last else [])]
    assert nodes == list(range(last + 1))


async def _enqueue(url: str, task: Any) -> str:
    async with await open_store(url) as store:
        return (await store.enqueue_rollout(task)).rollout_id


def test_the_threads_of_graphs_that_belong_to_a_rollout_are_named(rollbook: Rollbook, filled: Filled) -> None:
    thread_id = f"{filled.retried}:RIG"

    async def keep() -> None:
        async with await open_store(filled.url) as store:
            assert isinstance(store, SQLStore)
            checkpoint = ThreadCheckpoint(
                thread_id=thread_id,
                ns="",
                checkpoint_id="1",
                parent_id=None,
                checkpoint=("msgpack", b"1"),
                values={},
                metadata={"source": "loop", "step": 3},
            )
            await store.threads.save_checkpoint(checkpoint)

    asyncio.run(keep())
    output = rollbook("show", filled.retried).out
    assert re.search(rf"{thread_id}  1 checkpoint, at step 3, 20\d\d-", output)
    (thread,) = rollbook("show", filled.retried, "--json").json["threads"]
    assert (thread["thread_id"], thread["scope"], thread["step"]) == (thread_id, "RIG", 3)
    # Of the past they are not told.
    assert thread_id not in rollbook("show", filled.retried, "--at", "2").out


async def _recorded_twice(url: str) -> str:
    async with await open_store(url) as store:
        rollout = await store.start_rollout({})
        for number, attributes in ((1, {}), (2, {"agl.call.backend": "vllm"}), (3, {})):
            # The agent makes a second call, and the server uses the id again.
            times = {"start_time": 100.0 + number // 3, "end_time": 100.5 + number // 3}
            span = make_span(
                rollout.attempt,
                number,
                name="llm",
                attributes={"gen_ai.response.id": "chatcmpl-7", **attributes},
                **times,
            )
            await store.add_span(span)
        return rollout.rollout_id


def test_a_call_that_agent_and_proxy_recorded_is_marked(rollbook: Rollbook, filled: Filled) -> None:
    rollout_id = asyncio.run(_recorded_twice(filled.url))
    lines = [line for line in rollbook("show", rollout_id).out.splitlines() if " llm" in line]
    assert [line.endswith("the same call as 1") for line in lines] == [False, True, False]


def test_a_transcript_shows_the_messages_and_rewards_of_an_attempt(rollbook: Rollbook, filled: Filled) -> None:
    answer = "a long answer\n" * 1_000
    call = {
        "gen_ai.response.model": "small",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "why?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": answer,
    }

    async def record() -> None:
        async with await open_store(filled.url) as store:
            attempt = (await store.query_attempts(filled.retried))[-1]
            await store.add_span(make_span(attempt, 9, name="chat", span_id="e" * 16, attributes=call))

    asyncio.run(record())
    lines = rollbook("show", filled.retried, "--transcript").out.splitlines()
    assert [line for line in lines if line.startswith(("user", "turn", "reward"))] == [
        "reward 0.75  1.25 s  #4",
        "user  #9",
        "turn 1  small  1.25 s  #9",
    ]
    assert lines.count("  a long answer") == 1_000
    cut = rollbook("show", filled.retried, "--transcript", terminal=True)
    assert "6,000 of 14,000 characters" in cut.out
    assert "--full" in cut.err
    entries = rollbook("show", filled.retried, "--transcript", "--json").json["entries"]
    assert [entry["text"]["shown"] for entry in entries if entry["kind"] == "message"] == ["why?", answer]
    assert "no spans" in rollbook("show", filled.retried, "--transcript", "--attempt", "1").err
    assert rollbook("show", filled.prompts, "--transcript").code == 2
    assert rollbook("show", filled.retried, "--attempt", "1").code == 2
